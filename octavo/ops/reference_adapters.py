"""LoRA adapters in plain NumPy; see `octavo.ops.interface.AdapterSlots`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.ops.checks import check_array
from octavo.ops.interface import AdapterMatrix, AdapterSlots, Float, Int, LowRank
from octavo.ops.reference_quantized import reference_part, round_activations


class ReferenceSlots:
    """Adapters as they were put."""

    def __init__(self, out_sizes: Sequence[int], in_features: int, num_slots: int) -> None:
        self.shape = (sum(out_sizes), in_features)
        self.ends = np.cumsum(out_sizes)[:-1]
        self.slots: list[Sequence[LowRank | None]] = [[None] * len(out_sizes)] * num_slots

    def put(self, slot: int, adapters: Sequence[LowRank | None]) -> None:
        self.slots[slot] = adapters


def add(y: Float, x: Float, slots: Int, adapters: AdapterSlots) -> Float:
    """Add each row's adapter to y, in place, and return it."""
    assert isinstance(adapters, ReferenceSlots), "slots of another backend"
    if (y.shape[1], x.shape[1]) != adapters.shape:
        raise ValueError(f"the adapters are of a layer {list(adapters.shape)}, not {[y.shape[1], x.shape[1]]}")
    check_array("slots", slots, (x.shape[0],), np.int32)
    last = len(adapters.slots) - 1
    if len(slots) and not -1 <= slots.min() <= slots.max() <= last:
        raise ValueError(f"slots must be from -1 to {last}, got {slots.min()} to {slots.max()}")
    for slot in np.unique(slots[slots >= 0]):
        rows = slots == slot
        for part, adapter in zip(np.split(y, adapters.ends, axis=1), adapters.slots[slot], strict=True):
            if adapter is not None:
                part[rows] += _product(_product(x[rows], adapter.down), adapter.up) * np.float32(adapter.scale)
    return y


def _product(x: Float, matrix: AdapterMatrix) -> Float:
    part = reference_part(matrix)
    return (x if part.group_size is None else round_activations(x, part.group_size)) @ part.matrix.T
