"""Ranks of one machine over shared memory: native code that a tape can replay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo import _native
from octavo.distributed.group import Float
from octavo.distributed.rendezvous import shared_directory
from octavo.errors import ConfigError

_SLOT_FLOATS = 1 << 20  # 4 MiB, twice for each rank: most steps of decoding fit, logits included
_RING_FLOATS = 1 << 21  # 8 MiB for each pair of neighbours in a pipeline
_NO_RING_FLOATS = 1 << 10


class SharedMemoryGroup:
    """See `octavo.distributed.group.Group`. native: what a tape records."""

    in_tape = True

    def __init__(
        self, address: str, name: str, rank: int, size: int, timeout_s: float, *, is_pipeline: bool = False
    ) -> None:
        """Meet the others; name: of the group, the same on all its ranks. is_pipeline: ranks send and receive."""
        path = shared_directory(address) / f"{name}.group"
        ring_floats = _RING_FLOATS if is_pipeline else _NO_RING_FLOATS
        self.rank = rank
        self.size = size
        try:
            self.native = _native.SharedGroup(
                str(path), name, rank, size, _SLOT_FLOATS, ring_floats, timeout_s=timeout_s
            )
        except ValueError as error:
            raise ConfigError(f"workers cannot share memory: {error}") from error

    def all_reduce(self, array: Float) -> None:
        self.native.all_reduce(_flat(array))

    def all_gather(self, array: Float, widths: Sequence[int]) -> Float:
        return self.native.all_gather(array, list(widths))

    def broadcast(self, array: Float, root: int) -> None:
        self.native.broadcast(_flat(array), root)

    def send(self, array: Float) -> None:
        self.native.send(_flat(array))

    def receive(self, array: Float) -> None:
        self.native.receive(_flat(array))

    def barrier(self) -> None:
        self.native.barrier()

    def abort(self) -> None:
        self.native.abort()

    def close(self) -> None:
        self.native.close()


def _flat(array: Float) -> Float:
    if not array.flags.c_contiguous or array.dtype != np.float32:
        raise ValueError(f"ranks exchange contiguous float32 arrays, got {array.dtype} with strides {array.strides}")
    return array.reshape(-1)
