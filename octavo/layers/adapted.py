"""Linear layers with room for LoRA adapters, of which each row of a step may use another one, or none."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.layers.linear import Linear
from octavo.ops.interface import AdapterSlots, Float, Int, Ops, Weight


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
    adapters: AdapterSlots
    rows: AdapterRows
    takes_outputs: bool = False

    def __call__(self, x: Float, ops: Ops) -> Float:
        """x: [T, I] -> [T, O]."""
        slots = self.rows.outputs if self.takes_outputs else self.rows.tokens
        return ops.adapted_linear(x, self.linear.weight, self.linear.bias, slots, self.adapters)


@dataclass(frozen=True, slots=True)
class AdaptedEmbedding:
    """An embedding to whose rows each token's adapter adds."""

    table: Weight
    adapters: AdapterSlots
    rows: AdapterRows

    def __call__(self, ids: Int, ops: Ops) -> Float:
        """ids: [T] -> [T, H]."""
        return ops.adapted_embedding(ids, self.table, self.rows.tokens, self.adapters)


@dataclass(frozen=True, slots=True)
class AdaptedPart:
    """An embedding, or one of the projections stacked in an AdaptedLinear, as adapters name it.

    shape: (outputs, inputs); of an embedding (H, V)
    rounds_inputs: of a linear layer with quantised weights
    """

    adapters: AdapterSlots
    index: int
    num_parts: int
    shape: tuple[int, int]
    is_linear: bool
    rounds_inputs: bool
