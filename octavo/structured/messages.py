"""What crosses between a front end and the processes that compile grammars for it."""

from __future__ import annotations

import msgspec

from octavo.structured.limits import GrammarLimits
from octavo.types.grammar import GrammarSpec


class JsonStyle(msgspec.Struct, array_like=True, frozen=True):
    """How JSON is written. compact: no white space; else whitespace_pattern, a regex, says which.

    close_objects: objects whose schema does not speak of further properties have none
    """

    compact: bool = True
    close_objects: bool = False
    whitespace_pattern: str | None = None


class GrammarJob(msgspec.Struct, array_like=True, frozen=True):
    """A constraint to be compiled.

    constraint: a field of StructuredOutputsParams; text: its value, JSON for json, choice and structural_tag
    """

    constraint: str
    text: str
    style: JsonStyle

    @property
    def key(self) -> bytes:
        """Return what is equal for equal jobs."""
        return msgspec.msgpack.encode(self)


class TimedJob(msgspec.Struct, array_like=True):
    """A job with its number, and the processor time that it may take."""

    job: GrammarJob
    processor_s: float
    number: int

    @property
    def elapsed_s(self) -> float:
        """How long it may take by the clock: on a busy machine a process gets a part of a processor."""
        return 2.0 + 4 * self.processor_s


class CompilerStart(msgspec.Struct, array_like=True):
    """How to compile. vocabulary: packed."""

    backend: str
    vocabulary: bytes
    limits: GrammarLimits


class Verdict(msgspec.Struct, array_like=True):
    """The answer to a job: a grammar that has been compiled, or why there is none.

    is_lasting: False if it may say more about the machine at that moment (busy, short of memory) than about the grammar
    lost_by: the exit status of the process that had the job, negative for a signal; None while it lives
    """

    spec: GrammarSpec | None = None
    error: str | None = None
    is_lasting: bool = True
    lost_by: int | None = None


class Answer(msgspec.Struct, array_like=True):
    """The verdict on the job of a number."""

    number: int
    verdict: Verdict
