"""Grammars on the front end's side: what a user asks for becomes a grammar that is known to compile, or an error.

Whatever is new goes through a process that may be lost (see compiler_pool). Verdicts are kept: the same grammar again,
good or bad, costs a look-up.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from octavo.config.configs import StructuredOutputsConfig
from octavo.errors import EngineDeadError, InvalidRequestError
from octavo.structured.compiler_pool import CompilerPool
from octavo.structured.limits import GrammarLimits
from octavo.structured.messages import CompilerStart, GrammarJob, JsonStyle, Verdict
from octavo.structured.vocabulary import Vocabulary
from octavo.types.grammar import GrammarSpec
from octavo.types.structured_params import StructuredOutputsParams, json_text

_MAX_KEPT_BYTES = 32 * 2**20
_PASSING_S = 60.0  # verdicts that are not lasting are kept for so long: a bomb sent again and again costs little


class GrammarChecker:
    """Thread-safe. Takes no process until the first grammar comes, or `warm_up` is called."""

    def __init__(
        self,
        config: StructuredOutputsConfig,
        read_vocabulary: Callable[[], Vocabulary],
        limits: GrammarLimits = GrammarLimits(),  # noqa: B008  # frozen
    ) -> None:
        self.config = config
        self._read_vocabulary = read_vocabulary
        self._limits = limits
        self._lock = threading.Lock()
        self._packed: bytes | None = None
        self._pool: CompilerPool | None = None
        self._is_closed = False
        self._is_vocabulary_sent = False  # only the thread that feeds the core looks at it
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()
        self._kept_bytes = 0
        self._kept_until: dict[bytes, float] = {}  # of verdicts that are not lasting, by `time.monotonic`

    def is_known(self, params: StructuredOutputsParams) -> bool:
        """Say whether `check` would answer at once."""
        return self._recall(self._job(params).key) is not None

    def check(self, params: StructuredOutputsParams) -> GrammarSpec:
        """Return the grammar of a request. Waits for its first compilation; raises InvalidRequestError."""
        job = self._job(params)
        key = job.key
        verdict = self._recall(key)
        if verdict is None:
            verdict = self._compilers().compile(job)
            self._keep(key, verdict)
        if verdict.spec is None:
            name = f"structured_outputs.{job.constraint}"
            raise InvalidRequestError(f"{name} cannot be enforced: {verdict.error}", name)
        return verdict.spec

    def read_vocabulary(self) -> None:
        """Read it now instead of when it is needed."""
        self._packed_vocabulary()

    def warm_up(self) -> None:
        """Read the vocabulary and start a process."""
        self._compilers().warm_up()

    def send_vocabulary(self, send: Callable[[bytes], None]) -> None:
        """Give the engine's core the vocabulary (see Vocabulary.pack), which it needs before any grammar; only once."""
        if not self._is_vocabulary_sent:
            send(self._packed_vocabulary())
            self._is_vocabulary_sent = True

    def _packed_vocabulary(self) -> bytes:
        with self._lock:
            if self._packed is None:
                self._packed = self._read_vocabulary().pack()
            return self._packed

    def close(self) -> None:
        """End the processes; idempotent."""
        with self._lock:
            pool, self._pool = self._pool, None
            self._is_closed = True
        if pool is not None:
            pool.close()

    def _compilers(self) -> CompilerPool:
        vocabulary = self._packed_vocabulary()
        with self._lock:
            if self._is_closed:
                raise EngineDeadError("the engine was shut down")
            if self._pool is None:
                start = CompilerStart(self.config.backend, vocabulary, self._limits)
                self._pool = CompilerPool(start)
            return self._pool

    def _job(self, params: StructuredOutputsParams) -> GrammarJob:
        constraint = params.constraint
        value = getattr(params, constraint)
        if constraint in ("json", "structural_tag"):
            text = json_text(f"structured_outputs.{constraint}", value)
        elif constraint == "choice":
            text = json.dumps(value)
        else:
            text = value if isinstance(value, str) else ""
        return GrammarJob(constraint, text, self._style(params))

    def _style(self, params: StructuredOutputsParams) -> JsonStyle:
        compact, close = params.disable_any_whitespace, params.disable_additional_properties
        return JsonStyle(
            compact=self.config.disable_any_whitespace if compact is None else compact,
            close_objects=self.config.disable_additional_properties if close is None else close,
            whitespace_pattern=params.whitespace_pattern,
        )

    def _recall(self, key: bytes) -> Verdict | None:
        with self._lock:
            if self._kept_until.get(key, math.inf) <= time.monotonic():
                self._forget(key)
            verdict = self._verdicts.get(key)
            if verdict is not None:
                self._verdicts.move_to_end(key)
            return verdict

    def _keep(self, key: bytes, verdict: Verdict) -> None:
        with self._lock:
            if key in self._verdicts:
                return
            self._verdicts[key] = verdict
            self._kept_bytes += _size_bytes(key, verdict)
            if not verdict.is_lasting:
                self._kept_until[key] = time.monotonic() + _PASSING_S
            while self._kept_bytes > _MAX_KEPT_BYTES:
                self._forget(next(iter(self._verdicts)))

    def _forget(self, key: bytes) -> None:
        self._kept_bytes -= _size_bytes(key, self._verdicts.pop(key))
        self._kept_until.pop(key, None)


def _size_bytes(key: bytes, verdict: Verdict) -> int:
    return len(key) + len(verdict.spec.source if verdict.spec else verdict.error or "") + 200
