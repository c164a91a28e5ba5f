"""LoRA adapters in plain NumPy; see `octavo.ops.interface.Ops.add_adapters`."""

from __future__ import annotations

import numpy as np

from octavo.ops.checks import check_array
from octavo.ops.interface import AdapterWeights, Float, Int


def add_adapters(y: Float, x: Float, slots: Int, weights: AdapterWeights) -> None:
    """Add each row's adapter to y, in place."""
    check_array("x", x, (None, weights.down.shape[2]))
    check_array("y", y, (x.shape[0], weights.up.shape[2]))
    check_array("slots", slots, (x.shape[0],), np.int32)
    num_slots, max_rank = weights.up.shape[:2]
    if len(slots) and not -1 <= slots.min() <= slots.max() < num_slots:
        raise ValueError(f"slots must be from -1 to {num_slots - 1}, got {slots.min()} to {slots.max()}")
    for slot in np.unique(slots[slots >= 0]):
        rows = np.flatnonzero(slots == slot)
        for part, rank in enumerate(weights.ranks[slot]):
            columns = slice(weights.starts[part], weights.starts[part + 1])
            down = weights.down[slot, part * max_rank : part * max_rank + rank]
            y[rows, columns] += x[rows] @ down.T @ weights.up[slot, :rank, columns]
