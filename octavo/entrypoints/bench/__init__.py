"""Benchmarks: `octavo bench latency | throughput | serve | startup`, with vLLM's options and numbers."""
