"""LoRA adapters of the native ops, packed by `octavo._native`; see `octavo.ops.interface.AdapterSlots`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo import _native
from octavo.loader.compact import HalfMatrix, QuantizedMatrix
from octavo.ops.interface import AdapterMatrix, AdapterSlots, LowRank


class NativeSlots:
    """Adapters in the type and, over all parts of a layer, in the order in which they are read."""

    def __init__(self, out_sizes: Sequence[int], in_features: int, num_slots: int) -> None:
        self.packed = _native.AdapterSlots(list(out_sizes), in_features, num_slots)

    def put(self, slot: int, adapters: Sequence[LowRank | None]) -> None:
        kinds = {_kind(adapter) for adapter in adapters if adapter is not None} or {"float32"}
        if len(kinds) > 1:
            raise ValueError(f"the adapters of a slot must be of one type, got {sorted(kinds)}")
        self.packed.put(slot, kinds.pop(), [None if adapter is None else _arrays(adapter) for adapter in adapters])


def packed_slots(adapters: AdapterSlots) -> _native.AdapterSlots:
    """Return what the extension takes."""
    assert isinstance(adapters, NativeSlots), "slots of another backend"
    return adapters.packed


def _kind(adapter: LowRank) -> str:
    if isinstance(adapter.down, QuantizedMatrix):
        return "int8"
    return adapter.down.kind if isinstance(adapter.down, HalfMatrix) else "float32"


def _arrays(adapter: LowRank) -> _native.LowRank:
    return _array(adapter.down), _array(adapter.up), adapter.scale


def _array(matrix: AdapterMatrix) -> _native.AdapterMatrix:
    if isinstance(matrix, QuantizedMatrix):
        return matrix.codes.view(np.uint8) + np.uint8(128), matrix.scales.view(np.uint16)
    return matrix.bits if isinstance(matrix, HalfMatrix) else matrix
