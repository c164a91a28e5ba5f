"""The processes that compile new grammars, seen from the front end: started when needed, replaced when lost.

One job is one grammar. A process that crashes or takes too long is ended, and only the job that it had is lost.
"""

from __future__ import annotations

import contextlib
import os
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
from octavo.structured.messages import Answer, CompilerStart, GrammarJob, TimedJob, Verdict
from octavo.utils.frames import receive_frame, send_frame
from octavo.utils.processes import end_child, lower_priority, start_python

logger = get_logger(__name__)

_PROGRAM = "from octavo.structured.compiler_process import main; main()"
_START_TIMEOUT_S = 60.0  # a large vocabulary on a busy machine; a start is no job's fault
_QUEUE_TIMEOUT_S = 10.0  # that a new grammar waits for a process: who waits longer holds a thread for a lost cause
_QUICK_S = 0.05  # of processor time: ten times what typical schemas take
_ALARM_DELAY_S = 1.0  # a process ends by its own alarm first: another is there at once then
_NICENESS = 5  # what generates goes first, but a small grammar still passes within a step


class CompilerPool:
    """Two lanes. Thread-safe; `compile` waits in the calling thread.

    Every grammar is tried in the quick lane, for a moment only. Those that take longer start again in the slow one, and
    wait for each other there: however many come, a quick one does not queue behind them.
    """

    def __init__(self, start: CompilerStart) -> None:
        self._limit_s = start.limits.compile_timeout_s
        self.quick = Lane(start, min(_QUICK_S, self._limit_s))
        self.slow = Lane(start, self._limit_s)

    def warm_up(self) -> None:
        """Start a process unless there is one."""
        self.quick.warm_up()

    def compile(self, job: GrammarJob) -> Verdict:
        """Return what came of a grammar; waits for a free process, and then as long as the limits allow.

        Raises OverloadedError when no process becomes free in time, or the one that did was not let compute.
        """
        deadline = time.monotonic() + _QUEUE_TIMEOUT_S
        verdict = self.quick.compile(job, deadline)
        if verdict.lost_by in (-signal.SIGPROF, -signal.SIGALRM):
            verdict = self.slow.compile(job, deadline)
            if verdict.spec is not None:
                verdict.spec = msgspec.structs.replace(verdict.spec, is_costly=True)
        if verdict.lost_by is None:
            return verdict
        if verdict.lost_by == -signal.SIGALRM:
            raise OverloadedError("the machine is too busy to compile the grammar; try again later")
        is_late = verdict.lost_by == -signal.SIGPROF
        reason = f"takes more than {self._limit_s:g} s to compile" if is_late else "crashes the grammar library"
        logger.warning("a grammar %s: its process ended with %d", reason, verdict.lost_by)
        return Verdict(error=f"it {reason}", is_lasting=not is_late and verdict.lost_by != -signal.SIGKILL)

    def close(self) -> None:
        """End the processes; idempotent."""
        self.quick.close()
        self.slow.close()


class Lane:
    """One process, and those who wait for it, first come, first served. processor_s: that a grammar may take here."""

    def __init__(self, start: CompilerStart, processor_s: float) -> None:
        self.slot = threading.BoundedSemaphore(1)
        self._start = start
        self._processor_s = processor_s
        self._lock = threading.Lock()
        self._live: list[_Compiler] = []  # one at most
        self._is_closed = False
        self._finalizer = weakref.finalize(self, _end_all, self._live)  # also when the interpreter ends

    @property
    def process_ids(self) -> list[int]:
        return [compiler.process_id for compiler in self._live]

    def warm_up(self) -> None:
        """Start the process unless it is there."""
        with self.slot:
            self._ready_compiler()

    def compile(self, job: GrammarJob, deadline: float) -> Verdict:
        """Return what came of a grammar; waits for the process until a time (`time.monotonic`).

        A process that somebody else killed says nothing about its grammar, which is then tried once more.
        """
        with _slot(self.slot, deadline):
            verdict = self._ready_compiler().compile(job, self._processor_s)
            if verdict.lost_by == -signal.SIGKILL:
                verdict = self._ready_compiler().compile(job, self._processor_s)
            return verdict

    def close(self) -> None:
        """End the process; idempotent."""
        with self._lock:
            self._is_closed = True
            self._finalizer()

    def _ready_compiler(self) -> _Compiler:
        with self._lock:
            if self._is_closed:
                raise EngineDeadError("the engine was shut down")
            if self._live and self._live[0].is_alive():
                return self._live[0]
            _end_all(self._live)
            compiler = _Compiler(self._start)
            self._live.append(compiler)
        compiler.wait_until_ready(_START_TIMEOUT_S)
        return compiler


@contextlib.contextmanager
def _slot(slot: threading.Semaphore, deadline: float) -> Iterator[None]:
    """Hold a slot; raises OverloadedError where it is not free before a time (`time.monotonic`)."""
    if not slot.acquire(timeout=max(0.0, deadline - time.monotonic())):
        raise OverloadedError(
            f"grammars that came before took more than {_QUEUE_TIMEOUT_S:g} s to compile; try again later"
        )
    try:
        yield
    finally:
        slot.release()


class _Compiler:
    """One process, which has another compile and replaces it when it is lost (see compiler_process)."""

    def __init__(self, start: CompilerStart) -> None:
        self._connection, theirs = socket.socketpair()
        with theirs:
            self._process = start_python(
                _PROGRAM,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # what a hostile grammar makes the library say is nobody's business
                start_new_session=True,  # Ctrl-C is for the front end, which then decides
            )
        self.process_id = self._process.pid
        self._num_jobs = 0
        lower_priority(self.process_id, _NICENESS)
        self._send(msgspec.msgpack.encode(start))

    def wait_until_ready(self, timeout_s: float) -> None:
        """Wait until jobs may be sent; raises RequestFailedError if the process does not come up."""
        try:
            receive_frame(self._connection, time.monotonic() + timeout_s)
        except (EOFError, OSError) as error:
            self.end()
            raise RequestFailedError(f"the process that compiles grammars does not start: {error}") from error
        except BaseException:  # Ctrl-C: the next who listens would take what comes for an answer
            self.end()
            raise

    def compile(self, job: GrammarJob, processor_s: float) -> Verdict:
        """Return the process's verdict; one that is itself lost, or stands still, is ended."""
        self._num_jobs += 1
        timed = TimedJob(job, processor_s, self._num_jobs)
        deadline = time.monotonic() + timed.elapsed_s + _ALARM_DELAY_S
        try:
            self._send(msgspec.msgpack.encode(timed))
            while True:
                answer = msgspec.msgpack.decode(receive_frame(self._connection, deadline), type=Answer)
                if answer.number == timed.number:  # or it was on an earlier one, whose process was lost behind it
                    return answer.verdict
        except (EOFError, OSError) as error:
            self.end()
            return Verdict(lost_by=-signal.SIGALRM if isinstance(error, TimeoutError) else -signal.SIGKILL)
        except BaseException:
            self.end()
            raise

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        """End the process and its own at once."""
        self._connection.close()
        if self.is_alive():
            os.killpg(self.process_id, signal.SIGKILL)
        end_child(self._process)

    def _send(self, data: bytes) -> None:
        self._connection.settimeout(_START_TIMEOUT_S)
        with contextlib.suppress(ConnectionError):  # it is gone already: reading will say so
            send_frame(self._connection, data)


def _end_all(compilers: list[_Compiler]) -> None:
    for compiler in compilers:
        compiler.end()
    compilers.clear()
