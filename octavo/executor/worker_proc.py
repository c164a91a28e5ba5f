"""A worker in a process of its own.

The main thread waits for a message, executes it, replies. Another one waits for the lifeline: it answers what this
process is doing, and ends the process at once, whatever it computes, when the executor is gone.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import socket
import sys
import threading
import traceback
from typing import NoReturn

from octavo.distributed.place import WorkerPlace
from octavo.distributed.rendezvous import shared_directory
from octavo.executor.broadcast import BroadcastReader
from octavo.executor.messages import CallReply, Doing, ErrorReply, StartWorker, decode_start, encode
from octavo.log import get_logger
from octavo.types.raised_error import error_as_data
from octavo.utils.frames import receive_frame, send_frame
from octavo.utils.processes import end_process

logger = get_logger(__name__)


def main(lifeline_fd: int, bell_fd: int, memory_fd: int, num_readers: int, index: int) -> NoReturn:
    """Run one worker; entry point of the process.

    lifeline_fd: first message StartWorker, afterwards questions; replies go back
    bell_fd, memory_fd, num_readers, index: of the broadcast of commands
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the front end, which then decides
    lifeline = socket.socket(fileno=lifeline_fd)
    commands = BroadcastReader(memory_fd, num_readers, index, socket.socket(fileno=bell_fd))
    try:
        start = decode_start(receive_frame(lifeline))
    except EOFError:
        end_process(0)
    process = _WorkerProcess(lifeline, start.place)
    threading.Thread(target=process.watch, name="lifeline", daemon=True).start()
    process.run(start, commands)


class _WorkerProcess:
    """The two threads' common state: the lifeline, on which both send."""

    def __init__(self, lifeline: socket.socket, place: WorkerPlace) -> None:
        self._lifeline = lifeline
        self._place = place
        self._sending = threading.Lock()

    def watch(self) -> NoReturn:
        """Answer questions until the executor is gone; then end the process."""
        while True:
            try:
                receive_frame(self._lifeline)
            except (EOFError, ConnectionError):
                if self._place.address.startswith("shm:"):  # the executor may have died while its workers met
                    shutil.rmtree(shared_directory(self._place.address), ignore_errors=True)
                end_process(0)
            self._send(encode(Doing(where_is(threading.main_thread().ident or 0))))

    def run(self, start: StartWorker, commands: BroadcastReader) -> NoReturn:
        """Start the worker and execute commands until no more will come."""
        if self._place.rank > 0:
            logging.getLogger("octavo").setLevel(logging.WARNING)  # rank 0 says the same
        from octavo.executor.worker_server import WorkerServer  # here: by now the executor's end is seen

        try:
            server = WorkerServer(start)
        except BaseException as error:
            self._send(encode(ErrorReply(0, error_as_data(error))))
            end_process(1)
        gc.collect()
        gc.freeze()  # what is there stays: later collections need not look at it
        self._send(encode(CallReply(0, None)))
        while True:
            try:
                command = commands.read()
            except EOFError:
                server.shutdown()
                end_process(0)
            reply = server.handle(command)
            if reply is not None:
                self._send(reply)

    def _send(self, reply: bytes) -> None:
        with self._sending:
            try:
                send_frame(self._lifeline, reply)
            except ConnectionError:
                end_process(0)


def where_is(thread: int) -> str:
    """Return the innermost calls of a thread, by its identity."""
    calls = traceback.extract_stack(sys._current_frames()[thread])[-_NUM_SHOWN_CALLS:]
    return " > ".join(f"{os.path.basename(call.filename)}:{call.lineno} {call.name}" for call in calls)


_NUM_SHOWN_CALLS = 3
