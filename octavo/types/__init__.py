"""The nouns that two sides share: requests, messages, step inputs and outputs, KV cache specs, results, statistics.

Nothing here computes. A side that imports another side's package to get at a noun is a noun missing here.
"""
