"""The KV cache's memory: allocations as planned, and each layer's view of them."""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

from octavo.ops.interface import Float
from octavo.types.kv_spec import KVCacheConfig

_ALIGNMENT_BYTES = 64  # a cache line, and the widest vector load


def allocate_kv_caches(plan: KVCacheConfig) -> dict[str, Float]:
    """Allocate every tensor of the plan; return layer name -> [num_blocks, 2, num_kv_heads, block_size, head_dim]."""
    spec_of = {name: group.spec for group in plan.groups for name in group.layer_names}
    caches: dict[str, Float] = {}
    for tensor in plan.tensors:
        memory = _aligned_zeros(tensor.size_bytes)
        for name in tensor.shared_by:
            spec = spec_of[name]
            shape = (plan.num_blocks, 2, spec.num_kv_heads, spec.block_size, spec.head_dim)
            caches[name] = memory.view(np.float32)[: prod(shape)].reshape(shape)
    return caches


def _aligned_zeros(size_bytes: int) -> NDArray[np.uint8]:
    # zeros and not empty: pages are committed only when a block is first written, and no stale NaN can be read
    memory = np.zeros(size_bytes + _ALIGNMENT_BYTES, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT_BYTES
    return memory[start : start + size_bytes]
