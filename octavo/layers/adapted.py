"""Linear layers with room for LoRA adapters, of which each row of a step may use another one, or none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo.layers.linear import Linear
from octavo.ops.interface import AdapterWeights, Float, Int, Ops


@dataclass(slots=True)
class AdapterRows:
    """Which slot's adapter each row of the forward under way uses, -1 for none; shared by all layers of a model.

    tokens: [T]; outputs: [R], of the rows that are left after the last attention
    """

    tokens: Int
    outputs: Int


@dataclass(frozen=True, slots=True)
class AdaptedLinear:
    """A linear layer to whose outputs each row's adapter adds. takes_outputs: x has the rows that are wanted."""

    linear: Linear
    weights: AdapterWeights
    rows: AdapterRows
    takes_outputs: bool = False

    def __call__(self, x: Float, ops: Ops) -> Float:
        """x: [T, I] -> [T, O]."""
        y = self.linear(x, ops)
        ops.add_adapters(y, x, self.rows.outputs if self.takes_outputs else self.rows.tokens, self.weights)
        return y


@dataclass(frozen=True, slots=True)
class AdaptedPart:
    """One of the projections that are stacked in an AdaptedLinear, as adapters name it."""

    weights: AdapterWeights
    index: int

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs)."""
        starts = self.weights.starts
        return int(starts[self.index + 1] - starts[self.index]), int(self.weights.down.shape[2])

    def put(self, slot: int, down: Float, up: Float) -> None:
        """Write an adapter into a slot. down: [r, I], up: [O, r], r at most the layer's."""
        weights, rank = self.weights, len(down)
        first = self.index * weights.up.shape[1]
        weights.down[slot, first : first + rank] = down
        weights.up[slot, :rank, weights.starts[self.index] : weights.starts[self.index + 1]] = up.T
        weights.ranks[slot, self.index] = rank

    def clear(self, slot: int) -> None:
        """Make the slot add nothing."""
        self.weights.ranks[slot, self.index] = 0


def no_adapters(out_sizes: tuple[int, ...], in_features: int, num_slots: int, max_rank: int) -> AdapterWeights:
    """Return empty slots for projections of one input, stacked by output."""
    starts = np.concatenate([[0], np.cumsum(out_sizes)]).astype(np.int32)
    return AdapterWeights(
        # zeros and not empty: the system hands out pages when they are first written to
        down=np.zeros((num_slots, len(out_sizes) * max_rank, in_features), np.float32),
        up=np.zeros((num_slots, max_rank, sum(out_sizes)), np.float32),
        ranks=np.zeros((num_slots, len(out_sizes)), np.int32),
        starts=starts,
    )
