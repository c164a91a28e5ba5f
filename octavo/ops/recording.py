"""Records a function of ops as a list of calls on numbered buffers.

`RecordingOps` stands in for a backend: arrays are `RecordedArray`s, which have a shape whose first axis is symbolic and
allow the views that layers take. Anything else that a model does to an array cannot be replayed and is an error here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, cast

import numpy as np

from octavo.distributed.group import Group
from octavo.distributed.shared_memory import SharedMemoryGroup
from octavo.errors import UnsupportedError
from octavo.ops.interface import (
    Activation,
    AdapterSlots,
    AttentionMetadata,
    ExpertWeights,
    Float,
    Int,
    Ops,
    Routing,
    Weight,
)
from octavo.ops.kv_layout import DealtTokens, KVCache
from octavo.ops.native_adapters import packed_slots
from octavo.ops.native_experts import expert_arguments


@dataclass(frozen=True)
class Dimension:
    """A number of rows that is known only at replay: tokens, or wanted rows."""

    name: str
    index: int


TOKENS = Dimension("tokens", 0)
ROWS = Dimension("rows", 1)


@dataclass(frozen=True, slots=True)
class Buffer:
    """An intermediate result, or a float argument: `width` floats for each row."""

    index: int
    dimension: Dimension
    width: int


@dataclass(frozen=True, slots=True)
class RecordedIds:
    """An integer argument of replay [dimension], by number."""

    index: int
    dimension: Dimension


@dataclass(frozen=True, slots=True)
class RecordedGroup:
    """An attention argument of one KV cache group."""

    index: int


class _CannotRecord(Exception):
    """A model did to a recorded array what no tape can replay; `record` tells the user."""


class RecordedArray:
    """A buffer, or a part of each of its rows: [rows, columns] or [rows, heads, columns]."""

    __slots__ = ("buffer", "offset", "shape")
    __array_ufunc__ = None  # NumPy refuses to compute with it

    def __init__(self, buffer: Buffer, offset: int, shape: tuple[Dimension | int, ...]) -> None:
        self.buffer = buffer
        self.offset = offset
        self.shape = shape

    @property
    def inner(self) -> tuple[int, ...]:
        """The shape of a row."""
        return cast("tuple[int, ...]", self.shape[1:])

    def reshape(self, *shape: Any) -> RecordedArray:
        """Divide each row differently. The first axis stays."""
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        inner, size = list(wanted[1:]), prod(self.inner)
        if inner.count(-1) == 1:
            inner[inner.index(-1)] = size // -prod(inner)
        if wanted[0] is not self.shape[0] or prod(inner) != size or len(inner) not in (1, 2):
            raise _CannotRecord(f"a reshape from {self.shape} to {wanted}")
        return RecordedArray(self.buffer, self.offset, (self.shape[0], *inner))

    def __getitem__(self, key: Any) -> RecordedArray:
        if (
            not isinstance(key, tuple)
            or len(key) != 2
            or key[0] != slice(None)
            or not isinstance(key[1], slice)
            or key[1].step not in (None, 1)
        ):
            raise _CannotRecord(f"an index of {key} is not [:, start:stop]")
        start, stop, _ = key[1].indices(self.inner[0])
        stride = prod(self.inner[1:])
        return RecordedArray(
            self.buffer, self.offset + start * stride, (self.shape[0], max(0, stop - start), *self.inner[1:])
        )

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise _CannotRecord("the values of an array cannot be read while it is recorded")


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One op: arrays that it reads, arrays that it makes, and everything that is the same at every replay."""

    name: str
    inputs: tuple[RecordedArray, ...]
    outputs: tuple[RecordedArray, ...]
    constants: tuple[Any, ...]


