"""Linear projections and embeddings over packed weights."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.ops.interface import Float, Int, Ops, Weight


@dataclass(frozen=True, slots=True)
class Linear:
    """x -> x @ weight.T + bias. Several projections of the same input are one Linear, stacked by output."""

    weight: Weight
    bias: Float | None = None

    def __call__(self, x: Float, ops: Ops) -> Float:
        """x: [T, I] -> [T, O]."""
        return ops.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Embedding:
    """Token ids (or positions) -> rows of a table, which may be the output projection's weight too."""

    table: Weight

    def __call__(self, ids: Int, ops: Ops) -> Float:
        """ids: [T] -> [T, H]."""
        return ops.embedding(ids, self.table)
