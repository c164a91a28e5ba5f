"""An executor's hold on one worker process: starting it, what it says, its end."""

from __future__ import annotations

import contextlib
import select
import socket
import subprocess
from collections.abc import Sequence

from octavo.executor.messages import Reply, decode_reply
from octavo.platforms.cpu import usable_cores
from octavo.utils.frames import FrameReader, send_frame
from octavo.utils.processes import end_child, start_python

# A process group of its own: Ctrl-C is for the front end, which then decides. Not a session: a worker that is stopped
# when its executor dies gets the system's SIGHUP for orphaned groups, and so ends.
_PROGRAM = (
    "import os; os.setpgrp(); "
    "from octavo.platforms.core_shares import take_share; "  # first: libraries start threads when they are imported
    "take_share(*arguments[1]); "
    "from octavo.executor.worker_proc import main; main(*arguments[0])"
)


class WorkerChild:
    """One process. bell: for the broadcast of commands; lifeline_fd: readable when it says something or ends."""

    def __init__(self, rank: int, start: bytes, memory_fd: int, num_workers: int) -> None:
        """start: an encoded StartWorker; memory_fd: of the broadcast, in which this worker's index is its rank"""
        self.rank = rank
        self._lifeline, their_lifeline = socket.socketpair()
        self.bell, their_bell = socket.socketpair()
        inherited = [their_lifeline.fileno(), their_bell.fileno(), memory_fd]
        self._process = start_python(
            _PROGRAM,
            [[*inherited, num_workers, rank], [rank, num_workers, usable_cores()]],
            pass_fds=inherited,
            stdin=subprocess.DEVNULL,
        )
        their_lifeline.close()
        their_bell.close()
        with contextlib.suppress(ConnectionError):  # it is gone already: the lifeline will say so
            send_frame(self._lifeline, start)
        self._lifeline.setblocking(False)
        self._frames = FrameReader(self._lifeline)
        self.lifeline_fd = self._lifeline.fileno()

    @property
    def process_id(self) -> int:
        return self._process.pid

    @property
    def is_gone(self) -> bool:
        """Whether the end was seen while reading."""
        return self._frames.is_ended

    def read(self) -> list[Reply]:
        """Return what the process has said by now."""
        return [decode_reply(data) for data in self._frames.read()]

    def ask(self) -> None:
        """Ask what it is doing; a Doing answers, unless it is stopped or hangs with the interpreter's lock."""
        with contextlib.suppress(ConnectionError, BlockingIOError):
            send_frame(self._lifeline, b"?")

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> int:
        """Kill the process and release everything; return its exit status, negative for a signal. Idempotent."""
        status = end_child(self._process)
        self._lifeline.close()
        self.bell.close()
        return status


def wait_for_end(children: Sequence[WorkerChild], timeout_s: float) -> bool:
    """Wait until one of the processes has ended; say whether one has."""
    poller = select.poll()
    for child in children:
        poller.register(child.lifeline_fd, 0)  # hang-ups are always told
    return bool(poller.poll(timeout_s * 1000))
