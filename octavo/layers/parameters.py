"""Reads a checkpoint's tensors and packs them for the backend. Knows names and shapes; knows no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octavo.layers.linear import Linear
from octavo.loader.compact import CompactMatrix
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
        tensor = self.source.get(f"{name}.weight", (rows, columns))
        matrix = tensor.compact()
        return self.ops.pack([tensor.float32() if matrix is None else matrix])

    def linear(self, names: Sequence[str], out_sizes: Sequence[int], in_features: int, bias: bool) -> Linear:
        """Stack the projections `names` of one input into one Linear; `bias`: each has one."""
        weight = self.ops.pack(
            [self._matrix(f"{name}.weight", size, in_features) for name, size in zip(names, out_sizes, strict=True)]
        )
        if not bias:
            return Linear(weight)
        biases = [self.vector(f"{name}.bias", size) for name, size in zip(names, out_sizes, strict=True)]
        return Linear(weight, np.concatenate(biases))

    def _matrix(self, name: str, out_features: int, in_features: int) -> Float | CompactMatrix:
        shape = (in_features, out_features) if self.transposed else (out_features, in_features)
        tensor = self.source.get(name, shape)
        matrix = tensor.compact(self.transposed)
        if matrix is not None:
            return matrix
        return np.ascontiguousarray(tensor.float32().T) if self.transposed else tensor.float32()
