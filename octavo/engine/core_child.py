"""The front end's hold on one core process: starting it, its sockets, its end."""

from __future__ import annotations

import contextlib
import select
import socket
import subprocess
import time
from collections.abc import Iterable
from typing import Protocol

import zmq

from octavo.engine.core_messages import (
    CoreFailed,
    FrontMessage,
    Note,
    StartCore,
    decode_front_message,
    decode_note,
    encode,
)
from octavo.utils.frames import FrameReader, send_frame
from octavo.utils.processes import end_child, start_python

_PROGRAM = (
    "from octavo.platforms.core_shares import take_share; "  # first: libraries start threads when they are imported
    "take_share(*arguments[1]); "
    "from octavo.engine.core_proc import main; main(*arguments[0])"
)
_STOP_TIMEOUT_S = 2.0
_LAST_MESSAGES_TIMEOUT_S = 2.0


class EngineChild(Protocol):
    """A core's process, here or elsewhere, as its supervisor sees it."""

    output_fd: int
    lifeline_fd: int

    @property
    def process_id(self) -> int: ...

    def connect(self) -> None: ...

    def send(self, message: bytes) -> None: ...

    def receive(self) -> list[FrontMessage]: ...

    def read_notes(self) -> tuple[list[Note], bool]: ...

    def register(self, poller: zmq.Poller) -> None: ...

    def close(self, stop_message: bytes | None = None) -> int: ...


class CoreChild:
    """One process. Nothing here blocks but `close`.

    output_fd: readable (edge-triggered, see `receive`) when there may be messages
    lifeline_fd: readable when there are notes, or when the process is gone
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], directory: str, start: StartCore, share: tuple[int, int]
    ) -> None:
        """directory: the meeting place; share: its place among the processes that divide the cores, and their number"""
        self._address = core_addresses(directory, start)
        self._output = context.socket(zmq.PULL)
        self._output.set_hwm(0)  # what is computed is kept: it is bounded by what was asked for
        self._output.linger = 0
        self._output.bind(self._address[1])
        self._input = context.socket(zmq.PUSH)
        self._input.set_hwm(0)
        self._input.linger = 0
        self._lifeline, theirs = socket.socketpair()
        self._process = start_python(
            _PROGRAM,
            [[theirs.fileno(), directory], share],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the front end, which then decides
        )
        theirs.close()
        with contextlib.suppress(ConnectionError):  # it is gone already: the lifeline will say so
            send_frame(self._lifeline, encode(start))
        self._lifeline.setblocking(False)
        self._notes = FrameReader(self._lifeline)
        self._num_messages = 0
        self._num_announced = 0  # messages that have been sent for certain
        self._give_up_at: float | None = None  # the process is gone, and its last messages are on their way
        self.output_fd = int(self._output.FD)
        self.lifeline_fd = self._lifeline.fileno()

    @property
    def process_id(self) -> int:
        return self._process.pid

    def connect(self) -> None:
        """Open the way to the core; called once it has said that it is ready, and so listens."""
        self._input.connect(self._address[0])

    def send(self, message: bytes) -> None:
        """Queue a message to the core; needs `connect`."""
        self._input.send(message, zmq.NOBLOCK)

    def receive(self) -> list[FrontMessage]:
        """Return all messages that are there now. output_fd becomes readable again only after this came up empty."""
        messages = []
        while True:
            try:
                messages.append(decode_front_message(self._output.recv(zmq.NOBLOCK)))
            except zmq.Again:
                self._num_messages += len(messages)
                return messages

    def read_notes(self) -> tuple[list[Note], bool]:
        """Return the notes that are there now, and whether the process is gone and all that it has sent is received."""
        notes = [decode_note(data) for data in self._notes.read()]
        self._num_announced += sum(note.num_messages for note in notes if isinstance(note, CoreFailed))
        return notes, self._notes.is_ended and not self._is_more_to_come()

    def _is_more_to_come(self) -> bool:
        if self._give_up_at is None:
            self._give_up_at = time.monotonic() + _LAST_MESSAGES_TIMEOUT_S
        return self._num_messages < self._num_announced and time.monotonic() < self._give_up_at

    def register(self, poller: zmq.Poller) -> None:
        """Let a poller see when there is something to `receive` or `read_notes`."""
        poller.register(self._output, zmq.POLLIN)
        poller.register(self.lifeline_fd, zmq.POLLIN)

    def close(self, stop_message: bytes | None = None) -> int:
        """End the process and release everything; return its exit status. stop_message: ask it to stop first."""
        if stop_message is not None:
            self.send(stop_message)
            self._wait_for_end(_STOP_TIMEOUT_S)
        status = end_child(self._process)  # first: one that sees its lifeline end removes the meeting place
        self._input.close()
        self._output.close()
        self._lifeline.close()
        return status

    def _wait_for_end(self, timeout_s: float) -> None:
        """Wait for the other side of the lifeline to close."""
        poller = select.poll()
        poller.register(self._lifeline, select.POLLHUP)
        poller.poll(timeout_s * 1000)


def core_addresses(directory: str, start: StartCore) -> tuple[str, str]:
    """Return the addresses of the core's input and output."""
    name = f"ipc://{directory}/{start.rank}-{start.number}"
    return f"{name}.in", f"{name}.out"


def wait_for_any(children: Iterable[EngineChild], timeout_s: float | None) -> None:
    """Block until one of them has something to `receive` or `read_notes`, or the time is over."""
    poller = zmq.Poller()
    for child in children:
        child.register(poller)
    poller.poll(None if timeout_s is None else max(int(timeout_s * 1000), 0))
