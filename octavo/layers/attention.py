"""Self-attention of one layer: project, normalise, rotate, store keys and values, attend, project back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from octavo.attention.context import ForwardContext
from octavo.layers.adapted import AdaptedLinear
from octavo.layers.context_parallel import DealtAttention
from octavo.layers.linear import Linear
from octavo.layers.norm import RMSNorm
from octavo.layers.parallel import SharedLinear
from octavo.ops.interface import Float, Int, Ops
from octavo.types.kv_spec import DealtAttentionSpec, FullAttentionSpec, KVCacheSpec, SlidingWindowSpec


@dataclass(frozen=True, slots=True)
class QKNorm:
    """Normalise queries and keys: over each head by itself, or over all heads of a token together.

    query_heads, key_heads: this rank's; a norm over all heads takes all, and keeps these
    """

    query: RMSNorm
    key: RMSNorm
    over: Literal["head", "all_heads"]
    query_heads: range
    key_heads: range

    def projected_heads(self, head_dim: int) -> tuple[int, int]:
        """Return how many query and key heads it takes."""
        if self.over == "head":
            return len(self.query_heads), len(self.key_heads)
        return len(self.query.weight) // head_dim, len(self.key.weight) // head_dim

    def __call__(self, query: Float, key: Float, ops: Ops) -> tuple[Float, Float]:
        """query: [T, Q, D], key: [T, K, D], both views of one projection, of the `projected_heads`."""
        if self.over == "head":
            return self.query(query, ops), self.key(key, ops)
        num_tokens = query.shape[0]
        flat_query = self.query(query.reshape(num_tokens, -1), ops)
        flat_key = self.key(key.reshape(num_tokens, -1), ops)
        return (
            flat_query.reshape(query.shape)[:, self.query_heads.start : self.query_heads.stop],
            flat_key.reshape(key.shape)[:, self.key_heads.start : self.key_heads.stop],
        )


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention layer. `name` is its key in the forward context.

    qkv: query, key and value projections, stacked in this order
    num_heads, num_kv_heads: of this rank, which has some of the model's
    heads_of_kv: see `Ops.paged_attention`
    dealt: where ranks share the keys and values of a sequence; softcap, slopes, sinks and window are None then
    cos_sin: [P, rotary_dim], see `Ops.rope`; None where the layer does not rotate
    alibi_slopes, sinks: [num_heads], see `Ops.paged_attention`; None where the layer has none
    """

    name: str
    qkv: Linear | AdaptedLinear
    output: Linear | AdaptedLinear | SharedLinear
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    heads_of_kv: Sequence[int] | None = None
    cos_sin: Float | None = None
    qk_norm: QKNorm | None = None
    sliding_window: int | None = None
    softcap: float | None = None
    alibi_slopes: Float | None = None
    sinks: Float | None = None
    dealt: DealtAttention | None = None

    def __call__(self, x: Float, positions: Int, context: ForwardContext) -> Float:
        """x: [T, H], positions: [T] -> [T, H]; stores this step's keys and values in the layer's cache."""
        return self.attend(self.qkv(x, context.ops), positions, context)

    def attend(self, projected: Float, positions: Int, context: ForwardContext) -> Float:
        """projected: [T, (Q + 2 K) D], queries, keys and values as `qkv` gives them -> [T, H]."""
        ops = context.ops
        num_query, num_key = self.num_heads, self.num_kv_heads
        if self.qk_norm is not None:
            num_query, num_key = self.qk_norm.projected_heads(self.head_dim)
        heads = projected.reshape(projected.shape[0], num_query + num_key + self.num_kv_heads, self.head_dim)
        query, key = heads[:, :num_query], heads[:, num_query : num_query + num_key]
        value = heads[:, num_query + num_key :]
        if self.qk_norm is not None:
            query, key = self.qk_norm(query, key, ops)
        cache, metadata = context.kv_caches[self.name], context.metadata[self.name]
        if self.cos_sin is None:
            ops.store_kv(key, value, cache, metadata.slot_mapping)
        else:
            query = ops.rope_and_store(query, key, value, positions, self.cos_sin, cache, metadata.slot_mapping)
        if self.dealt is not None:
            return self.output(self.dealt(query, cache, metadata, self.scale, ops), ops)
        attended = ops.paged_attention(
            query,
            cache,
            metadata,
            self.scale,
            self.sliding_window,
            self.softcap,
            self.alibi_slopes,
            self.sinks,
            self.heads_of_kv,
        )
        return self.output(attended, ops)

    def kv_cache_spec(self, block_size: int, dtype: str) -> KVCacheSpec:
        """Return what the layer stores."""
        if self.dealt is not None:
            num_parts = self.dealt.group.size
            return DealtAttentionSpec(block_size, self.num_kv_heads, self.head_dim, dtype, num_parts)
        if self.sliding_window is None:
            return FullAttentionSpec(block_size, self.num_kv_heads, self.head_dim, dtype)
        return SlidingWindowSpec(block_size, self.num_kv_heads, self.head_dim, dtype, self.sliding_window)
