"""Where the intermediate results of a recording lie: buffers that share a tape's memory."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.ops.recording import Buffer, Dimension, Recording

_SLOT_ALIGNMENT = 16  # floats: a cache line


@dataclass(frozen=True)
class Placement:
    """slots: (dimension, width) of each place, the arguments' first; slot_of: buffer index -> slot."""

    slots: list[tuple[Dimension, int]]
    slot_of: list[int]

    def num_floats(self, num_arguments: int, capacity: dict[Dimension, int]) -> int:
        return sum(width * capacity[dimension] for dimension, width in self.slots[num_arguments:])


def place_buffers(recording: Recording) -> Placement:
    """Let buffers that are never needed at the same time share a slot.

    A slot is freed after the last call that reads it. A new buffer takes the free slot of its dimension that fits best,
    else widens the widest free one, else opens another.
    """
    last_use = [-1] * len(recording.buffers)
    for position, call in enumerate(recording.calls):
        for array in (*call.inputs, *call.outputs):
            last_use[array.buffer.index] = position
    assert recording.result is not None
    for array in (recording.result, *recording.tapped):
        last_use[array.buffer.index] = len(recording.calls)

    slots: list[tuple[Dimension, int]] = [
        (buffer.dimension, buffer.width) for buffer in recording.buffers[: recording.num_arguments]
    ]
    slot_of = list(range(recording.num_arguments)) + [-1] * (len(recording.buffers) - recording.num_arguments)
    free: list[int] = []
    for position, call in enumerate(recording.calls):
        for array in call.outputs:
            slot_of[array.buffer.index] = _take_slot(array.buffer, slots, free)
        for index in {array.buffer.index for array in (*call.inputs, *call.outputs)}:
            if last_use[index] == position and index >= recording.num_arguments:
                free.append(slot_of[index])
    return Placement(slots, slot_of)


def _take_slot(buffer: Buffer, slots: list[tuple[Dimension, int]], free: list[int]) -> int:
    width = -(-buffer.width // _SLOT_ALIGNMENT) * _SLOT_ALIGNMENT
    fitting = [slot for slot in free if slots[slot][0] is buffer.dimension]
    if not fitting:
        slots.append((buffer.dimension, width))
        return len(slots) - 1
    large_enough = [slot for slot in fitting if slots[slot][1] >= width]
    slot = (
        min(large_enough, key=lambda slot: slots[slot][1])
        if large_enough
        else max(fitting, key=lambda slot: slots[slot][1])
    )
    slots[slot] = (buffer.dimension, max(width, slots[slot][1]))
    free.remove(slot)
    return slot
