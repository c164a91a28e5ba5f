"""The tensors of a GGUF file under their Hugging Face names and in the Hugging Face convention."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from octavo.errors import CheckpointError, UnsupportedError
from octavo.loader.compact import GROUP_SIZES, BlockMatrix, CompactMatrix, HalfMatrix
from octavo.loader.cut import CutTensor
from octavo.loader.gguf_file import GGUFFile, GGUFTensorInfo
from octavo.loader.gguf_names import Change, hf_name
from octavo.loader.gguf_reading import attention_heads
from octavo.loader.local_files import PageRelease
from octavo.loader.weights import HostTensor, check_shape
from octavo.log import get_logger

logger = get_logger(__name__)
_T = TypeVar("_T", np.float32, np.uint8)

_HALF_TYPES: Mapping[str, Literal["float16", "bfloat16"]] = {"F16": "float16", "BF16": "bfloat16"}
_FLOAT_TYPES = ("F32", "F64")
# Read by gguf_config as part of the rope parameters; no model asks for them.
_CONFIG_TENSORS = frozenset({"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"})


class GGUFWeights:
    """A WeightSource over one GGUF file; tensors are read from the mapped file when asked for."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self.where = str(file.path)
        num_query_heads, num_key_heads = attention_heads(file)
        heads = {Change.QUERY_ROWS: num_query_heads, Change.KEY_ROWS: num_key_heads}
        self._tensors: dict[str, GGUFTensor] = {}
        self._unknown: list[str] = []
        for info in file.tensors.values():
            target = hf_name(file.architecture, info.name)
            if target is not None:
                self._tensors[target.name] = GGUFTensor(file, info, target.change, heads.get(target.change, 1))
            elif info.name not in _CONFIG_TENSORS:
                self._unknown.append(info.name)
        self._used: set[str] = set()
        self._pages = PageRelease()

    def has(self, name: str) -> bool:
        return name in self._tensors

    def get(self, name: str, shape: tuple[int, ...]) -> GGUFTensor:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise CheckpointError(f"{self._file.path} has no tensor for {name!r}, which the model needs")
        if shape[0] == 1 and tensor.shape == shape[1:]:  # conversions drop axes of one
            tensor = replace(tensor, info=replace(tensor.info, shape=shape))
        check_shape(name, shape, tensor.shape, str(self._file.path))
        self._used.add(name)
        self._pages.before_reading(self._file.buffer_of(tensor.info), tensor.info.size_bytes)
        return tensor

    def stack(self, name: str, shape: tuple[int, int, int]) -> list[GGUFTensor]:
        whole = self.get(name, shape)
        size = whole.info.size_bytes // shape[0]
        places = (whole.info.offset + index * size for index in range(shape[0]))
        infos = (replace(whole.info, shape=shape[1:], offset=place, size_bytes=size) for place in places)
        return [replace(whole, info=info) for info in infos]

    def unused(self) -> list[str]:
        """Return the names that nobody asked for, sorted; tensors unknown to the family keep their GGUF name."""
        return sorted([*(self._tensors.keys() - self._used), *self._unknown])


@dataclass(frozen=True)
class GGUFTensor:
    """One tensor of a GGUF file. num_heads: heads whose rows the conversion reordered, else 1."""

    file: GGUFFile
    info: GGUFTensorInfo
    change: Change
    num_heads: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.info.shape[::-1] if self.change is Change.TRANSPOSED else self.info.shape

    def float32(self) -> NDArray[np.float32]:
        """Dequantise into a C-contiguous array of `shape`; for F32 tensors possibly a read-only view of the file.

        Raises UnsupportedError naming the type when the gguf package cannot dequantise it.
        """
        return np.ascontiguousarray(self._undo_change(dequantize(self.file, self.info)))

    def compact(self, transposed: bool = False) -> CompactMatrix | None:
        """Return the matrix in the file's blocks, or as 16-bit numbers; None for vectors and for every other type."""
        if len(self.info.shape) != 2 or (self.change is Change.TRANSPOSED) != transposed:
            return None
        if self.change is Change.NORM_PLUS_ONE:
            return None
        rows = stored_rows(self.file, self.info)
        if self.change in (Change.QUERY_ROWS, Change.KEY_ROWS):
            rows = _split_rotary_halves(rows, self.num_heads, self)
        kind = _HALF_TYPES.get(self.info.type.name)
        if kind is not None:
            return HalfMatrix(kind, np.require(rows, requirements=["C", "A"]).view(np.uint16))
        if self.info.type.name in GROUP_SIZES:
            return BlockMatrix(self.info.type.name, rows, self.info.shape[1])
        if self.info.type.name not in _FLOAT_TYPES:
            _warn_of_unpacked_type(self.info.type.name, str(self.file.path))
        return None

    def cut(self, rows: range, transposed: bool = False) -> HostTensor:
        return CutTensor(self, rows, transposed)

    def _undo_change(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        if self.change is Change.TRANSPOSED:
            return values.T
        if self.change is Change.NORM_PLUS_ONE:
            return values - np.float32(1)
        if self.change in (Change.QUERY_ROWS, Change.KEY_ROWS):
            return _split_rotary_halves(values, self.num_heads, self)
        return values


@functools.cache
def _warn_of_unpacked_type(type_name: str, path: str) -> None:
    logger.warning(
        "%s: tensors of the type %s are kept and computed in float32, which takes much more memory and time; "
        "prefer a file of another quantisation, such as Q4_K_M",
        path,
        type_name,
    )


def stored_rows(file: GGUFFile, info: GGUFTensorInfo) -> NDArray[np.uint8]:
    """Return a tensor's bytes as they are stored, [rows, bytes of a row]: a view of the file."""
    row_bytes = info.shape[-1] // info.type.block_size * info.type.block_bytes
    return file.tensor_bytes(info).reshape(-1, row_bytes)


def dequantize(file: GGUFFile, info: GGUFTensorInfo) -> NDArray[np.float32]:
    """Return a tensor's values [*info.shape] as stored, in float32.

    Raises UnsupportedError naming the type when the gguf package cannot dequantise it.
    """
    if info.type.name == "F32":
        stored = np.frombuffer(file.tensor_bytes(info), "<f4")
        return np.require(stored, requirements=["A"]).reshape(info.shape)
    from gguf import GGMLQuantizationType  # imported late: 40 ms, and only GGUF models need it
    from gguf.quants import dequantize as dequantize_rows

    # A file may align its data to less than 4 bytes; a view as float32 needs an aligned buffer.
    rows = np.require(stored_rows(file, info), requirements=["C"])
    if rows.ctypes.data % 4:
        rows = rows.copy()
    try:
        values = dequantize_rows(rows, GGMLQuantizationType[info.type.name])
    except (NotImplementedError, KeyError):
        raise UnsupportedError(
            f"{file.path}: tensor {info.name!r} has the type {info.type.name}, which cannot be dequantised; "
            "use a file with another quantisation"
        ) from None
    result: NDArray[np.float32] = values.astype(np.float32, copy=False).reshape(info.shape)
    return result


def _split_rotary_halves(values: NDArray[_T], num_heads: int, tensor: GGUFTensor) -> NDArray[_T]:
    """Reorder each head's rows from rotary pairs (2i, 2i+1) to Hugging Face's (i, i + head_dim / 2)."""
    num_rows = values.shape[0]
    if num_rows % (2 * num_heads):
        raise CheckpointError(
            f"{tensor.file.path}: tensor {tensor.info.name!r} has {num_rows} rows, not a multiple of twice its "
            f"{num_heads} heads"
        )
    pairs = values.reshape(num_heads, num_rows // num_heads // 2, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)
