"""Reads a checkpoint's tensors and packs them for the backend. Knows names and shapes; knows no model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from octavo.layers.linear import Linear
from octavo.loader.compact import CompactMatrix
from octavo.loader.cut import ColumnCut, as_slice
from octavo.loader.weights import HostTensor, WeightSource
from octavo.ops.interface import ExpertWeights, Float, Int, Ops, Weight


@dataclass(frozen=True, slots=True)
class Parameters:
    """The one place where layers meet the weight source.

    transposed: projections are stored [in, out] (GPT-2's Conv1D) and not [out, in]
    """

    source: WeightSource
    ops: Ops
    transposed: bool = False

    def vector(self, name: str, size: int) -> Float:
        """Return a vector [size] float32, of its own: a view of the file would keep all pages around it mapped."""
        return self.source.get(name, (size,)).float32().copy()

    def ids(self, name: str, count: int) -> Int:
        """Return whole numbers [count]; all 0 among random weights."""
        return np.rint(self.source.get(name, (count,)).float32()).astype(np.int32)

    def table(self, name: str, rows: int, columns: int, share: range | None = None) -> Weight:
        """Pack `name`.weight [rows, columns] as it is stored, or a share of its rows."""
        tensor: HostTensor = self.source.get(f"{name}.weight", (rows, columns))
        if share is not None:
            tensor = tensor.cut(share)
        return self.ops.pack([_matrix(tensor)])

    def linear(
        self,
        names: Sequence[str],
        out_sizes: Sequence[int],
        in_features: int,
        bias: bool,
        shares: Sequence[Sequence[range]] | None = None,
        columns: range | None = None,
    ) -> Linear:
        """Stack the projections `names` of one input into one Linear; `bias`: each has one.

        shares: of each projection, the output features to take, piece by piece; None: all
        columns: the input features to take; None: all
        """
        matrices: list[Float | CompactMatrix] = []
        biases: list[Float] = []
        for index, (name, size) in enumerate(zip(names, out_sizes, strict=True)):
            tensor = self._tensor(name, size, in_features)
            if columns is not None:
                tensor = ColumnCut(tensor, columns)
            vector = self.vector(f"{name}.bias", size) if bias else None
            matrices += _pieces(tensor, self.transposed, None if shares is None else shares[index])
            if vector is not None:
                pieces = [range(size)] if shares is None else shares[index]
                biases += [vector[rows.start : rows.stop] for rows in pieces]
        return Linear(self.ops.pack(matrices), np.concatenate(biases) if bias else None)

    def experts(
        self,
        names: Sequence[str],
        out_sizes: Sequence[int],
        in_features: int,
        count: int,
        shares: Sequence[Sequence[range]] | None = None,
        bias: bool = False,
    ) -> ExpertWeights:
        """Stack projections of one input for each expert.

        names: with "{expert}" for its number, or of a tensor [count, out, in] of all; the latter also where the source
            has the former's without "{expert}."; or of a tensor [count, in, out], called by this name alone
        bias: each has one
        """
        stacks = [self._stack(name, (count, size, in_features)) for name, size in zip(names, out_sizes, strict=True)]
        weights = []
        for own in zip(*stacks, strict=True):
            matrices: list[Float | CompactMatrix] = []
            for index, (tensor, transposed) in enumerate(own):
                matrices += _pieces(tensor, transposed, None if shares is None else shares[index])
            weights.append(self.ops.pack(matrices))
        if not bias:
            return ExpertWeights(tuple(weights))
        biases = []
        for index, (name, size) in enumerate(zip(names, out_sizes, strict=True)):
            vectors = self.source.get(self._bias_of(name), (count, size)).float32()
            biases += [vectors[:, as_slice(rows)] for rows in ([range(size)] if shares is None else shares[index])]
        return ExpertWeights(tuple(weights), np.concatenate(biases, axis=1))

    def _bias_of(self, name: str) -> str:
        return f"{name}_bias" if self.source.has(name) else f"{name}.bias"

    def _stack(self, name: str, shape: tuple[int, int, int]) -> Iterable[tuple[HostTensor, bool]]:
        """Return each expert's matrix, and whether it is stored [in, out]."""
        count, out_features, in_features = shape
        whole = name.replace("{expert}.", "")
        if self.source.has(name):
            return zip(self.source.stack(name, (count, in_features, out_features)), repeat(True), strict=False)
        if whole == name or self.source.has(f"{whole}.weight"):
            return zip(self.source.stack(f"{whole}.weight", shape), repeat(False), strict=False)
        names = (name.format(expert=expert) for expert in range(count))
        return ((self._tensor(each, out_features, in_features), False) for each in names)

    def _tensor(self, name: str, out_features: int, in_features: int) -> HostTensor:
        shape = (in_features, out_features) if self.transposed else (out_features, in_features)
        return self.source.get(f"{name}.weight", shape)


def _pieces(tensor: HostTensor, transposed: bool, shares: Sequence[range] | None) -> list[Float | CompactMatrix]:
    """Return a matrix, or the output features of it that are wanted, piece by piece."""
    if shares is None:
        return [_matrix(tensor, transposed)]
    return [_matrix(tensor.cut(rows, transposed)) for rows in shares if rows]


def _matrix(tensor: HostTensor, transposed: bool = False) -> Float | CompactMatrix:
    matrix = tensor.compact(transposed)
    if matrix is not None:
        return matrix
    return np.ascontiguousarray(tensor.float32().T) if transposed else tensor.float32()
