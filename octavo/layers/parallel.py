"""Projections and embeddings that ranks share: each holds a part of the table, and all end up with the same result."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.distributed.group import Group
from octavo.ops.interface import Float, Int, Ops, Weight


@dataclass(frozen=True, slots=True)
class SummedLinear:
    """x -> x @ weight.T + bias, where each rank has some of the input features, and one of them the bias."""

    weight: Weight
    bias: Float | None
    group: Group

    def __call__(self, x: Float, ops: Ops) -> Float:
        """x: [T, this rank's I] -> [T, O]."""
        return ops.all_reduce(ops.linear(x, self.weight, self.bias), self.group)


@dataclass(frozen=True, slots=True)
class GatheredLinear:
    """x -> x @ weight.T, where each rank has a share of `out_features`."""

    weight: Weight
    out_features: int
    group: Group

    def __call__(self, x: Float, ops: Ops) -> Float:
        """x: [T, I] -> [T, out_features]."""
        return ops.all_gather(ops.linear(x, self.weight), self.group, self.out_features)


@dataclass(frozen=True, slots=True)
class SharedEmbedding:
    """Token ids -> rows of a table of num_ids rows, of which each rank has some, from first_id on."""

    table: Weight
    first_id: int
    num_ids: int
    group: Group

    def __call__(self, ids: Int, ops: Ops) -> Float:
        """ids: [T] -> [T, H]. Every row is one rank's and the others' zeros: the sum is exact."""
        return ops.all_reduce(ops.embedding_share(ids, self.table, self.first_id, self.num_ids), self.group)
