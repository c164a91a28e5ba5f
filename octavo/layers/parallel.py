"""Projections and embeddings that ranks share: each holds some output features, or tokens, of every table.

Ranks never add up parts of a sum: each computes whole output features, from all input features, and then they exchange
these. So the result has the same bits for any number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.distributed.group import Group
from octavo.layers.adapted import AdaptedLinear
from octavo.layers.linear import Linear
from octavo.ops.interface import Float, Int, Ops, Weight


@dataclass(frozen=True, slots=True)
class SharedLinear:
    """x -> x @ weight.T + bias, of which each rank computes some columns, and gets all.

    in_widths: how many columns of x each rank has; None: each has all of them
    out_widths: how many output features each rank has
    """

    linear: Linear | AdaptedLinear
    in_widths: Sequence[int] | None
    out_widths: Sequence[int]
    group: Group

    def __call__(self, x: Float, ops: Ops) -> Float:
        """x: [T, this rank's I, or all] -> [T, O]."""
        if self.in_widths is not None:
            x = ops.all_gather(x, self.group, self.in_widths)
        return ops.all_gather(self.linear(x, ops), self.group, self.out_widths)


AnyLinear = Linear | AdaptedLinear | SharedLinear


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
