"""Parts of a checkpoint's matrices: what one of several workers keeps of them, in the format that they come in."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from octavo.loader.compact import BlockMatrix, CompactMatrix, HalfMatrix, QuantizedMatrix
from octavo.loader.weights import HostTensor


@dataclass(frozen=True)
class CutTensor:
    """Some output features (rows) and input features (columns) of a matrix. transposed: it is stored [in, out]."""

    inner: HostTensor
    rows: range
    columns: range
    transposed: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.rows), len(self.columns)

    @property
    def column_unit(self) -> int:
        return self.inner.column_unit

    def float32(self) -> NDArray[np.float32]:
        whole = self.inner.float32()
        part = (whole.T if self.transposed else whole)[_slice(self.rows), _slice(self.columns)]
        return np.ascontiguousarray(part)

    def compact(self, transposed: bool = False) -> CompactMatrix | NDArray[np.float32] | None:
        whole = None if transposed else self.inner.compact(self.transposed)
        return None if whole is None else cut_matrix(whole, self.rows, self.columns)

    def cut(self, rows: range, columns: range, transposed: bool = False) -> HostTensor:
        return CutTensor(self, rows, columns, transposed)


def cut_matrix(
    matrix: CompactMatrix | NDArray[np.float32], rows: range, columns: range
) -> CompactMatrix | NDArray[np.float32]:
    """Return a part of a matrix, views where that can be; columns begin and end between groups."""
    row_slice = _slice(rows)
    if isinstance(matrix, QuantizedMatrix):
        groups = slice(columns.start // matrix.group_size, -(-columns.stop // matrix.group_size))
        return replace(
            matrix,
            codes=matrix.codes[row_slice, _slice(columns)],
            scales=matrix.scales[row_slice, groups],
            minimums=None if matrix.minimums is None else matrix.minimums[row_slice, groups],
        )
    if isinstance(matrix, HalfMatrix):
        return replace(matrix, bits=matrix.bits[row_slice, _slice(columns)])
    if isinstance(matrix, BlockMatrix):
        size, size_bytes = matrix.block_size, matrix.block_bytes
        blocks = slice(columns.start // size * size_bytes, -(-columns.stop // size) * size_bytes)
        return replace(
            matrix,
            blocks=matrix.blocks[row_slice, blocks],
            in_features=len(columns),
            first_column=matrix.first_column + columns.start % size,
        )
    return matrix[row_slice, _slice(columns)]


def _slice(indices: range) -> slice:
    return slice(indices.start, indices.stop)
