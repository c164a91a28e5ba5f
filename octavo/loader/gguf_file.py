"""A GGUF file: its metadata and where its tensors lie. Knows the container; knows no model and no quantisation.

The format (versions 2 and 3, little-endian) is described in ggml's docs/gguf.md. Nothing in the file is believed:
every count, length, offset and type is checked against the bytes that are really there before anything is allocated.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from octavo.errors import CheckpointError
from octavo.loader.gguf_types import ARRAY_TYPE, SCALAR_FORMATS, STRING_TYPE, TENSOR_TYPES, TensorType
from octavo.loader.local_files import map_file, release_pages

MetadataValue = bool | int | float | str | list[str] | NDArray[np.generic]
_T = TypeVar("_T", bool, int, float, str)

# llama.cpp's names for the files of a model that was split
SPLIT_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_HEADER_BYTES = 24
_MIN_METADATA_BYTES = 8 + 4 + 1  # key length, value type, the smallest value
_MIN_TENSOR_INFO_BYTES = 8 + 4 + 8 + 4 + 8  # name length, number of dimensions, one dimension, type, offset
_MAX_DIMENSIONS = 4  # GGML_MAX_DIMS
_DEFAULT_ALIGNMENT = 32
_MAX_QUOTED = 80  # characters of a name from the file that an error repeats


@dataclass(frozen=True)
class GGUFTensorInfo:
    """Where one tensor lies: shape in NumPy order (the file has it reversed), offset from the file's start.

    part: number of the file of a split model, from 0
    """

    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int
    size_bytes: int
    part: int = 0


class GGUFFile:
    """An opened GGUF file, mapped into memory; of a split model its first, with the tensors of all.

    metadata: key -> bool, int, float, str; arrays of strings are list[str], arrays of numbers are NumPy arrays
    tensors: name -> GGUFTensorInfo, in the file's order

    Raises CheckpointError, saying what is wrong and where, for anything that is not a well-formed file.
    """

    path: Path
    version: int
    metadata: Mapping[str, MetadataValue]
    tensors: Mapping[str, GGUFTensorInfo]

    def __init__(self, path: Path) -> None:
        self.path = path
        first = _read_container(path, 0)
        self.version, self.metadata = first.version, first.metadata
        self._buffers = [first.buffer]
        tensors = dict(first.tensors)
        for number, part_path in enumerate(self._other_parts(), 1):
            part = _read_container(part_path, number)
            for name in tensors.keys() & part.tensors.keys():
                raise CheckpointError(f"{part_path}: tensor {_brief(name)} is in an earlier part of the model too")
            tensors |= part.tensors
            self._buffers.append(part.buffer)
        self.tensors = tensors
        num_tensors = self.get("split.tensors.count", int)
        if len(self._buffers) > 1 and num_tensors not in (None, len(tensors)):
            raise CheckpointError(f"{path} and its other parts have {len(tensors)} tensors, not {num_tensors}")

    def _other_parts(self) -> list[Path]:
        """Return the further files of a split model, which lie beside this one."""
        count = self.get("split.count", int) or 1
        if count == 1:
            return []
        name = SPLIT_NAME.fullmatch(self.path.name)
        if name is None or int(name["count"]) != count or int(name["number"]) != 1:
            raise CheckpointError(
                f"{self.path} is one of {count} files of a split model; give the first, whose name ends with "
                f"-00001-of-{count:05}.gguf, and keep the others beside it under their own names"
            )
        return [self.path.with_name(part_name(name["stem"], number, count)) for number in range(2, count + 1)]

    @property
    def architecture(self) -> str:
        """Return general.architecture, the model family that the keys are prefixed with."""
        return self.require("general.architecture", str)

    def get(self, key: str, kind: type[_T]) -> _T | None:
        """Return a scalar of the given Python type, or None when the key is absent; an int passes as a float."""
        value = self.metadata.get(key)
        if value is None:
            return None
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return kind(value)
        if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
        raise CheckpointError(f"{self.path}: metadata {key!r} must be of type {kind.__name__}, got {_brief(value)}")

    def require(self, key: str, kind: type[_T]) -> _T:
        """Return a scalar of the given Python type; an absent key is an error."""
        value = self.get(key, kind)
        if value is None:
            raise CheckpointError(f"{self.path}: metadata has no {key!r}, which this model needs")
        return value

    def strings(self, key: str) -> list[str] | None:
        """Return an array of strings, or None when the key is absent."""
        value = self.metadata.get(key)
        if value is None or isinstance(value, list):
            return value
        raise CheckpointError(f"{self.path}: metadata {key!r} must be an array of strings, got {_brief(value)}")

    def numbers(self, key: str) -> NDArray[np.generic] | None:
        """Return an array of numbers, or None when the key is absent."""
        value = self.metadata.get(key)
        if value is None or isinstance(value, np.ndarray):
            return value
        raise CheckpointError(f"{self.path}: metadata {key!r} must be an array of numbers, got {_brief(value)}")

    def buffer_of(self, info: GGUFTensorInfo) -> mmap.mmap:
        """Return the mapped file that holds a tensor."""
        return self._buffers[info.part]

    def release_pages(self) -> None:
        """Let go of what was read of the file: it adds to the memory of nobody who goes on without it."""
        for buffer in self._buffers:
            release_pages(buffer)

    def tensor_bytes(self, info: GGUFTensorInfo) -> NDArray[np.uint8]:
        """Return a tensor's stored bytes [size_bytes]: a read-only view of the mapped file."""
        return np.frombuffer(self.buffer_of(info), dtype=np.uint8, count=info.size_bytes, offset=info.offset)


