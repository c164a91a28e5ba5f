"""Integer codes with scales and zero points, as quantised safetensors checkpoints hold them, into a QuantizedMatrix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.errors import CheckpointError
from octavo.loader.compact import QuantizedMatrix

Scales = NDArray[np.float32] | NDArray[np.float16]

_GROUP_SIZES = (32, 16)  # what QuantizedMatrix knows; larger groups repeat their scales


@dataclass(frozen=True)
class GroupCodes:
    """w = scale * (code - zero) per group of consecutive input features.

    codes: [out_features, in_features] uint8, 0 .. 2^bits - 1
    scales: [out_features, groups] float32, or float16 where the checkpoint has that
    zeros: [out_features, groups] int32, or one number for all
    group_size: input features that share a scale; the last group may be shorter
    """

    bits: int
    codes: NDArray[np.uint8]
    scales: Scales
    zeros: NDArray[np.int32] | int
    group_size: int

    def dequantized(self) -> NDArray[np.float32]:
        """Return [out_features, in_features] float32."""
        group_of = np.arange(self.codes.shape[1]) // self.group_size
        zeros = self.zeros if isinstance(self.zeros, int) else self.zeros[:, group_of]
        differences = (self.codes.astype(np.int32) - zeros).astype(np.float32)
        values: NDArray[np.float32] = self.scales.astype(np.float32)[:, group_of] * differences
        return values

    def matrix(self) -> QuantizedMatrix | None:
        """Return the same weights in groups of 16 or 32, or None where these do not fit into the groups."""
        group_size = next((size for size in _GROUP_SIZES if self.group_size % size == 0), None)
        in_features = self.codes.shape[1]
        middle = 1 << (self.bits - 1)
        symmetric = bool(np.all(np.asarray(self.zeros) == middle))
        one_group = self.group_size >= in_features
        if one_group:
            group_size = 32
        if group_size is None or (not symmetric and in_features % group_size):
            return None
        num_groups = -(-in_features // group_size)
        group_of = np.zeros(num_groups, np.intp) if one_group else np.arange(num_groups) * group_size // self.group_size
        scales: Scales = np.ascontiguousarray(self.scales[:, group_of])  # type: ignore[assignment]
        signed = (self.codes.astype(np.int16) - middle).astype(np.int8)
        if symmetric:
            return QuantizedMatrix(self.bits, group_size, signed, scales)
        offset = np.asarray(self.zeros, np.int32) - (0 if self.bits == 4 else middle)
        minimums = (-self.scales.astype(np.float32) * np.broadcast_to(offset, self.scales.shape))[:, group_of]
        return _with_minimums(self.bits, group_size, self.codes if self.bits == 4 else signed, scales, minimums)


def _with_minimums(
    bits: int,
    group_size: int,
    codes: NDArray[np.uint8] | NDArray[np.int8],
    scales: Scales,
    minimums: NDArray[np.float32],
) -> QuantizedMatrix:
    """Keep float16 scales only where the minimums are exact in float16 too."""
    if scales.dtype == np.float16:
        with np.errstate(over="ignore"):
            halves = minimums.astype(np.float16)
        if np.array_equal(halves.astype(np.float32), minimums):
            return QuantizedMatrix(bits, group_size, codes, scales, halves)
    return QuantizedMatrix(bits, group_size, codes, scales.astype(np.float32), np.ascontiguousarray(minimums))


def unpack(packed: NDArray[np.int32], bits: int, axis: int, order: tuple[int, ...] | None = None) -> NDArray[np.uint8]:
    """Unpack the codes in 32-bit integers along an axis (0 or 1), the lowest bits first.

    order: the place of each code of an integer among the codes it unpacks to; None: in order
    """
    per_integer = 32 // bits
    shifts = np.arange(per_integer, dtype=np.uint32) * np.uint32(bits)
    codes = np.empty((*packed.shape, per_integer), np.uint8)
    words = packed.view(np.uint32)
    for index, shift in enumerate(shifts):
        codes[..., index if order is None else order[index]] = (words >> shift) & np.uint32((1 << bits) - 1)
    if axis == 0:
        codes = codes.transpose(0, 2, 1)
        return np.ascontiguousarray(codes.reshape(-1, packed.shape[1]))
    return codes.reshape(packed.shape[0], -1)


def check_size(source: str, name: str, array: NDArray[np.generic], expected: tuple[int, ...]) -> None:
    """Raise CheckpointError unless a tensor of a quantised module has the shape that its weight needs."""
    if array.shape != expected:
        raise CheckpointError(
            f"{source}: tensor {name!r} has shape {list(array.shape)}, expected {list(expected)}; the weights, the "
            "config and its quantization_config are not of the same model"
        )