@dataclass
class Recording:
    """The calls of one function, its arguments' buffers first, its result, and what else of it is read."""

    buffers: list[Buffer] = field(default_factory=list)
    num_arguments: int = 0
    calls: list[RecordedCall] = field(default_factory=list)
    result: RecordedArray | None = None
    tapped: list[RecordedArray] = field(default_factory=list)

    def new_buffer(self, dimension: Dimension, width: int) -> Buffer:
        buffer = Buffer(len(self.buffers), dimension, width)
        self.buffers.append(buffer)
        return buffer

    def new_array(self, dimension: Dimension, inner: tuple[int, ...]) -> RecordedArray:
        return RecordedArray(self.new_buffer(dimension, prod(inner)), 0, (dimension, *inner))

    def emit(
        self, name: str, inputs: tuple[Float, ...], dimension: Dimension, inner: tuple[int, ...], *constants: Any
    ) -> Float:
        """Note a call that makes one array."""
        out = self.new_array(dimension, inner)
        self.calls.append(RecordedCall(name, tuple(map(_array, inputs)), (out,), constants))
        return cast(Float, out)

    def argument(self, dimension: Dimension, width: int) -> Float:
        """Return a float argument [dimension, width]; call before any op."""
        buffer = self.new_buffer(dimension, width)
        self.num_arguments += 1
        return cast(Float, RecordedArray(buffer, 0, (dimension, width)))


def record(function: Callable[[Ops, Recording], Float]) -> Recording:
    """Call the function once with ops that record; raises UnsupportedError if it does what cannot be recorded."""
    recording = Recording()
    ops = cast(Ops, RecordingOps(recording))
    try:
        result: object = function(ops, recording)
        if not isinstance(result, RecordedArray):
            raise _CannotRecord("it does not return the result of an op")
    except (_CannotRecord, TypeError, AttributeError, IndexError, ValueError) as error:
        raise UnsupportedError(
            f"the model's forward cannot be recorded ({type(error).__name__}: {error}); use enforce_eager=True"
        ) from error
    recording.result = result
    return recording


class _RecordingAdapters:
    """See `octavo.ops.interface.AdapterOps`."""

    _recording: Recording

    def adapted_embedding(
        self, token_ids: Int, table: Weight, first_id: int, num_ids: int, slots: Int, adapters: AdapterSlots
    ) -> Float:
        ids = _ids(token_ids)
        constants = (ids.index, table, first_id, num_ids, _ids(slots).index, packed_slots(adapters))
        return self._recording.emit("adapted_embedding", (), ids.dimension, (table.in_features,), *constants)

    def adapted_linear(self, x: Float, weight: Weight, bias: Float | None, slots: Int, adapters: AdapterSlots) -> Float:
        if _array(x).inner != (weight.in_features,):
            raise ValueError(f"x must be [*, {weight.in_features}], got {_array(x).shape}")
        constants = (weight, bias, _ids(slots).index, packed_slots(adapters))
        dimension = _array(x).buffer.dimension
        return self._recording.emit("adapted_linear", (x,), dimension, (weight.out_features,), *constants)


