"""Paged KV cache bookkeeping: blocks, prefix hashes, one manager per layer kind, the memory plan.

Knows token ids and block ids; never arrays, never requests beyond what `CacheableRequest` shows.
"""
