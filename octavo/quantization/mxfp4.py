"""A weight source over a checkpoint whose experts are MXFP4: 4-bit floats, with a power of two for 32 of them.

As gpt-oss has them: `name`_blocks [N, out, groups, 16] uint8, two numbers in a byte, and `name`_scales [N, out, groups]
uint8, exponents plus 127, in place of a tensor `name` [N, in, out]. Everything else has plain weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from octavo.errors import CheckpointError
from octavo.loader.compact import BlockMatrix
from octavo.loader.cut import as_slice
from octavo.loader.safetensors_weights import SafetensorsWeights
from octavo.loader.weights import HostTensor

_GROUP = 32


class Mxfp4Weights:
    """Stacks that are MXFP4 look like any stored [N, in, out]; see `WeightSource`."""

    def __init__(self, tensors: SafetensorsWeights) -> None:
        self._tensors = tensors
        self.where = tensors.where
        self.get = tensors.get
        self.unused = tensors.unused

    def has(self, name: str) -> bool:
        return self._tensors.has(name) or self._tensors.has(f"{name}_blocks")

    def stack(self, name: str, shape: tuple[int, int, int]) -> Sequence[HostTensor]:
        if not self._tensors.has(f"{name}_blocks"):
            return self._tensors.stack(name, shape)
        count, in_features, out_features = shape
        groups = -(-in_features // _GROUP)  # a remainder is refused by its shape
        blocks = self._bytes(f"{name}_blocks", (count, out_features, groups, _GROUP // 2))
        scales = self._bytes(f"{name}_scales", (count, out_features, groups))
        return [_Mxfp4Tensor(one, of_it, True) for one, of_it in zip(blocks, scales, strict=True)]

    def _bytes(self, name: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        tensor = self._tensors.get(name, shape)
        if tensor.dtype != "U8":
            raise CheckpointError(f"{self.where}: tensor {name!r} must be U8, as MXFP4 is stored, got {tensor.dtype}")
        return tensor.stored()


@dataclass(frozen=True)
class _Mxfp4Tensor:
    """blocks: [out, groups, 16], scales: [out, groups]; transposed: it has the shape [in, out]."""

    blocks: NDArray[np.uint8]
    scales: NDArray[np.uint8]
    transposed: bool

    @property
    def shape(self) -> tuple[int, ...]:
        out_features, groups, _ = self.blocks.shape
        return (groups * _GROUP, out_features) if self.transposed else (out_features, groups * _GROUP)

    def float32(self) -> NDArray[np.float32]:
        values = self._matrix().dequantized()
        return np.ascontiguousarray(values.T) if self.transposed else values

    def compact(self, transposed: bool = False) -> BlockMatrix | None:
        return self._matrix() if transposed == self.transposed else None

    def cut(self, rows: range, transposed: bool = False) -> HostTensor:
        assert transposed == self.transposed, "rows are output features"
        own = as_slice(rows)
        return replace(self, blocks=self.blocks[own], scales=self.scales[own], transposed=False)

    def _matrix(self) -> BlockMatrix:
        """Return ggml's blocks: the exponent, then in byte i the numbers i and i + 16, which here are 2i and 2i + 1."""
        first, second = self.blocks[..., :8], self.blocks[..., 8:]
        out_features, groups, _ = self.blocks.shape
        stored = np.empty((out_features, groups, 17), np.uint8)
        stored[..., 0] = self.scales
        stored[..., 1::2] = first & 15 | second << 4
        stored[..., 2::2] = first >> 4 | second & 0xF0
        return BlockMatrix("MXFP4", stored.reshape(out_features, groups * 17), groups * _GROUP)
