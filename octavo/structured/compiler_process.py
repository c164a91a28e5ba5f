"""A process that compiles grammars for the first time. It may crash, hang or run out of memory: that costs one grammar.

It reads from its standard input, a socket: first how to compile, then one job at a time, each of which it answers.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
from collections.abc import Callable

import msgspec
import numpy as np

from octavo.structured.backend import Backend, GrammarError, make_backend
from octavo.structured.messages import CompilerStart, GrammarJob, Verdict
from octavo.structured.source import lark_spec
from octavo.structured.vocabulary import Vocabulary
from octavo.types.grammar import GrammarSpec
from octavo.utils.frames import receive_frame, send_frame

_NUM_TRIED_TOKENS = 6  # what is too much for the parser often shows behind the first brace
_ALARM_DELAY_S = 1.0  # the front end, if it lives, is the first to end a process that takes too long
_NICENESS = 5  # what generates goes first, but a small grammar still passes within a step


def main() -> None:
    """Serve until the other side is gone; entry point of the process."""
    connection = socket.socket(fileno=0)
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        start = msgspec.msgpack.decode(receive_frame(connection), type=CompilerStart)
        vocabulary = Vocabulary.unpack(start.vocabulary)
        backend = make_backend(start.backend, vocabulary, start.limits)
        make_spec = spec_maker(start.backend)
        _limit_memory(start.limits.compiler_bytes)
        send_frame(connection, b"ready")
        decoder = msgspec.msgpack.Decoder(GrammarJob)
        while True:
            job = decoder.decode(receive_frame(connection))
            _end_after(start.limits.compile_timeout_s + _ALARM_DELAY_S)
            verdict = judge(make_spec, backend, job, len(vocabulary.tokens) // 32)
            _end_after(0)
            send_frame(connection, msgspec.msgpack.encode(verdict))
    except (EOFError, OSError):
        return


def _end_after(seconds: float) -> None:
    """Have the system end this process then, whatever it computes; 0: never. For when nobody is left who would."""
    signal.setitimer(signal.ITIMER_REAL, seconds)


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
            backend.fill_masks([matcher], mask)
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
