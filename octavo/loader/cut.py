"""Parts of a checkpoint's matrices: output features, as one of several workers keeps them, or input features."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from octavo.loader.compact import BlockMatrix, CompactMatrix, HalfMatrix, QuantizedMatrix
from octavo.loader.weights import HostTensor


@dataclass(frozen=True)
class CutTensor:
    """Some output features of a matrix, [out, in]; rows may have a step. transposed: it is stored [in, out]."""

    inner: HostTensor
    rows: range
    transposed: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.rows), self.inner.shape[0 if self.transposed else 1]

    def float32(self) -> NDArray[np.float32]:
        whole = self.inner.float32()
        return np.ascontiguousarray((whole.T if self.transposed else whole)[as_slice(self.rows)])

    def compact(self, transposed: bool = False) -> CompactMatrix | NDArray[np.float32] | None:
        whole = None if transposed else self.inner.compact(self.transposed)
        return None if whole is None else _cut_matrix(whole, as_slice(self.rows))

    def cut(self, rows: range, transposed: bool = False) -> HostTensor:
        return CutTensor(self, rows, transposed)


@dataclass(frozen=True)
class ColumnCut:
    """Some input features of a matrix [out, in]. Quantised ones, whose groups run along these, become float32."""

    inner: HostTensor
    columns: range

    @property
    def shape(self) -> tuple[int, ...]:
        return self.inner.shape[0], len(self.columns)

    def float32(self) -> NDArray[np.float32]:
        return np.ascontiguousarray(self.inner.float32()[:, self.columns.start : self.columns.stop])

    def compact(self, transposed: bool = False) -> CompactMatrix | NDArray[np.float32] | None:
        whole = None if transposed else self.inner.compact()
        if not isinstance(whole, HalfMatrix):
            return None
        return replace(whole, bits=np.ascontiguousarray(whole.bits[:, self.columns.start : self.columns.stop]))

    def cut(self, rows: range, transposed: bool = False) -> HostTensor:
        return CutTensor(self, rows, transposed)


def as_slice(rows: range) -> slice:
    return slice(rows.start, rows.stop, rows.step)


def _cut_matrix(matrix: CompactMatrix | NDArray[np.float32], rows: slice) -> CompactMatrix | NDArray[np.float32]:
    """Return some rows: every format stores them one after another, so these are views."""
    if isinstance(matrix, QuantizedMatrix):
        minimums = None if matrix.minimums is None else matrix.minimums[rows]
        return replace(matrix, codes=matrix.codes[rows], scales=matrix.scales[rows], minimums=minimums)
    if isinstance(matrix, HalfMatrix):
        return replace(matrix, bits=matrix.bits[rows])
    if isinstance(matrix, BlockMatrix):
        return replace(matrix, blocks=matrix.blocks[rows])
    return matrix[rows]
