"""The processes that compile new grammars, seen from the front end: started when needed, replaced when lost.

One job is one grammar. A process that crashes or takes too long is ended, and only the job that it had is lost.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import threading
import time
import weakref
from collections.abc import Iterator

import msgspec

from octavo.errors import EngineDeadError, OverloadedError, RequestFailedError
from octavo.log import get_logger
from octavo.structured.messages import CompilerStart, GrammarJob, Verdict
from octavo.utils.frames import receive_frame, send_frame
from octavo.utils.processes import end_child, start_python

logger = get_logger(__name__)

_PROGRAM = "from octavo.structured.compiler_process import main; main()"
_END_TIMEOUT_S = 1.0  # from the end of the connection to that of the process
_START_TIMEOUT_S = 60.0  # a large vocabulary on a busy machine; a start is no job's fault
_QUEUE_TIMEOUT_S = 10.0  # that a new grammar waits for a process: who waits longer holds a thread for a lost cause
_LARGE_CHARS = 16 * 1024  # grammars over this may take seconds; nearly all that are of use are far below it


class CompilerPool:
    """Up to max_processes compilers. Thread-safe; `compile` waits in the calling thread.

    Where there are several, large grammars never have them all: however many come, a small one need not queue behind.
    """

    def __init__(self, start: CompilerStart, max_processes: int) -> None:
        self._start = start
        self._slots = threading.BoundedSemaphore(max_processes)
        self._slots_for_large = threading.BoundedSemaphore(max(1, max_processes - 1))
        self._idle: list[_Compiler] = []
        self._live: set[_Compiler] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        self._finalizer = weakref.finalize(self, _end_all, self._live)  # also when the interpreter ends

    def warm_up(self) -> None:
        """Start a process unless there is one."""
        with self._slots:
            self._give_back(self._take())

    def compile(self, job: GrammarJob) -> Verdict:
        """Return what came of a grammar; waits for a free process, and then as long as the limits allow.

        Raises OverloadedError when no process becomes free in time.
        A process that somebody else killed says nothing about its grammar, which is then tried once more.
        """
        is_large = len(job.text) > _LARGE_CHARS
        deadline = time.monotonic() + _QUEUE_TIMEOUT_S
        with (
            _slot(self._slots_for_large, deadline) if is_large else contextlib.nullcontext(),
            _slot(self._slots, deadline),
        ):
            verdict, is_own_doing = self._try(job)
            if not is_own_doing:
                verdict, _ = self._try(job)
            return verdict

    def _try(self, job: GrammarJob) -> tuple[Verdict, bool]:
        """Return what came of a grammar, and False if its process was killed from outside."""
        compiler = self._take()
        verdict = compiler.compile(job, self._start.limits.compile_timeout_s)
        if verdict is not None:
            self._give_back(compiler)
            return verdict, True
        was_killed = compiler.was_killed()
        self._discard(compiler)
        logger.warning("the process that compiled a grammar is lost: %s", compiler.loss)
        return Verdict(error=compiler.loss, is_lasting=not was_killed and not compiler.was_late), not was_killed

    def close(self) -> None:
        """End the processes; idempotent."""
        self._is_closed = True
        self._finalizer()

    def _take(self) -> _Compiler:
        with self._lock:
            if self._is_closed:
                raise EngineDeadError("the engine was shut down")
            while self._idle:
                compiler = self._idle.pop()
                if compiler.is_alive():
                    return compiler
                self._discard_locked(compiler)  # ended from outside while it had nothing to do
            compiler = _Compiler(self._start)
            self._live.add(compiler)
        try:
            compiler.wait_until_ready(_START_TIMEOUT_S)
        except BaseException:
            self._discard(compiler)
            raise
        return compiler

    def _give_back(self, compiler: _Compiler) -> None:
        with self._lock:
            self._idle.append(compiler)

    def _discard(self, compiler: _Compiler) -> None:
        with self._lock:
            self._discard_locked(compiler)

    def _discard_locked(self, compiler: _Compiler) -> None:
        compiler.end()
        self._live.discard(compiler)


@contextlib.contextmanager
def _slot(slots: threading.Semaphore, deadline: float) -> Iterator[None]:
    """Hold one of the slots; raises OverloadedError where none is free before a time (`time.monotonic`)."""
    if not slots.acquire(timeout=max(0.0, deadline - time.monotonic())):
        raise OverloadedError(
            f"grammars that came before took more than {_QUEUE_TIMEOUT_S:g} s to compile; try again later"
        )
    try:
        yield
    finally:
        slots.release()


class _Compiler:
    """One process. loss: why it was lost, as its job's author is told; was_late: because it took too long"""

    def __init__(self, start: CompilerStart) -> None:
        self.loss = ""
        self.was_late = False
        self._connection, theirs = socket.socketpair()
        with theirs:
            self._process = start_python(
                _PROGRAM,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # what a hostile grammar makes the library say is nobody's business
                start_new_session=True,  # Ctrl-C is for the front end, which then decides
            )
        self._send(msgspec.msgpack.encode(start))

    def wait_until_ready(self, timeout_s: float) -> None:
        """Wait until jobs may be sent; raises RequestFailedError if the process does not come up."""
        try:
            receive_frame(self._connection, time.monotonic() + timeout_s)
        except (EOFError, OSError) as error:
            raise RequestFailedError(f"the process that compiles grammars does not start: {error}") from error

    def compile(self, job: GrammarJob, timeout_s: float) -> Verdict | None:
        """Return the process's verdict; None if the process is lost."""
        try:
            self._send(msgspec.msgpack.encode(job))
            data = receive_frame(self._connection, time.monotonic() + timeout_s)
        except TimeoutError:
            self.was_late = True
            self.loss = f"it takes more than {timeout_s:g} s to compile"
            return None
        except (EOFError, OSError):
            self.loss = "the grammar library crashed while it compiled it"
            return None
        return msgspec.msgpack.decode(data, type=Verdict)

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def was_killed(self) -> bool:
        """Say whether the process, whose connection has ended, got a SIGKILL: no library does that to itself."""
        if self.was_late:
            return False
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(_END_TIMEOUT_S) == -signal.SIGKILL
        return False

    def end(self) -> None:
        """End the process at once."""
        self._connection.close()
        end_child(self._process)

    def _send(self, data: bytes) -> None:
        self._connection.settimeout(_START_TIMEOUT_S)
        with contextlib.suppress(ConnectionError):  # it is gone already: reading will say so
            send_frame(self._connection, data)


def _end_all(compilers: set[_Compiler]) -> None:
    for compiler in list(compilers):
        compiler.end()
    compilers.clear()
