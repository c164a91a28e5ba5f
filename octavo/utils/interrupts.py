"""Ctrl-C and SIGTERM at a moment of our choosing, so that they cannot tear bookkeeping apart."""

from __future__ import annotations

import signal
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


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


def exit_at_sigterm() -> None:
    """Let SIGTERM raise SystemExit from now on, as Ctrl-C raises KeyboardInterrupt: what has been made is removed."""
    signal.signal(signal.SIGTERM, _exit)


@contextmanager
def held_signals() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait for the end of the block, which is short, so that what it makes has its owner.

    Does nothing outside the main thread, and for handlers that raise nothing of ours.
    """
    came: list[int] = []
    raising = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: _exit}
    is_main = threading.current_thread() is threading.main_thread()
    held = {number: handler for number, handler in raising.items() if is_main and signal.getsignal(number) is handler}
    for number in held:
        signal.signal(number, lambda received, frame: came.append(received))
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(signal.SIGTERM if signal.SIGTERM in came else came[0])


def _exit(number: int, frame: types.FrameType | None) -> NoReturn:
    sys.exit(128 + number)
