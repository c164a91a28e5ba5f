"""A process whose forks compile new grammars. They may crash, hang or run out of memory: that costs one grammar.

It reads from its standard input, a socket: first how to compile, then one job at a time, each of which it answers.
"""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import resource
import signal
import socket
import warnings
from collections.abc import Callable

import msgspec
import numpy as np

from octavo.structured.backend import Backend, GrammarError, make_backend
from octavo.structured.messages import Answer, CompilerStart, GrammarJob, JsonStyle, TimedJob, Verdict
from octavo.structured.source import lark_spec
from octavo.structured.vocabulary import Vocabulary
from octavo.types.grammar import GrammarSpec
from octavo.utils.frames import receive_frame, send_frame

_FIRST_JOB = GrammarJob("json", '{"type": "object", "properties": {"a": {"enum": ["b", 1]}}}', JsonStyle())
_NUM_TRIED_TOKENS = 6  # what is too much for the parser often shows behind the first brace


def main() -> None:
    """Have a fork of this process answer jobs until the other side is gone; entry point of the process.

    A fork that is lost is replaced in milliseconds; a process takes half a second of imports and vocabulary.
    """
    connection = socket.socket(fileno=0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore", DeprecationWarning)  # libraries' threads do not matter to the forks
    with contextlib.suppress(EOFError, OSError):
        start = msgspec.msgpack.decode(receive_frame(connection), type=CompilerStart)
        vocabulary = Vocabulary.unpack(start.vocabulary)
        backend = make_backend(start.backend, vocabulary, start.limits)
        make_spec = spec_maker(start.backend)
        num_words = len(vocabulary.tokens) // 32
        backend.compile(make_spec(_FIRST_JOB))  # so that what the first one makes late is there
        gc.freeze()  # and forks share it
        send_frame(connection, b"ready")
        under_way = mmap.mmap(-1, 8)  # the number of the job that the fork has, 0 for none
        while True:
            fork = os.fork()
            if not fork:
                _limit_memory(start.limits.compiler_bytes)
                _serve(connection, under_way, lambda job: judge(make_spec, backend, job, num_words))
                os._exit(0)
            status = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
            number = int.from_bytes(under_way, "little")
            if not number:  # the other side is gone, or a part of what it sends now was lost with the fork
                return
            send_frame(connection, msgspec.msgpack.encode(Answer(number, Verdict(lost_by=status))))
            under_way[:] = bytes(8)


def _serve(connection: socket.socket, under_way: mmap.mmap, judge_job: Callable[[GrammarJob], Verdict]) -> None:
    """Answer jobs until the other side is gone."""
    decoder = msgspec.msgpack.Decoder(TimedJob)
    with contextlib.suppress(EOFError, OSError):
        while True:
            timed = decoder.decode(receive_frame(connection))
            under_way[:] = timed.number.to_bytes(8, "little")
            _end_after(timed.processor_s, timed.elapsed_s)
            verdict = judge_job(timed.job)
            _end_after(0, 0)
            send_frame(connection, msgspec.msgpack.encode(Answer(timed.number, verdict)))
            under_way[:] = bytes(8)


def _end_after(processor_s: float, elapsed_s: float) -> None:
    """Have the system end this process then (SIGPROF, SIGALRM), whatever it computes; 0: never."""
    signal.setitimer(signal.ITIMER_PROF, processor_s)
    signal.setitimer(signal.ITIMER_REAL, elapsed_s)


def spec_maker(backend: str) -> Callable[[GrammarJob], GrammarSpec]:
    """Return what turns jobs into grammars of a backend."""
    if backend == "xgrammar":
        from octavo.structured.xgrammar import xgrammar_spec  # here: it brings PyTorch

        return xgrammar_spec
    return lark_spec


def judge(
    make_spec: Callable[[GrammarJob], GrammarSpec], backend: Backend, job: GrammarJob, num_mask_words: int
) -> Verdict:
    """Compile a job's grammar, try its first tokens, and say what came of it."""
    try:
        spec = make_spec(job)
        matcher = backend.compile(spec)
        mask = np.zeros((1, num_mask_words), np.int32)
        for _ in range(_NUM_TRIED_TOKENS):
            backend.fill_mask(matcher, mask)
            if matcher.error is not None:
                return Verdict(error=matcher.error)
            allowed = np.flatnonzero(mask)
            if len(allowed) == 0:
                return Verdict(error="no text satisfies it")
            word = int(allowed[-1])
            bits = int(mask[0, word]) & 0xFFFFFFFF
            if not matcher.accept(32 * word + bits.bit_length() - 1) or matcher.is_complete:
                break
        if matcher.error is not None:
            return Verdict(error=matcher.error)
    except GrammarError as error:
        return Verdict(error=str(error))
    except (MemoryError, RecursionError):
        return Verdict(error="it takes too much memory to compile")
    return Verdict(spec=spec)


def _limit_memory(num_bytes: int) -> None:
    """Bound the address space, where the system knows such a limit."""
    with contextlib.suppress(OSError, ValueError):
        with open("/proc/self/statm", encoding="ascii") as file:
            present = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (present + num_bytes, present + num_bytes))


if __name__ == "__main__":
    main()
