"""Ctrl-C at a moment of our choosing, so that it cannot tear bookkeeping apart."""

from __future__ import annotations

import signal
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager


class PendingInterrupt:
    """Whether Ctrl-C was pressed since the block began."""

    __slots__ = ("requested",)

    def __init__(self) -> None:
        self.requested = False

    def raise_if_requested(self) -> None:
        """Raise the KeyboardInterrupt that was held back."""
        if self.requested:
            raise KeyboardInterrupt


@contextmanager
def deferred_interrupt() -> Iterator[PendingInterrupt]:
    """Hold back the first Ctrl-C until `raise_if_requested`; a second one interrupts at once.

    Does nothing outside the main thread, and leaves a handler that the program has installed alone.
    """
    pending = PendingInterrupt()
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield pending
        return

    def hold_back(signal_number: int, frame: types.FrameType | None) -> None:
        pending.raise_if_requested()
        pending.requested = True

    signal.signal(signal.SIGINT, hold_back)
    try:
        yield pending
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    pending.raise_if_requested()
