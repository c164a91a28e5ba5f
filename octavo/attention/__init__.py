"""Attention's per-step context: which cache and which metadata belong to which layer."""
