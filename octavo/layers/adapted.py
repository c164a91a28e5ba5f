"""Layers with room for LoRA adapters, of which each row of a step may use another one, or none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from octavo.distributed.group import Group
from octavo.layers.linear import Linear
from octavo.ops.interface import AdapterSlots, Float, Int, Ops, Weight

AdaptedRows = Literal["tokens", "outputs", "logits"]


@dataclass(slots=True)
class AdapterRows:
    """Which slot's adapter each row of what is computed uses, -1 for none; shared by all layers of a model.

    tokens: [T]; outputs: [R], of the rows that are left after the last attention; logits: [R], of those wanted now
    """

    tokens: Int
    outputs: Int
    logits: Int


@dataclass(frozen=True, slots=True)
class AdaptedLinear:
    """A linear layer to whose outputs each row's adapter adds. takes: the rows that x has."""

    linear: Linear
    adapters: AdapterSlots
    rows: AdapterRows
    takes: AdaptedRows = "tokens"

    def __call__(self, x: Float, ops: Ops) -> Float:
        """x: [T, I] -> [T, O]."""
        slots: Int = getattr(self.rows, self.takes)
        return ops.adapted_linear(x, self.linear.weight, self.linear.bias, slots, self.adapters)


@dataclass(frozen=True, slots=True)
class AdaptedEmbedding:
    """An embedding to whose rows each token's adapter adds.

    Of a table of num_ids rows each rank of the group has some, from first_id on, and so it is with its adapters.
    """

    table: Weight
    first_id: int
    num_ids: int
    group: Group
    adapters: AdapterSlots
    rows: AdapterRows

    def __call__(self, ids: Int, ops: Ops) -> Float:
        """ids: [T] -> [T, H]."""
        own = ops.adapted_embedding(ids, self.table, self.first_id, self.num_ids, self.rows.tokens, self.adapters)
        return own if self.group.size == 1 else ops.all_reduce(own, self.group)


@dataclass(frozen=True, slots=True)
class AdaptedPart:
    """An embedding, or one of the projections stacked in an AdaptedLinear, as adapters name it.

    adapters: None where another stage of a pipeline computes it
    shape: (outputs, inputs) of the whole; of an embedding (H, V)
    outputs: the output features that this rank has; tokens: those of an embedding; None: all
    rounds_inputs: of a linear layer with quantised weights
    """

    adapters: AdapterSlots | None
    index: int
    num_parts: int
    shape: tuple[int, int]
    is_linear: bool
    rounds_inputs: bool = False
    outputs: NDArray[np.intp] | None = None
    tokens: range | None = None
