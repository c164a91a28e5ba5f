"""Reads a checkpoint's tensors and packs them for the backend. Knows names and shapes; knows no model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from octavo.layers.linear import Linear
from octavo.loader.compact import CompactMatrix
from octavo.loader.cut import ColumnCut
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
            matrices += self._pieces(tensor, None if shares is None else shares[index])
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
    ) -> ExpertWeights:
        """Stack projections of one input for each expert.

        names: with "{expert}" for its number, or of a tensor [count, out, in] of all; the latter also where the source
            has the former's without "{expert}."
        """
        stacks = [self._stack(name, (count, size, in_features)) for name, size in zip(names, out_sizes, strict=True)]
        weights = []
        for own in zip(*stacks, strict=True):
            matrices: list[Float | CompactMatrix] = []
            for index, tensor in enumerate(own):
                matrices += self._pieces(tensor, None if shares is None else shares[index])
            weights.append(self.ops.pack(matrices))
        return ExpertWeights(tuple(weights))

    def _stack(self, name: str, shape: tuple[int, int, int]) -> Iterable[HostTensor]:
        whole = name.replace("{expert}.", "")
        if whole == name or self.source.has(f"{whole}.weight"):
            return self.source.stack(f"{whole}.weight", shape)
        return (self._tensor(name.format(expert=expert), *shape[1:]) for expert in range(shape[0]))

    def _pieces(self, tensor: HostTensor, shares: Sequence[range] | None) -> list[Float | CompactMatrix]:
        """Return a matrix, or the output features of it that are wanted, piece by piece."""
        if shares is None:
            return [_matrix(tensor, self.transposed)]
        return [_matrix(tensor.cut(rows, self.transposed)) for rows in shares if rows]

    def _tensor(self, name: str, out_features: int, in_features: int) -> HostTensor:
        shape = (in_features, out_features) if self.transposed else (out_features, in_features)
        return self.source.get(f"{name}.weight", shape)


def _matrix(tensor: HostTensor, transposed: bool = False) -> Float | CompactMatrix:
    matrix = tensor.compact(transposed)
    if matrix is not None:
        return matrix
    return np.ascontiguousarray(tensor.float32().T) if transposed else tensor.float32()
