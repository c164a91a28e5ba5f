"""Reads a checkpoint's tensors and packs them for the backend. Knows names and shapes; knows no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octavo.layers.linear import Linear
from octavo.loader.weights import WeightSource
from octavo.ops.interface import Float, Ops, Weight


@dataclass(frozen=True, slots=True)
class Parameters:
    """The one place where layers meet the weight source.

    transposed: projections are stored [in, out] (GPT-2's Conv1D) and not [out, in]
    """

    source: WeightSource
    ops: Ops
    transposed: bool = False

    def vector(self, name: str, size: int) -> Float:
        """Return a vector [size] float32."""
        return self.source.get(name, (size,)).float32()

    def table(self, name: str, rows: int, columns: int) -> Weight:
        """Pack `name`.weight [rows, columns] as it is stored."""
        return self.ops.pack([self.source.get(f"{name}.weight", (rows, columns)).float32()])

    def linear(self, names: Sequence[str], out_sizes: Sequence[int], in_features: int, bias: bool) -> Linear:
        """Stack the projections `names` of one input into one Linear; `bias`: each has one."""
        weight = self.ops.pack(
            [self._matrix(f"{name}.weight", size, in_features) for name, size in zip(names, out_sizes, strict=True)]
        )
        if not bias:
            return Linear(weight)
        biases = [self.vector(f"{name}.bias", size) for name, size in zip(names, out_sizes, strict=True)]
        return Linear(weight, np.concatenate(biases))

    def _matrix(self, name: str, out_features: int, in_features: int) -> Float:
        if self.transposed:
            return np.ascontiguousarray(self.source.get(name, (in_features, out_features)).float32().T)
        return self.source.get(name, (out_features, in_features)).float32()
