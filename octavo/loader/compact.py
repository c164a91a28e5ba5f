"""Matrices in the compact formats of checkpoints: what a backend can pack without rounding the weights again.

The seam between files and `Ops.pack`: a loader hands these out, a backend lays them out as its kernels want them. Rows
are output features; groups run along the input features, so that rows can be selected and reordered freely.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

# GGUF types whose blocks hold groups of small integers with scales, and the elements in a group.
GROUP_SIZES = {
    "Q4_0": 32,
    "Q4_1": 32,
    "Q5_0": 32,
    "Q5_1": 32,
    "Q8_0": 32,
    "Q2_K": 16,
    "Q3_K": 16,
    "Q4_K": 32,
    "Q5_K": 32,
    "Q6_K": 16,
    "IQ4_NL": 32,
    "IQ4_XS": 32,
    "MXFP4": 32,
}  # fmt: skip


@dataclass(frozen=True)
class BlockMatrix:
    """Rows of GGUF blocks: a view of the file, or a copy of its bytes when rows were reordered.

    type_name: ggml's name, a key of GROUP_SIZES
    blocks: [out_features, bytes of a row] uint8
    """

    type_name: str
    blocks: NDArray[np.uint8]
    in_features: int

    @property
    def out_features(self) -> int:
        return int(self.blocks.shape[0])

    @property
    def group_size(self) -> int:
        return GROUP_SIZES[self.type_name]

    def dequantized(self) -> NDArray[np.float32]:
        """Return the weights [out_features, in_features], as the gguf package defines them."""
        from gguf import GGMLQuantizationType  # imported late: 40 ms, and only GGUF models need it
        from gguf.quants import dequantize

        blocks = np.require(self.blocks, requirements=["C", "A"])
        values: NDArray[np.float32] = dequantize(blocks, GGMLQuantizationType[self.type_name])
        return values.reshape(self.out_features, self.in_features)


@dataclass(frozen=True)
class QuantizedMatrix:
    """w = scale * code + minimum, for groups of input features.

    bits: 4 or 8
    group_size: 16 or 32; the last group may be shorter where there are no minimums
    codes: [out_features, in_features]; 4-bit codes are uint8 0 .. 15 with minimums and int8 -8 .. 7 without; 8-bit
        codes are int8
    scales, minimums: [out_features, groups], both float32 or both float16
    """

    bits: int
    group_size: int
    codes: NDArray[np.int8] | NDArray[np.uint8]
    scales: NDArray[np.float32] | NDArray[np.float16]
    minimums: NDArray[np.float32] | NDArray[np.float16] | None = None

    @staticmethod
    def rounded(values: NDArray[np.float32], group_size: int) -> QuantizedMatrix:
        """Round to 8 bits and float16 scales: each value by at most 1/254 (and a little) of the largest of its group.

        values: finite, and at most 1, so that float16 can hold what matters
        """
        out_features, in_features = values.shape
        padded = np.zeros((out_features, -(-in_features // group_size) * group_size), np.float32)
        padded[:, :in_features] = values
        groups = padded.reshape(out_features, -1, group_size)
        scales = (np.abs(groups).max(axis=-1) / np.float32(127)).astype(np.float16)
        steps = np.where(scales > 0, scales, np.float16(1)).astype(np.float32)[..., None]
        codes = np.clip(np.rint(groups / steps), -127, 127) * (scales > 0)[..., None]
        return QuantizedMatrix(8, group_size, codes.reshape(padded.shape)[:, :in_features].astype(np.int8), scales)

    @property
    def out_features(self) -> int:
        return int(self.codes.shape[0])

    @property
    def in_features(self) -> int:
        return int(self.codes.shape[1])

    def dequantized(self) -> NDArray[np.float32]:
        """Return the weights [out_features, in_features] in float32."""
        group_of = np.arange(self.in_features) // self.group_size
        values: NDArray[np.float32] = self.scales.astype(np.float32)[:, group_of] * self.codes
        if self.minimums is not None:
            values += self.minimums.astype(np.float32)[:, group_of]
        return values


@dataclass(frozen=True)
class HalfMatrix:
    """Weights of 16 bits, kept as they are and multiplied in float32.

    kind: float16 or bfloat16
    bits: [out_features, in_features] uint16
    """

    kind: Literal["float16", "bfloat16"]
    bits: NDArray[np.uint16]

    @staticmethod
    def rounded(kind: Literal["float16", "bfloat16"], values: NDArray[np.float32]) -> HalfMatrix:
        """Round to the nearest, ties to even; what is too large becomes infinite."""
        if kind == "float16":
            with np.errstate(over="ignore"):
                return HalfMatrix(kind, values.astype(np.float16).view(np.uint16))
        bits = values.view(np.uint32)
        return HalfMatrix(kind, ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16))

    @property
    def out_features(self) -> int:
        return int(self.bits.shape[0])

    @property
    def in_features(self) -> int:
        return int(self.bits.shape[1])

    def dequantized(self) -> NDArray[np.float32]:
        """Return the weights [out_features, in_features] in float32, exactly."""
        if self.kind == "float16":
            return self.bits.view(np.float16).astype(np.float32)
        return (self.bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


CompactMatrix = BlockMatrix | QuantizedMatrix | HalfMatrix
