"""What is computed from pooled hidden states: linear layers, activations and norms in a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from octavo.ops.interface import Activation, Float, Ops

HeadActivation = Activation | Literal["tanh"]
HeadStep = Callable[[Float, Ops], Float]  # a Linear, a Norm, an Activate


@dataclass(frozen=True, slots=True)
class Activate:
    """An activation by itself."""

    kind: HeadActivation

    def __call__(self, x: Float, ops: Ops) -> Float:
        """x: [R, H] -> [R, H]."""
        return ops.softcap(x, 1.0) if self.kind == "tanh" else ops.activation(x, self.kind)
