"""One process tells several others the same: messages written once, to memory that all of them see.

The memory has no name, so nothing is left of it whatever happens to whom. Each reader has a bell, a socket over which
it learns that there is a message and how long it is, and that the writer is gone.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import struct
import tempfile
import time
from collections.abc import Sequence

_NUM_SLOTS = 8
_SLOT_BYTES = 2**22  # a step of 256 running requests takes 20 KB, its grammars 2 MB; untouched pages cost nothing
_COUNTER_STRIDE_BYTES = 64  # a cache line each
_RING = struct.Struct("<q")  # size of the message; negative: it did not fit a slot and follows over the bell
_WRITTEN = -1  # place of the writer's counter, before the readers'
_WATCH_S = 3e-4
_LOOK_MS = 1  # how often a writer looks whether there is room again


def create_memory(num_readers: int) -> int:
    """Return a file descriptor of memory for so many readers; they inherit it, and the caller closes it."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("octavo-broadcast")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, _counters_bytes(num_readers) + _NUM_SLOTS * _SLOT_BYTES)
    return descriptor


class BroadcastWriter:
    """The writing side; not thread-safe."""

    def __init__(self, descriptor: int, bells: Sequence[socket.socket]) -> None:
        """descriptor: of `create_memory`; bells: one for each reader, in the order of their indices"""
        self._memory = _Memory(descriptor, len(bells))
        self._bells = bells
        self._num_written = 0
        self._gone = select.poll()
        for bell in bells:
            self._gone.register(bell, 0)  # hang-ups are always told

    def write(self, message: bytes, timeout_s: float | None = None) -> None:
        """Give a message to all readers, waiting while a reader is too far behind.

        Raises TimeoutError when one still is after timeout_s, ConnectionError when one is gone.
        """
        self._wait_for_room(timeout_s)
        fits = len(message) <= _SLOT_BYTES
        if fits:
            self._memory.put(self._num_written, message)
        ring = _RING.pack(len(message) if fits else -len(message))
        self._num_written += 1
        self._memory.set_count(_WRITTEN, self._num_written)
        for bell in self._bells:
            if fits:
                bell.sendall(ring)  # there is room for the few that may be unread
            else:
                bell.settimeout(timeout_s)
                bell.sendall(ring + message)

    def close(self) -> None:
        """Tell the readers that no message will come; idempotent."""
        for bell in self._bells:
            bell.close()
        self._memory.close()

    def _wait_for_room(self, timeout_s: float | None) -> None:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while any(self._num_written - self._memory.count(i) >= _NUM_SLOTS for i in range(len(self._bells))):
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError("a reader is too far behind")
            if self._gone.poll(_LOOK_MS):
                raise ConnectionError("a reader is gone")


class BroadcastReader:
    """One reading side."""

    def __init__(self, descriptor: int, num_readers: int, index: int, bell: socket.socket) -> None:
        self._memory = _Memory(descriptor, num_readers)
        self._index = index
        self._bell = bell
        self._num_read = 0

    def read(self) -> bytes:
        """Wait for the next message. Raises EOFError when none will come."""
        self._watch()
        (size,) = _RING.unpack(self._receive(_RING.size))
        message = self._memory.get(self._num_read, size) if size >= 0 else self._receive(-size)
        self._num_read += 1
        self._memory.set_count(self._index, self._num_read)
        return message

    def _watch(self) -> None:
        """Stay awake for a short time if no message is there: waking up takes longer than many a wait."""
        end = time.perf_counter() + _WATCH_S
        while self._memory.count(_WRITTEN) == self._num_read and time.perf_counter() < end:
            os.sched_yield()  # others may need the core

    def _receive(self, size: int) -> bytes:
        try:
            data = self._bell.recv(size, socket.MSG_WAITALL)
        except ConnectionError:
            data = b""
        if len(data) < size:
            raise EOFError("the writer is gone")
        return data


class _Memory:
    """Counters, of messages that were written and that each reader has taken, and the slots.

    The counters are single aligned stores, and a system call lies between every message and its reading, in either
    direction: no other order of memory is needed.
    """

    def __init__(self, descriptor: int, num_readers: int) -> None:
        self._slots_at = _counters_bytes(num_readers)
        self._map = mmap.mmap(descriptor, self._slots_at + _NUM_SLOTS * _SLOT_BYTES)
        self._view = memoryview(self._map)
        self._counters = self._view[: self._slots_at].cast("Q")

    def put(self, number: int, message: bytes) -> None:
        start = self._slot(number)
        self._view[start : start + len(message)] = message

    def get(self, number: int, size: int) -> bytes:
        start = self._slot(number)
        return bytes(self._view[start : start + size])

    def count(self, index: int) -> int:
        """Return a reader's counter, or the writer's with _WRITTEN."""
        return self._counters[(index + 1) * _COUNTER_STRIDE_BYTES // 8]

    def set_count(self, index: int, count: int) -> None:
        self._counters[(index + 1) * _COUNTER_STRIDE_BYTES // 8] = count

    def close(self) -> None:
        self._counters.release()  # releasing twice does nothing
        self._view.release()
        self._map.close()

    def _slot(self, number: int) -> int:
        return self._slots_at + number % _NUM_SLOTS * _SLOT_BYTES


def _counters_bytes(num_readers: int) -> int:
    return (num_readers + 1) * _COUNTER_STRIDE_BYTES
