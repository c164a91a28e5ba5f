"""How GPTQ, AWQ and compressed-tensors checkpoints store a module's quantised weight.

Each layout knows the tensors of one module by their suffixes and turns them into GroupCodes. Sources of the formats:
the packing code of AutoGPTQ / GPTQModel, AutoAWQ (version "gemm") and compressed-tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.errors import CheckpointError, UnsupportedError
from octavo.loader.safetensors_weights import SafetensorsWeights
from octavo.quantization.group_codes import GroupCodes, Scales, check_size, unpack

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # output column of each of the 8 codes in an integer


class Layout(Protocol):
    """How one module's weight is stored. suffixes: of the tensors that stand for `module.weight`."""

    @property
    def suffixes(self) -> Sequence[str]: ...

    def read(self, tensors: SafetensorsWeights, module: str, shape: tuple[int, int]) -> GroupCodes:
        """Read [out_features, in_features]. Raises CheckpointError or UnsupportedError."""


@dataclass(frozen=True)
class GptqLayout:
    """Codes packed along the inputs, zero points along the outputs.

    group_size: -1 for one group a row
    zero_offset: what is added to a stored zero point: 1 in the format "gptq", 0 in "gptq_v2"
    """

    bits: int
    group_size: int
    zero_offset: int
    suffixes: Sequence[str] = ("qweight", "qzeros", "scales", "g_idx")

    def read(self, tensors: SafetensorsWeights, module: str, shape: tuple[int, int]) -> GroupCodes:
        out_features, in_features = shape
        group_size = in_features if self.group_size == -1 else self.group_size
        num_groups = -(-in_features // group_size)
        per_integer = 32 // self.bits
        reader = _Reader(tensors, module)
        packed = reader.integers("qweight", (in_features // per_integer, out_features))
        packed_zeros = reader.integers("qzeros", (num_groups, out_features // per_integer))
        scales = reader.scales("scales", (num_groups, out_features))
        if reader.has("g_idx"):
            groups = reader.integers("g_idx", (in_features,))
            if not np.array_equal(groups, np.arange(in_features) // group_size):
                raise UnsupportedError(
                    f"{reader.where('g_idx')}: input features are ordered by activation (desc_act); use a checkpoint "
                    "that was made with desc_act=false"
                )
        zeros = unpack(packed_zeros, self.bits, axis=1).T.astype(np.int32) + self.zero_offset
        codes = np.ascontiguousarray(unpack(packed, self.bits, axis=0).T)
        return GroupCodes(self.bits, codes, scales.T, zeros, group_size)


@dataclass(frozen=True)
class AwqLayout:
    """4-bit codes and zero points packed along the outputs in an order of their own. group_size: -1 for one a row."""

    group_size: int
    suffixes: Sequence[str] = ("qweight", "qzeros", "scales")

    def read(self, tensors: SafetensorsWeights, module: str, shape: tuple[int, int]) -> GroupCodes:
        out_features, in_features = shape
        group_size = in_features if self.group_size == -1 else self.group_size
        num_groups = -(-in_features // group_size)
        reader = _Reader(tensors, module)
        packed = reader.integers("qweight", (in_features, out_features // 8))
        packed_zeros = reader.integers("qzeros", (num_groups, out_features // 8))
        scales = reader.scales("scales", (num_groups, out_features))
        zeros = unpack(packed_zeros, 4, axis=1, order=_AWQ_ORDER).T.astype(np.int32)
        codes = np.ascontiguousarray(unpack(packed, 4, axis=1, order=_AWQ_ORDER).T)
        return GroupCodes(4, codes, scales.T, zeros, group_size)


@dataclass(frozen=True)
class PackedIntLayout:
    """compressed-tensors "pack-quantized": signed codes plus 2^(bits-1), packed along the inputs.

    group_size: -1 for one group a row
    """

    bits: int
    group_size: int
    symmetric: bool
    suffixes: Sequence[str] = ("weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx")

    def read(self, tensors: SafetensorsWeights, module: str, shape: tuple[int, int]) -> GroupCodes:
        out_features, in_features = shape
        group_size = in_features if self.group_size == -1 else self.group_size
        num_groups = -(-in_features // group_size)
        per_integer = 32 // self.bits
        reader = _Reader(tensors, module)
        packed = reader.integers("weight_packed", (out_features, -(-in_features // per_integer)))
        scales = reader.scales("weight_scale", (out_features, num_groups))
        if reader.has("weight_shape"):
            check_size(
                reader.where("weight_shape"),
                module,
                np.empty(shape, np.bool_),
                tuple(reader.integers("weight_shape", (2,))),
            )
        if reader.has("weight_g_idx"):
            groups = reader.integers("weight_g_idx", (in_features,))
            if not np.array_equal(groups, np.arange(in_features) // group_size):
                raise UnsupportedError(f"{reader.where('weight_g_idx')}: actorder='group' is not supported")
        zeros: NDArray[np.int32] | int = 1 << (self.bits - 1)
        if not self.symmetric:
            packed_zeros = reader.integers("weight_zero_point", (-(-out_features // per_integer), num_groups))
            zeros = unpack(packed_zeros, self.bits, axis=0)[:out_features].astype(np.int32)
        codes = np.ascontiguousarray(unpack(packed, self.bits, axis=1)[:, :in_features])
        return GroupCodes(self.bits, codes, scales, zeros, group_size)


@dataclass(frozen=True)
class IntLayout:
    """compressed-tensors "int-quantized": 8-bit codes as they are. group_size: -1 for one group a row."""

    group_size: int
    symmetric: bool
    suffixes: Sequence[str] = ("weight", "weight_scale", "weight_zero_point")

    def read(self, tensors: SafetensorsWeights, module: str, shape: tuple[int, int]) -> GroupCodes:
        group_size = shape[1] if self.group_size == -1 else self.group_size
        num_groups = -(-shape[1] // group_size)
        reader = _Reader(tensors, module)
        codes = reader.integers("weight", shape)
        scales = reader.scales("weight_scale", (shape[0], num_groups))
        zeros: NDArray[np.int32] | int = 128
        if not self.symmetric:
            zeros = reader.integers("weight_zero_point", (shape[0], num_groups)).astype(np.int32) + 128
        return GroupCodes(8, (codes.astype(np.int16) + 128).astype(np.uint8), scales, zeros, group_size)


@dataclass(frozen=True)
class _Reader:
    """The tensors of one module."""

    tensors: SafetensorsWeights
    module: str

    def has(self, suffix: str) -> bool:
        return self.tensors.has(f"{self.module}.{suffix}")

    def where(self, suffix: str) -> str:
        return f"{self.tensors.folder}: tensor '{self.module}.{suffix}'"

    def integers(self, suffix: str, shape: tuple[int, ...]) -> NDArray[np.int32]:
        tensor = self.tensors.get(f"{self.module}.{suffix}", shape)
        if tensor.dtype not in ("I8", "I32", "I64"):
            raise CheckpointError(f"{self.where(suffix)} has the dtype {tensor.dtype}, expected integers")
        array: NDArray[np.int32] = tensor.stored()
        return array

    def scales(self, suffix: str, shape: tuple[int, ...]) -> Scales:
        tensor = self.tensors.get(f"{self.module}.{suffix}", shape)
        if tensor.dtype == "F16":
            halves: NDArray[np.float16] = tensor.stored()
            return halves
        return tensor.float32()
