"""A recorded model on the native side: one call for a forward, one for the logits."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, cast

import numpy as np

from octavo import _native
from octavo.ops.interface import Float, Int, Ops
from octavo.ops.placing import Placement, place_buffers
from octavo.ops.recording import (
    ROWS,
    TOKENS,
    Dimension,
    RecordedArray,
    Recording,
    record,
    recorded_ids,
    recorded_metadata,
)
from octavo.ops.tape import ForwardInputs, ModelFunctions, TapeLimits, adapter_slots, slots_or_none

_ALIGNMENT_BYTES = 64


class NativeTape:
    """See `octavo.ops.tape.Tape`."""

    def __init__(self, functions: ModelFunctions, limits: TapeLimits) -> None:
        def forward(ops: Ops, recording: Recording) -> Float:
            inputs = ForwardInputs(
                token_ids=recorded_ids(0, TOKENS),
                positions=recorded_ids(1, TOKENS),
                output_rows=recorded_ids(2, ROWS),
                metadata=[recorded_metadata(group) for group in range(limits.num_groups)],
                hidden=recording.argument(TOKENS, limits.hidden_size) if limits.takes_hidden else None,
                adapter_slots=recorded_ids(3, TOKENS) if limits.takes_adapters else None,
                output_adapter_slots=recorded_ids(4, ROWS) if limits.takes_adapters else None,
            )
            hidden = functions.forward(ops, inputs)
            recording.tapped = cast("list[RecordedArray]", inputs.tapped)
            return hidden

        capacity = {TOKENS: limits.max_tokens, ROWS: limits.max_output_rows}
        self._takes_adapters = limits.takes_adapters
        ids = [TOKENS, TOKENS, ROWS, *((TOKENS, ROWS) if limits.takes_adapters else ())]
        self._forward = _NativeRecording(forward, capacity, ids, limits.num_groups)
        self._logits: _NativeRecording | None = None
        compute_logits = functions.logits
        if compute_logits is not None:
            slots, num_slots = (recorded_ids(0, ROWS), [ROWS]) if limits.takes_adapters else (None, [])
            self._logits = _NativeRecording(
                lambda ops, recording: compute_logits(ops, recording.argument(ROWS, limits.hidden_size), slots),
                {TOKENS: 0, ROWS: limits.max_logits_rows},
                num_slots,
                0,
            )

    @property
    def num_bytes(self) -> int:
        return sum(recording.num_bytes for recording in self._recordings)

    @property
    def _recordings(self) -> list[_NativeRecording]:
        return [self._forward] if self._logits is None else [self._forward, self._logits]

    def forward(self, inputs: ForwardInputs) -> Float:
        num_rows = [len(inputs.token_ids), len(inputs.output_rows)]
        groups = [
            [metadata.query_start, metadata.seq_lens, metadata.block_table, metadata.slot_mapping]
            for metadata in inputs.metadata
        ]
        arguments = [] if inputs.hidden is None else [inputs.hidden]
        ids = [inputs.token_ids, inputs.positions, inputs.output_rows]
        if self._takes_adapters:
            ids += adapter_slots(inputs)
        hidden, *tapped = self._forward.replay(num_rows, ids, arguments, groups)
        inputs.tapped += tapped
        return hidden

    def logits(self, hidden: Float, slots: Int | None = None) -> Float:
        assert self._logits is not None, "another stage computes the logits"
        ids = [slots_or_none(slots, hidden)] if self._takes_adapters else []
        return self._logits.replay([0, len(hidden)], ids, [hidden], [])[0]

    def set_timing(self, on: bool) -> None:
        """Measure every call from now on, starting from zero."""
        for recording in self._recordings:
            recording.tape.set_timing(on)

    def times(self) -> list[tuple[str, int]]:
        """Return (op, nanoseconds since set_timing(True)) of every call in order."""
        return [call for recording in self._recordings for call in recording.tape.times()]


class _NativeRecording:
    """One recorded function and its arena."""

    def __init__(
        self,
        function: Callable[[Ops, Recording], Float],
        capacity: dict[Dimension, int],
        id_dimensions: list[Dimension],
        num_groups: int,
    ) -> None:
        recording = record(function)
        placement = place_buffers(recording)
        num_floats = placement.num_floats(recording.num_arguments, capacity)
        self.num_bytes = 4 * num_floats
        # empty and not zeros: pages are committed when a step first needs that many rows
        memory = np.empty(num_floats + _ALIGNMENT_BYTES // 4, np.float32)
        start = -memory.ctypes.data % _ALIGNMENT_BYTES // 4
        self._arena = memory[start : start + num_floats]
        self.tape = _native.Tape(
            self._arena,
            [(dimension.index, width) for dimension, width in placement.slots],
            recording.num_arguments,
            [dimension.index for dimension in id_dimensions],
            num_groups,
        )
        for position, call in enumerate(recording.calls):
            views = [_view(array, placement) for array in (*call.inputs, *call.outputs)]
            handed_on = (_is_handed_on(recording, position),) if call.name == "all_gather" else ()
            getattr(self.tape, call.name)(*views, *call.constants, *handed_on)
        assert recording.result is not None
        read = [array.buffer for array in (recording.result, *recording.tapped)]
        self._read = [(placement.slot_of[buffer.index], buffer.dimension.index, buffer.width) for buffer in read]

    def replay(
        self, num_rows: list[int], ids: list[Int], arguments: list[Float], groups: list[list[Any]]
    ) -> list[Float]:
        """Return the function's result, and what else of it is read."""
        offsets = self.tape.replay(num_rows, ids, arguments, groups)
        return [
            self._arena[offsets[slot] : offsets[slot] + num_rows[dimension] * width].reshape(num_rows[dimension], width)
            for slot, dimension, width in self._read
        ]


def _is_handed_on(recording: Recording, position: int) -> bool:
    """Say whether what a call takes is made by the call before it, as all that it makes, and taken by no other."""
    buffer, before = recording.calls[position].inputs[0].buffer, recording.calls[max(position - 1, 0)]
    takers = [call for call in recording.calls if any(array.buffer is buffer for array in call.inputs)]
    assert recording.result is not None
    return (
        [array.buffer for array in before.outputs] == [buffer]
        and len(takers) == 1
        and recording.result.buffer != buffer
    )


def _view(array: RecordedArray, placement: Placement) -> tuple[int, int, int, int, int]:
    """Return (slot, row stride, offset in the row, heads, columns)."""
    heads = prod(array.inner[:-1])
    return placement.slot_of[array.buffer.index], array.buffer.width, array.offset, heads, array.inner[-1]
