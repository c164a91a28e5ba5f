"""Self-attention of one layer: project, normalise, rotate, store keys and values, attend, project back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo.attention.context import ForwardContext
from octavo.layers.linear import Linear
from octavo.layers.norm import RMSNorm
from octavo.ops.interface import Float, Int, Ops
from octavo.types.kv_spec import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec


@dataclass(frozen=True, slots=True)
class QKNorm:
    """Normalise queries and keys: over each head by itself, or over all heads of a token together."""

    query: RMSNorm
    key: RMSNorm
    over: Literal["head", "all_heads"]

    def __call__(self, query: Float, key: Float, ops: Ops) -> tuple[Float, Float]:
        """query: [T, Q, D], key: [T, K, D], both views of one projection."""
        if self.over == "head":
            return self.query(query, ops), self.key(key, ops)
        num_tokens = query.shape[0]
        flat_query = self.query(query.reshape(num_tokens, -1), ops)
        flat_key = self.key(key.reshape(num_tokens, -1), ops)
        return flat_query.reshape(query.shape), flat_key.reshape(key.shape)


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention layer. `name` is its key in the forward context.

    qkv: query, key and value projections, stacked in this order
    cos_sin: [P, rotary_dim], see `Ops.rope`; None where the layer does not rotate
    """

    name: str
    qkv: Linear
    output: Linear
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    cos_sin: Float | None = None
    qk_norm: QKNorm | None = None
    sliding_window: int | None = None
    softcap: float | None = None

    def __call__(self, x: Float, positions: Int, context: ForwardContext) -> Float:
        """x: [T, H], positions: [T] -> [T, H]; stores this step's keys and values in the layer's cache."""
        ops = context.ops
        num_rotated = self.num_heads + self.num_kv_heads
        heads = self.qkv(x, ops).reshape(x.shape[0], num_rotated + self.num_kv_heads, self.head_dim)
        query, key = heads[:, : self.num_heads], heads[:, self.num_heads : num_rotated]
        value = heads[:, num_rotated:]
        if self.qk_norm is not None:
            query, key = self.qk_norm(query, key, ops)
        cache, metadata = context.kv_caches[self.name], context.metadata[self.name]
        if self.cos_sin is None:
            ops.store_kv(key, value, cache, metadata.slot_mapping)
        else:
            query = ops.rope_and_store(query, key, value, positions, self.cos_sin, cache, metadata.slot_mapping)
        attended = ops.paged_attention(query, cache, metadata, self.scale, self.sliding_window, self.softcap)
        return self.output(attended, ops)

    def kv_cache_spec(self, block_size: int, dtype: str) -> KVCacheSpec:
        """Return what the layer stores."""
        if self.sliding_window is None:
            return FullAttentionSpec(block_size, self.num_kv_heads, self.head_dim, dtype)
        return SlidingWindowSpec(block_size, self.num_kv_heads, self.head_dim, dtype, self.sliding_window)
