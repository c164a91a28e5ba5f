"""Weight sources around another one: compute in float32 after all, or quantise what is not quantised yet."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from octavo.config.configs import QuantizationMethod
from octavo.loader.compact import BlockMatrix, CompactMatrix, HalfMatrix, QuantizedMatrix
from octavo.loader.weights import HostTensor, WeightSource
from octavo.quantization.rounding import quantize_int4, quantize_int8

# Not layers of the network: they are looked up by row, or give the logits, and 4 bits are too few for them.
_TABLES = re.compile(r"(embed_tokens|wte|wpe|lm_head|embed_out|embed_positions)\.weight$")


class ExactWeights:
    """The same tensors, with quantised matrices dequantised to float32."""

    def __init__(self, source: WeightSource) -> None:
        self._source = source

    def has(self, name: str) -> bool:
        return self._source.has(name)

    def get(self, name: str, shape: tuple[int, ...]) -> HostTensor:
        return _ExactTensor(self._source.get(name, shape))

    def unused(self) -> list[str]:
        return self._source.unused()


@dataclass(frozen=True)
class _ExactTensor:
    inner: HostTensor

    @property
    def shape(self) -> tuple[int, ...]:
        return self.inner.shape

    def float32(self) -> NDArray[np.float32]:
        return self.inner.float32()

    def compact(self, transposed: bool = False) -> CompactMatrix | NDArray[np.float32] | None:
        matrix = self.inner.compact(transposed)
        return matrix.dequantized() if isinstance(matrix, (BlockMatrix, QuantizedMatrix)) else matrix

    def cut(self, rows: range, transposed: bool = False) -> HostTensor:
        return replace(self, inner=self.inner.cut(rows, transposed))


class QuantizingWeights:
    """The same tensors, with float matrices quantised when they are asked for."""

    def __init__(self, source: WeightSource, method: QuantizationMethod) -> None:
        self._source = source
        self._method = method

    def has(self, name: str) -> bool:
        return self._source.has(name)

    def get(self, name: str, shape: tuple[int, ...]) -> HostTensor:
        method: QuantizationMethod = "int8" if _TABLES.search(name) else self._method
        return _QuantizedTensor(self._source.get(name, shape), method)

    def unused(self) -> list[str]:
        return self._source.unused()


@dataclass(frozen=True)
class _QuantizedTensor:
    inner: HostTensor
    method: QuantizationMethod

    @property
    def shape(self) -> tuple[int, ...]:
        return self.inner.shape

    def float32(self) -> NDArray[np.float32]:
        return self.inner.float32()

    def compact(self, transposed: bool = False) -> CompactMatrix | NDArray[np.float32] | None:
        if len(self.shape) != 2:
            return None
        matrix = self.inner.compact(transposed)
        if isinstance(matrix, (BlockMatrix, QuantizedMatrix)):
            return matrix
        if isinstance(matrix, HalfMatrix):
            values = matrix.dequantized()
        else:
            values = self.inner.float32().T if transposed else self.inner.float32()
        return quantize_int4(values) if self.method == "int4" else quantize_int8(values)

    def cut(self, rows: range, transposed: bool = False) -> HostTensor:
        return replace(self, inner=self.inner.cut(rows, transposed))