def part_name(stem: str, number: int, count: int) -> str:
    """Return the name of a file of a split model, by its number from 1."""
    return f"{stem}-{number:05}-of-{count:05}.gguf"


@dataclass(frozen=True)
class _Container:
    buffer: mmap.mmap
    version: int
    metadata: dict[str, MetadataValue]
    tensors: dict[str, GGUFTensorInfo]


def _read_container(path: Path, part: int) -> _Container:
    """Map and read one file. part: its number in a split model, from 0"""
    buffer = map_file(path, "GGUF", _HEADER_BYTES)
    reader = _Reader(buffer, path)
    version, num_tensors, num_values = _read_header(reader)
    metadata = _read_metadata(reader, num_values)
    if part and metadata.get("split.no") != part:
        raise CheckpointError(f"{path}: 'split.no' must be {part}, got {_brief(metadata.get('split.no'))}")
    tensors = _read_tensor_infos(reader, num_tensors, _alignment(metadata, reader), part)
    return _Container(buffer, version, metadata, tensors)


class _Reader:
    """A position in the file that never moves past its end."""

    def __init__(self, buffer: mmap.mmap, path: Path) -> None:
        self.buffer = buffer
        self.path = path
        self.size = len(buffer)
        self.position = 0

    def error(self, message: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: malformed GGUF file at byte {self.position}: {message}")

    def require(self, size_bytes: int, what: str) -> None:
        """Raise unless that many bytes are left."""
        left = self.size - self.position
        if size_bytes > left:
            raise self.error(f"{what} needs {size_bytes} bytes but only {left} are left; the file may be truncated")

    def scalar(self, fmt: str, what: str) -> int | float | bool:
        size = struct.calcsize(fmt)
        self.require(size, what)
        value: int | float | bool = struct.unpack_from(fmt, self.buffer, self.position)[0]
        self.position += size
        return value

    def unsigned32(self, what: str) -> int:
        return int(self.scalar("<I", what))

    def unsigned64(self, what: str) -> int:
        return int(self.scalar("<Q", what))

    def string(self, what: str) -> str:
        length = self.unsigned64(f"the length of {what}")
        self.require(length, what)
        raw = self.buffer[self.position : self.position + length]
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.error(f"{what} is not valid UTF-8") from None
        self.position += length
        return text

    def strings(self, count: int, what: str) -> list[str]:
        """Read `count` strings; the loop is inlined because vocabularies have hundreds of thousands of them."""
        self.require(count * 8, what)
        buffer, size, position = self.buffer, self.size, self.position
        unpack_length = struct.Struct("<Q").unpack_from
        texts: list[str] = []
        for index in range(count):
            if position + 8 > size:
                self.position = position
                raise self.error(f"{what} ends after {index} of {count} strings; the file may be truncated")
            start = position + 8
            end = start + unpack_length(buffer, position)[0]
            if end > size:
                self.position = position
                raise self.error(f"string {index} of {what} has a length of {end - start} bytes, past the file's end")
            try:
                texts.append(buffer[start:end].decode("utf-8"))
            except UnicodeDecodeError:
                self.position = start
                raise self.error(f"string {index} of {what} is not valid UTF-8") from None
            position = end
        self.position = position
        return texts


def _read_header(reader: _Reader) -> tuple[int, int, int]:
    """Return the version, the number of tensors and the number of metadata values."""
    magic = reader.buffer[:4]
    if magic != _MAGIC:
        raise CheckpointError(f"{reader.path}: not a GGUF file: it starts with {magic!r}, not {_MAGIC!r}")
    reader.position = 4
    version = reader.unsigned32("the version")
    if version not in _VERSIONS:
        if version and version & 0xFFFF == 0:
            raise CheckpointError(f"{reader.path}: big-endian GGUF is not supported; convert it to little-endian")
        raise CheckpointError(
            f"{reader.path}: GGUF version {version} is not supported, only 2 and 3; convert the model again"
        )
    num_tensors = reader.unsigned64("the tensor count")
    num_values = reader.unsigned64("the metadata count")
    reader.require(num_values * _MIN_METADATA_BYTES, f"a metadata count of {num_values}")
    reader.require(num_tensors * _MIN_TENSOR_INFO_BYTES, f"a tensor count of {num_tensors}")
    return version, num_tensors, num_values


def _read_metadata(reader: _Reader, num_values: int) -> dict[str, MetadataValue]:
    metadata: dict[str, MetadataValue] = {}
    for index in range(num_values):
        key = reader.string(f"metadata key {index} of {num_values}")
        if key in metadata:
            raise reader.error(f"metadata key {_brief(key)} appears twice")
        metadata[key] = _read_value(reader, f"metadata {_brief(key)}")
    return metadata


def _read_value(reader: _Reader, what: str) -> MetadataValue:
    type_id = reader.unsigned32(f"the type of {what}")
    if type_id == STRING_TYPE:
        return reader.string(what)
    if type_id == ARRAY_TYPE:
        return _read_array(reader, what)
    if type_id not in SCALAR_FORMATS:
        raise reader.error(f"{what} has the unknown value type {type_id}")
    return reader.scalar(SCALAR_FORMATS[type_id], what)


def _read_array(reader: _Reader, what: str) -> list[str] | NDArray[np.generic]:
    type_id = reader.unsigned32(f"the element type of {what}")
    count = reader.unsigned64(f"the length of {what}")
    if type_id == STRING_TYPE:
        return reader.strings(count, what)
    if type_id not in SCALAR_FORMATS:
        kind = "arrays (nesting is not supported)" if type_id == ARRAY_TYPE else f"the unknown type {type_id}"
        raise reader.error(f"{what} is an array of {kind}")
    dtype = np.dtype(SCALAR_FORMATS[type_id])
    reader.require(count * dtype.itemsize, f"{what}, an array of {count} elements,")
    # A copy: a view would keep the whole file mapped, and vocabularies outlive the weights.
    values = np.frombuffer(reader.buffer, dtype=dtype, count=count, offset=reader.position).copy()
    reader.position += count * dtype.itemsize
    return values


def _alignment(metadata: Mapping[str, MetadataValue], reader: _Reader) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if isinstance(alignment, bool) or not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise reader.error(f"general.alignment must be a power of two, got {_brief(alignment)}")
    return alignment


def _read_tensor_infos(reader: _Reader, num_tensors: int, alignment: int, part: int) -> dict[str, GGUFTensorInfo]:
    infos: dict[str, GGUFTensorInfo] = {}
    for index in range(num_tensors):
        info = _read_tensor_info(reader, f"tensor {index} of {num_tensors}")
        if info.name in infos:
            raise reader.error(f"tensor {_brief(info.name)} appears twice")
        infos[info.name] = info
    data_start = (reader.position + alignment - 1) // alignment * alignment
    return {name: replace(_place(info, data_start, alignment, reader), part=part) for name, info in infos.items()}


def _read_tensor_info(reader: _Reader, what: str) -> GGUFTensorInfo:
    """Read one entry; its offset still counts from the start of the data."""
    name = reader.string(f"the name of {what}")
    what = f"tensor {_brief(name)}"
    num_dimensions = reader.unsigned32(f"the number of dimensions of {what}")
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        raise reader.error(f"{what} has {num_dimensions} dimensions, expected 1 to {_MAX_DIMENSIONS}")
    dimensions = [reader.unsigned64(f"the dimensions of {what}") for _ in range(num_dimensions)]
    type_id = reader.unsigned32(f"the type of {what}")
    tensor_type = TENSOR_TYPES.get(type_id)
    if tensor_type is None:
        raise reader.error(f"{what} has the unknown element type {type_id}")
    if 0 in dimensions:
        raise reader.error(f"{what} is empty: its dimensions are {dimensions}")
    if dimensions[0] % tensor_type.block_size:
        raise reader.error(
            f"{what} has rows of {dimensions[0]} elements, but {tensor_type.name} needs a multiple of "
            f"{tensor_type.block_size}"
        )
    size_bytes = math.prod(dimensions) // tensor_type.block_size * tensor_type.block_bytes
    offset = reader.unsigned64(f"the offset of {what}")
    return GGUFTensorInfo(name, tuple(reversed(dimensions)), tensor_type, offset, size_bytes)


def _place(info: GGUFTensorInfo, data_start: int, alignment: int, reader: _Reader) -> GGUFTensorInfo:
    """Turn an offset within the data into one within the file, checked."""
    if info.offset % alignment:
        raise reader.error(f"tensor {_brief(info.name)} has the offset {info.offset}, not a multiple of {alignment}")
    start = data_start + info.offset
    if start + info.size_bytes > reader.size:
        raise reader.error(
            f"tensor {_brief(info.name)} ends at byte {start + info.size_bytes}, but the file has {reader.size}; "
            "it may be truncated"
        )
    return replace(info, offset=start)


def _brief(value: object) -> str:
    """Return repr(value), cut to a length that an error message can carry."""
    text = repr(value[:_MAX_QUOTED] if isinstance(value, (str, list)) else value)
    return text if len(text) <= 2 * _MAX_QUOTED else text[: 2 * _MAX_QUOTED] + "…"