class _RecordingExperts:
    """See `octavo.ops.interface.ExpertOps`."""

    _recording: Recording

    def expert_inputs(
        self, x: Float, logits: Float, routing: Routing, experts: ExpertWeights, kind: Activation
    ) -> Float:
        inner = (routing.top_k * experts.out_features // 2,)
        constants = (*expert_arguments(routing, experts), kind)
        return self._recording.emit("expert_inputs", (x, logits), _array(x).buffer.dimension, inner, *constants)

    def expert_outputs(
        self, h: Float, logits: Float, routing: Routing, experts: ExpertWeights, widths: Sequence[int]
    ) -> Float:
        inner, constants = (experts.out_features,), (*expert_arguments(routing, experts), list(widths))
        return self._recording.emit("expert_outputs", (h, logits), _array(h).buffer.dimension, inner, *constants)


class RecordingOps(_RecordingAdapters, _RecordingExperts):
    """The ops that a forward may call, each noting its call; see `octavo.ops.interface.Ops` for their contract.

    Argument checks that need no values happen when a backend builds its tape from the recording.
    """

    name = "recording"

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def __getattr__(self, name: str) -> Any:
        raise _CannotRecord(f"the op {name} cannot be recorded")

    # -- rows ------------------------------------------------------------------------------------------------------

    def embedding(self, token_ids: Int, table: Weight) -> Float:
        ids = _ids(token_ids)
        return self._recording.emit("embedding", (), ids.dimension, (table.in_features,), ids.index, table)

    def embedding_share(self, token_ids: Int, table: Weight, first_id: int, num_ids: int) -> Float:
        ids = _ids(token_ids)
        constants = (ids.index, table, first_id, num_ids)
        return self._recording.emit("embedding_share", (), ids.dimension, (table.in_features,), *constants)

    def take_rows(self, x: Float, rows: Int) -> Float:
        ids = _ids(rows)
        return self._recording.emit("take_rows", (x,), ids.dimension, _array(x).inner, ids.index)

    def linear(self, x: Float, weight: Weight, bias: Float | None = None) -> Float:
        if _array(x).inner != (weight.in_features,):
            raise ValueError(f"x must be [*, {weight.in_features}], got {_array(x).shape}")
        return self._like(x, "linear", (weight.out_features,), weight, bias)

    def rms_norm(self, x: Float, weight: Float, eps: float) -> Float:
        return self._like(x, "rms_norm", _array(x).inner, weight, eps)

    def add_rms_norm(self, x: Float, residual: Float, weight: Float, eps: float) -> tuple[Float, Float]:
        _check_same_shape(x, residual)
        array = _array(x)
        out, total = (self._recording.new_array(array.buffer.dimension, array.inner) for _ in range(2))
        self._recording.calls.append(
            RecordedCall("add_rms_norm", (array, _array(residual)), (out, total), (weight, eps))
        )
        return cast(Float, out), cast(Float, total)

    def layer_norm(self, x: Float, weight: Float, bias: Float | None, eps: float) -> Float:
        return self._like(x, "layer_norm", _array(x).inner, weight, bias, eps)

    def add(self, x: Float, y: Float) -> Float:
        _check_same_shape(x, y)
        return self._recording.emit("add", (x, y), _array(x).buffer.dimension, _array(x).inner)

    def scale(self, x: Float, factor: float) -> Float:
        return self._like(x, "scale", _array(x).inner, factor)

    def softcap(self, x: Float, cap: float) -> Float:
        return self._like(x, "softcap", _array(x).inner, cap)

    def activation(self, x: Float, kind: Activation) -> Float:
        return self._like(x, "activation", _array(x).inner, kind)

    def act_and_mul(self, x: Float, kind: Activation) -> Float:
        (columns,) = _array(x).inner
        if columns % 2:
            raise ValueError(f"x must have an even number of columns (gate and up), got {columns}")
        return self._like(x, "act_and_mul", (columns // 2,), kind)

    # -- attention -------------------------------------------------------------------------------------------------

    def rope(self, x: Float, positions: Int, cos_sin: Float) -> Float:
        return self._like(x, "rope", _array(x).inner, _ids(positions).index, cos_sin)

    def rope_and_store(
        self, query: Float, key: Float, value: Float, positions: Int, cos_sin: Float, cache: KVCache, slot_mapping: Any
    ) -> Float:
        constants = (_ids(positions).index, cos_sin, cache, _group(slot_mapping).index)
        return self._like(query, "rope_and_store", _array(query).inner, *constants, others=(key, value))

    def store_kv(self, key: Float, value: Float, cache: KVCache, slot_mapping: Any) -> None:
        constants = (cache, _group(slot_mapping).index)
        self._recording.calls.append(RecordedCall("store_kv", (_array(key), _array(value)), (), constants))

    def paged_attention(
        self,
        query: Float,
        cache: KVCache,
        metadata: AttentionMetadata,
        scale: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
        alibi_slopes: Float | None = None,
        sinks: Float | None = None,
        heads_of_kv: Sequence[int] | None = None,
    ) -> Float:
        heads = None if heads_of_kv is None else list(heads_of_kv)
        group = _group(metadata.block_table).index
        constants = (cache, group, scale, sliding_window, softcap, alibi_slopes, sinks, heads)
        return self._like(query, "paged_attention", (prod(_array(query).inner),), *constants)

    def partial_attention(
        self, query: Float, cache: KVCache, metadata: AttentionMetadata, scale: float, dealt: DealtTokens
    ) -> Float:
        constants = (cache, _group(metadata.block_table).index, scale, dealt.part, dealt.num_parts, dealt.run)
        num_heads, head_dim = _array(query).inner
        return self._like(query, "partial_attention", (num_heads * (head_dim + 2),), *constants)

    def merge_attention(self, parts: Float, num_parts: int, num_heads: int, heads: range) -> Float:
        head_dim = prod(_array(parts).inner) // (num_parts * num_heads) - 2
        constants = (num_parts, num_heads, heads.start, heads.stop, head_dim)
        return self._like(parts, "merge_attention", (len(heads) * head_dim,), *constants)

    def encoder_attention(
        self,
        query: Float,
        key: Float,
        value: Float,
        query_start: Any,
        scale: float,
        sliding_window: int | None = None,
        distance_bias: Float | None = None,
    ) -> Float:
        constants = (_group(query_start).index, scale, sliding_window, distance_bias)
        return self._like(query, "encoder_attention", (prod(_array(query).inner),), *constants, others=(key, value))

    # -- ranks -----------------------------------------------------------------------------------------------------

    def all_reduce(self, x: Float, group: Group) -> Float:
        return self._like(x, "all_reduce", _array(x).inner, _shared(group))

    def all_gather(self, x: Float, group: Group, widths: Sequence[int]) -> Float:
        return self._like(x, "all_gather", (sum(widths),), _shared(group), list(widths))

    # -- parts -----------------------------------------------------------------------------------------------------

    def _like(
        self, x: Float, name: str, inner: tuple[int, ...], *constants: Any, others: tuple[Float, ...] = ()
    ) -> Float:
        return self._recording.emit(name, (x, *others), _array(x).buffer.dimension, inner, *constants)


def recorded_metadata(group: int) -> AttentionMetadata:
    """Return metadata whose fields all stand for one KV cache group's arguments."""
    symbol = RecordedGroup(group)
    return AttentionMetadata(*[cast(Any, symbol)] * 4)


def recorded_ids(index: int, dimension: Dimension) -> Int:
    """Return the id argument of this number."""
    return cast(Int, RecordedIds(index, dimension))


def _array(x: object) -> RecordedArray:
    if not isinstance(x, RecordedArray):
        raise _CannotRecord(f"an op's argument must come from an op or from outside the forward, got {_describe(x)}")
    return x


def _ids(ids: object) -> RecordedIds:
    if not isinstance(ids, RecordedIds):
        raise _CannotRecord(f"ids must be an argument of the forward as it came, got {_describe(ids)}")
    return ids


def _group(part: object) -> RecordedGroup:
    if not isinstance(part, RecordedGroup):
        raise _CannotRecord(f"attention metadata must be an argument as it came, got {_describe(part)}")
    return part


def _shared(group: Group) -> object:
    if not isinstance(group, SharedMemoryGroup):
        raise _CannotRecord(f"ranks that are joined by a {type(group).__name__} need Python")
    return group.native


def _describe(x: object) -> str:
    return f"{x.dtype}{list(x.shape)}" if isinstance(x, np.ndarray) else type(x).__name__


def _check_same_shape(x: Float, y: Float) -> None:
    if _array(x).shape != _array(y).shape:
        raise ValueError(f"shapes must be equal, got {_array(x).shape} and {_array(y).shape}")
