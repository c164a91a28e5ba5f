"""The feed-forward half of a decoder layer."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.layers.adapted import AdaptedLinear
from octavo.layers.linear import Linear
from octavo.layers.parallel import SharedLinear
from octavo.ops.interface import Activation, Float, Ops


@dataclass(frozen=True, slots=True)
class MLP:
    """down(act(up(x))) or, gated, down(act(gate(x)) * up(x)); inputs: up, or gate and up stacked."""

    inputs: Linear | AdaptedLinear
    down: Linear | AdaptedLinear | SharedLinear
    activation: Activation
    is_gated: bool

    def __call__(self, x: Float, ops: Ops) -> Float:
        """x: [T, H] -> [T, H]."""
        activate = ops.act_and_mul if self.is_gated else ops.activation
        return self.down(activate(self.inputs(x, ops), self.activation), ops)
