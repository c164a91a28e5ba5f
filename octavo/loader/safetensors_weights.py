"""The tensors of safetensors files, single or sharded, in float32. Reads the format itself: no PyTorch, no copies.

The format (huggingface/safetensors, README): 8 bytes little-endian header length, a JSON header that gives each
tensor's dtype, shape and byte range, then the data. Nothing in it is believed before it is checked.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from octavo.errors import CheckpointError, UnsupportedError
from octavo.loader.compact import CompactMatrix, HalfMatrix
from octavo.loader.cut import CutTensor
from octavo.loader.local_files import PageRelease, map_file, read_json_object
from octavo.loader.weights import HostTensor, check_shape

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

# What can be read as float32, token ids too; NumPy has no bfloat16, so it is read as its bits.
_READABLE_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I32": "<i4", "I64": "<i8"}
_STORED_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I8": "i1", "U8": "u1", "I32": "<i4", "I64": "<i8"}
_HALF_KINDS: Mapping[str, Literal["float16", "bfloat16"]] = {"F16": "float16", "BF16": "bfloat16"}
_DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16,
    "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6,
    "F6_E3M2": 6,
}  # fmt: skip
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit


class SafetensorsWeights:
    """A WeightSource over the safetensors files of a folder; tensors are read from the mapped files when asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.where = str(folder)
        self._tensors = read_folder(folder)
        self._used: set[str] = set()
        self._pages = PageRelease()

    def has(self, name: str) -> bool:
        return name in self._tensors

    def get(self, name: str, shape: tuple[int, ...]) -> SafetensorsTensor:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise CheckpointError(f"{self.folder} has no tensor {name!r}, which the model needs{self._renamed(name)}")
        check_shape(name, shape, tensor.shape, str(tensor.file.path))
        self._used.add(name)
        self._pages.before_reading(tensor.file.buffer, math.prod(shape) * _DTYPE_BITS[tensor.dtype] // 8)
        return tensor

    def stack(self, name: str, shape: tuple[int, int, int]) -> list[SafetensorsTensor]:
        whole = self.get(name, shape)
        size = math.prod(shape[1:]) * _DTYPE_BITS[whole.dtype] // 8
        return [replace(whole, shape=shape[1:], offset=whole.offset + index * size) for index in range(shape[0])]

    def _renamed(self, name: str) -> str:
        """Return a hint at the tensor under another prefix, as training programs and wrapped models leave it."""
        found = next(
            (other for other in self._tensors if other.endswith(f".{name}") or name.endswith(f".{other}")), None
        )
        return f"; there is {found!r}: save the checkpoint under the names that Transformers has" if found else ""

    def unused(self) -> list[str]:
        return sorted(self._tensors.keys() - self._used)


@dataclass(frozen=True)
class SafetensorsTensor:
    """One tensor of a safetensors file. offset: bytes from the file's start."""

    file: SafetensorsFile
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    def float32(self) -> NDArray[np.float32]:
        """Return a C-contiguous array of `shape`; for F32 a read-only view of the file.

        Raises UnsupportedError naming the dtype when it is a float below 16 bits or an integer below 32.
        """
        if self.dtype not in _READABLE_DTYPES:
            raise UnsupportedError(
                f"{self.file.path}: tensor {self.name!r} has the dtype {self.dtype}; only "
                f"{', '.join(_READABLE_DTYPES)} are supported"
            )
        stored = np.frombuffer(
            self.file.buffer, dtype=_READABLE_DTYPES[self.dtype], count=math.prod(self.shape), offset=self.offset
        ).reshape(self.shape)
        if self.dtype == "BF16":  # the upper half of a float32
            return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
        # Headers may end at an odd address; a copy is aligned.
        return np.require(stored.astype(np.float32, copy=False), requirements=["C", "A"])

    def stored(self) -> NDArray[Any]:
        """Return a C-contiguous array of `shape` of the dtype that is stored; not for bfloat16 and smaller floats."""
        dtype = _STORED_DTYPES[self.dtype]
        stored = np.frombuffer(self.file.buffer, dtype, math.prod(self.shape), self.offset).reshape(self.shape)
        return np.require(stored, requirements=["C", "A"])

    def compact(self, transposed: bool = False) -> CompactMatrix | None:
        """Return a 16-bit matrix as it is: a view of the file where that can be. None for other dtypes."""
        kind = _HALF_KINDS.get(self.dtype)
        if kind is None or len(self.shape) != 2:
            return None
        stored = np.frombuffer(self.file.buffer, "<u2", math.prod(self.shape), self.offset).reshape(self.shape)
        return HalfMatrix(kind, np.require(stored.T if transposed else stored, requirements=["C", "A"]))

    def cut(self, rows: range, transposed: bool = False) -> HostTensor:
        return CutTensor(self, rows, transposed)


class SafetensorsFile:
    """An opened safetensors file, mapped into memory, with its checked header."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.buffer = map_file(path, "safetensors", 8)
        self.tensors = {name: self._tensor(name, entry) for name, entry in self._read_header().items()}

    def _read_header(self) -> dict[str, Any]:
        length = int.from_bytes(self.buffer[:8], "little")
        left = len(self.buffer) - 8
        if length > min(left, _MAX_HEADER_BYTES):
            raise self._error(f"the header should have {length} bytes but only {left} follow; it may be truncated")
        self._data_start = 8 + length
        try:
            header = json.loads(self.buffer[8 : self._data_start])
        except (ValueError, RecursionError) as error:
            raise self._error(f"the header is not valid JSON ({error})") from None
        if not isinstance(header, dict):
            raise self._error("the header is not a JSON object")
        header.pop("__metadata__", None)
        return header

    def _tensor(self, name: str, entry: Any) -> SafetensorsTensor:
        """Check one header entry: known dtype, sane shape, and a byte range inside the file of just the right size."""
        if not isinstance(entry, Mapping) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
            raise self._error(f"tensor {name!r} needs dtype, shape and data_offsets, got {str(entry)[:200]}")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in _DTYPE_BITS:
            raise self._error(f"tensor {name!r} has the unknown dtype {str(dtype)[:40]!r}")
        if not _is_sizes(shape):
            raise self._error(f"tensor {name!r} has the shape {str(shape)[:200]}, expected sizes of 0 or more")
        if not _is_sizes(offsets) or len(offsets) != 2:
            raise self._error(f"tensor {name!r} has data_offsets {str(offsets)[:200]}, expected [start, end]")
        start, end = offsets
        size_bytes = math.prod(shape) * _DTYPE_BITS[dtype] // 8
        if end - start != size_bytes:
            raise self._error(
                f"tensor {name!r} is {dtype} {list(shape)}, {size_bytes} bytes, but its data_offsets {start}..{end} "
                f"span {end - start}"
            )
        if self._data_start + end > len(self.buffer):
            raise self._error(
                f"tensor {name!r} ends at byte {self._data_start + end}, but the file has {len(self.buffer)}; it may "
                "be truncated"
            )
        return SafetensorsTensor(self, name, dtype, tuple(shape), self._data_start + start)

    def _error(self, message: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: malformed safetensors file: {message}")


def read_folder(folder: Path) -> dict[str, SafetensorsTensor]:
    """Open every safetensors file that the folder's index names (or all there are) and return its tensors by name."""
    index = folder / INDEX_FILE
    if index.is_file():
        return _read_sharded(folder, _read_index(index))
    single = folder / SINGLE_FILE
    paths = [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
    if not paths:
        raise CheckpointError(f"{folder} has no safetensors file: expected {SINGLE_FILE} or {INDEX_FILE}")
    tensors: dict[str, SafetensorsTensor] = {}
    for path in paths:
        for name, tensor in SafetensorsFile(path).tensors.items():
            if name in tensors:
                raise CheckpointError(f"tensor {name!r} is in both {tensors[name].file.path} and {path}")
            tensors[name] = tensor
    return tensors


def _read_index(path: Path) -> dict[str, str]:
    """Return the index's map of tensor name to shard file name."""
    weight_map = read_json_object(path).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise CheckpointError(f"{path} has no 'weight_map' of tensor names to file names")
    outside = sorted({shard for shard in weight_map.values() if Path(shard).name != shard})
    if outside:
        raise CheckpointError(f"{path} names shards outside its folder: {', '.join(outside[:5])}")
    return weight_map


def _read_sharded(folder: Path, weight_map: Mapping[str, str]) -> dict[str, SafetensorsTensor]:
    shards = sorted(set(weight_map.values()))
    missing = [shard for shard in shards if not (folder / shard).is_file()]
    if missing:
        raise CheckpointError(
            f"{folder}: {len(missing)} of {len(shards)} shards named in {INDEX_FILE} are missing: "
            f"{', '.join(missing[:10])}; download them again"
        )
    files = {shard: SafetensorsFile(folder / shard) for shard in shards}
    absent = [name for name, shard in weight_map.items() if name not in files[shard].tensors]
    if absent:
        name = absent[0]
        raise CheckpointError(
            f"{folder}: {INDEX_FILE} says that tensor {name!r} is in {weight_map[name]}, but it is not "
            f"({len(absent)} such tensors)"
        )
    return {name: files[shard].tensors[name] for name, shard in weight_map.items()}


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
