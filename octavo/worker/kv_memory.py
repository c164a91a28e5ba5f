"""The KV cache's memory: allocations as planned, and each layer's view of them."""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

from octavo.ops.kv_layout import CacheSizes, KVCache, cache_dtype, cache_shape
from octavo.types.kv_spec import KVCacheConfig, KVCacheSpec

_ALIGNMENT_BYTES = 64  # a cache line, and the widest vector load


def allocate_kv_caches(plan: KVCacheConfig) -> dict[str, KVCache]:
    """Allocate every tensor of the plan; return layer name -> cache array (see `octavo.ops.kv_layout`)."""
    spec_of = {name: group.spec for group in plan.groups for name in group.layer_names}
    caches: dict[str, KVCache] = {}
    for tensor in plan.tensors:
        memory = _aligned_zeros(tensor.size_bytes)
        for name in tensor.shared_by:
            spec = spec_of[name]
            caches[name] = cache_in(memory, spec, plan.num_blocks)
    return caches


def cache_in(memory: NDArray[np.uint8], spec: KVCacheSpec, num_blocks: int) -> KVCache:
    """Return a cache of this many blocks at the start of `memory`."""
    dtype = cache_dtype(spec.dtype)
    shape = cache_shape(CacheSizes(num_blocks, spec.num_kv_heads, spec.num_stored_tokens, spec.head_dim), dtype)
    return memory[: prod(shape) * dtype.itemsize].view(dtype).reshape(shape)


def _aligned_zeros(size_bytes: int) -> NDArray[np.uint8]:
    # zeros and not empty: pages are committed only when a block is first written, and no stale NaN can be read
    memory = np.zeros(size_bytes + _ALIGNMENT_BYTES, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT_BYTES
    return memory[start : start + size_bytes]
