"""Attention of ranks that share the keys and values of a sequence, each with some of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.distributed.group import Group
from octavo.ops.interface import AttentionMetadata, Float, Ops
from octavo.ops.kv_layout import DealtTokens, KVCache


@dataclass(frozen=True, slots=True)
class DealtAttention:
    """Each rank attends to the tokens that its cache has, for all ranks' query heads; then each joins its own heads.

    num_heads: query heads of each rank of the group, all of which use the same key/value head
    dealt: this rank's tokens
    """

    group: Group
    num_heads: Sequence[int]
    dealt: DealtTokens

    def __call__(self, query: Float, cache: KVCache, metadata: AttentionMetadata, scale: float, ops: Ops) -> Float:
        """query: [T, this rank's Q, D] -> [T, Q * D]. Every row's parts are added in the order of ranks."""
        num_tokens, _, head_dim = query.shape
        own = ops.scale(query, 1.0).reshape(num_tokens, -1)  # a copy: ranks exchange whole rows
        total = sum(self.num_heads)
        queries = ops.all_gather(own, self.group, [count * head_dim for count in self.num_heads])
        part = ops.partial_attention(queries.reshape(num_tokens, total, head_dim), cache, metadata, scale, self.dealt)
        parts = ops.all_gather(part, self.group, [total * (head_dim + 2)] * self.group.size)
        first = sum(self.num_heads[: self.group.rank])
        own_heads = range(first, first + self.num_heads[self.group.rank])
        return ops.merge_attention(parts, self.group.size, total, own_heads)
