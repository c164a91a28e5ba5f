"""What ranks can do together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float32]


class Group(Protocol):
    """Ranks 0 .. size - 1 that compute together. All of them make the same calls, in the same order.

    A rank that died, hangs longer than the group's timeout, or gave up (`abort`) makes every call of the others raise
    PeerLostError, which names it. Arrays are C-contiguous float32. Not thread-safe.

    rank, size: this one, and how many there are
    in_tape: all_reduce and all_gather can be recorded and replayed by the native side, without Python
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def in_tape(self) -> bool: ...

    def all_reduce(self, array: Float) -> None:
        """Replace the array by the sum over ranks, in place.

        Added in float32 in the order of the ranks, so that all get the same bits, and the same at every call.
        """

    def all_gather(self, array: Float, widths: Sequence[int]) -> Float:
        """Join matrices side by side: [rows, widths[rank]] of each rank -> [rows, sum of widths], the same on all."""

    def broadcast(self, array: Float, root: int) -> None:
        """Copy rank `root`'s array to the others', in place."""

    def send(self, array: Float) -> None:
        """Give an array to the next rank; returns once it is copied, which may wait until there is room."""

    def receive(self, array: Float) -> None:
        """Fill the array with the oldest one that the previous rank has sent, of the same size."""

    def barrier(self) -> None:
        """Return when every rank has come here."""

    def abort(self) -> None:
        """Make all calls of all ranks raise PeerLostError from now on: this rank cannot go on."""

    def close(self) -> None:
        """Leave; idempotent. Others who still wait for this rank are told."""


class SoloGroup:
    """A rank alone: everything is done before it begins."""

    rank = 0
    size = 1
    in_tape = True

    def all_reduce(self, array: Float) -> None:
        """The sum over one rank is its own array."""

    def all_gather(self, array: Float, widths: Sequence[int]) -> Float:
        return array

    def broadcast(self, array: Float, root: int) -> None:
        """There is nobody to give it to."""

    def send(self, array: Float) -> None:
        raise AssertionError("the last rank has no next one")

    def receive(self, array: Float) -> None:
        raise AssertionError("the first rank has no previous one")

    def barrier(self) -> None:
        """Everybody is here."""

    def abort(self) -> None:
        """Nobody waits."""

    def close(self) -> None:
        """Nothing to leave."""
