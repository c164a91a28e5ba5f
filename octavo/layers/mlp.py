"""The feed-forward half of a decoder layer."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.layers.adapted import AdaptedLinear
from octavo.layers.linear import Linear
from octavo.layers.parallel import SharedLinear
from octavo.ops.interface import Activation, Float, Ops


@dataclass(frozen=True, slots=True)
class GatedMLP:
    """down(act(gate(x)) * up(x)), gate and up stacked."""

    gate_up: Linear | AdaptedLinear
    down: Linear | AdaptedLinear | SharedLinear
    activation: Activation

    def __call__(self, x: Float, ops: Ops) -> Float:
        """x: [T, H] -> [T, H]."""
        return self.down(ops.act_and_mul(self.gate_up(x, ops), self.activation), ops)


@dataclass(frozen=True, slots=True)
class PlainMLP:
    """down(act(up(x)))."""

    up: Linear | AdaptedLinear
    down: Linear | AdaptedLinear | SharedLinear
    activation: Activation

    def __call__(self, x: Float, ops: Ops) -> Float:
        """x: [T, H] -> [T, H]."""
        return self.down(ops.activation(self.up(x, ops), self.activation), ops)
