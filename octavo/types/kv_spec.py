"""What a layer stores per token, how layers are grouped, and the plan that workers allocate from."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


class FullAttentionSpec(msgspec.Struct, frozen=True, tag=True):
    """A layer whose queries see every earlier key. A page holds one block's keys and values."""

    block_size: int  # tokens
    num_kv_heads: int
    head_dim: int
    dtype: str = "float32"

    @property
    def page_size_bytes(self) -> int:
        head_bytes = self.head_dim * DTYPE_SIZE_BYTES[self.dtype] + (SCALE_BYTES if self.dtype == "int8" else 0)
        return 2 * self.num_stored_tokens * self.num_kv_heads * head_bytes

    @property
    def num_stored_tokens(self) -> int:
        """Tokens of a block that this worker keeps."""
        return self.block_size


class SlidingWindowSpec(FullAttentionSpec, frozen=True, tag=True):
    """A layer whose query at position p sees keys p - sliding_window + 1 .. p."""

    sliding_window: int = 0


class DealtAttentionSpec(FullAttentionSpec, frozen=True, tag=True):
    """A layer whose tokens are dealt out to the caches of num_parts workers."""

    num_parts: int = 1

    @property
    def num_stored_tokens(self) -> int:
        return self.block_size // self.num_parts


KVCacheSpec = FullAttentionSpec | SlidingWindowSpec | DealtAttentionSpec
DTYPE_SIZE_BYTES = {"float32": 4, "float16": 2, "int8": 1}
SCALE_BYTES = 4  # int8: one float32 for each token and head


@dataclass(frozen=True)
class KVCacheGroupSpec:
    """Layers that share one block table."""

    layer_names: tuple[str, ...]
    spec: KVCacheSpec


@dataclass(frozen=True)
class KVCacheTensor:
    """One allocation of num_blocks pages; the layers that share it are in different groups."""

    size_bytes: int
    shared_by: tuple[str, ...]  # layer names


@dataclass(frozen=True)
class KVCacheConfig:
    """The plan: every worker allocates these tensors, the scheduler hands out these blocks."""

    num_blocks: int
    tensors: tuple[KVCacheTensor, ...]
    groups: tuple[KVCacheGroupSpec, ...]
