"""Weight sources around another one: compute in float32 after all, or quantise what is not quantised yet."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from octavo.config.configs import QuantizationMethod
from octavo.loader.compact import BlockMatrix, CompactMatrix, HalfMatrix, QuantizedMatrix
from octavo.loader.weights import HostTensor, WeightSource
from octavo.quantization.rounding import quantize_int4, quantize_int8

# Not layers of the network: they are looked up by row, or give the logits, and 4 bits are too few for them.
_TABLES = re.compile(r"(embed_tokens|wte|wpe|lm_head|embed_out|embed_positions)\.weight$")
# Small, and whoever rounds them sends tokens to other experts.
_ROUTERS = re.compile(r"\.(mlp|block_sparse_moe)\.(gate|router(\.layer)?|shared_expert_gate)\.weight$")


Compact = CompactMatrix | NDArray[np.float32] | None
Convert = Callable[[HostTensor, str, bool], Compact]  # from a tensor, its name, and the argument of `compact`


class ConvertedWeights:
    """The same tensors, with matrices converted when they are asked for."""

    def __init__(self, source: WeightSource, convert: Convert) -> None:
        self._convert = convert
        self._source = source
        self.where = source.where
        self.has = source.has
        self.unused = source.unused

    def get(self, name: str, shape: tuple[int, ...]) -> HostTensor:
        return _ConvertedTensor(self._source.get(name, shape), name, self._convert)

    def stack(self, name: str, shape: tuple[int, int, int]) -> list[HostTensor]:
        return [_ConvertedTensor(each, name, self._convert) for each in self._source.stack(name, shape)]


@dataclass(frozen=True)
class _ConvertedTensor:
    inner: HostTensor
    name: str
    convert: Convert

    @property
    def shape(self) -> tuple[int, ...]:
        return self.inner.shape

    def float32(self) -> NDArray[np.float32]:
        return self.inner.float32()

    def compact(self, transposed: bool = False) -> Compact:
        return self.convert(self.inner, self.name, transposed)

    def cut(self, rows: range, transposed: bool = False) -> HostTensor:
        return replace(self, inner=self.inner.cut(rows, transposed))


def exact(tensor: HostTensor, name: str, transposed: bool) -> Compact:
    """Dequantise quantised matrices to float32."""
    matrix = tensor.compact(transposed)
    return matrix.dequantized() if isinstance(matrix, (BlockMatrix, QuantizedMatrix)) else matrix


def quantized(method: QuantizationMethod, tensor: HostTensor, name: str, transposed: bool) -> Compact:
    """Quantise float matrices."""
    if len(tensor.shape) != 2:
        return None
    matrix = tensor.compact(transposed)
    if isinstance(matrix, (BlockMatrix, QuantizedMatrix)) or _ROUTERS.search(name):
        return matrix
    if isinstance(matrix, HalfMatrix):
        values = matrix.dequantized()
    else:
        values = tensor.float32().T if transposed else tensor.float32()
    return quantize_int4(values) if method == "int4" and not _TABLES.search(name) else quantize_int8(values)
