"""The core's side of grammars: compiles what has been found harmless, keeps every request's place, fills masks.

Compiling runs in a thread of its own at a low priority, and filling masks in another, so that both go on while the
model computes; both leave the interpreter lock free. Knows token ids; never text.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np

from octavo.errors import InvalidRequestError
from octavo.log import get_logger
from octavo.structured.backend import Backend, Bitmask, GrammarError, Matcher, make_backend
from octavo.structured.limits import GrammarLimits
from octavo.structured.vocabulary import Vocabulary, num_mask_words
from octavo.types.grammar import GrammarProgress, GrammarSpec
from octavo.types.request import GRAMMAR_GAVE_UP
from octavo.types.step import GrammarOutput

Result = TypeVar("Result")
logger = get_logger(__name__)

_MAX_KEPT_GRAMMARS = 256
_MAX_KEPT_CHARS = 2**20  # of their sources; compiled, a grammar takes 50 to 200 times as much
_NICENESS = 10
_SLOW_MASK_S = 0.002  # of a processor; most masks take a tenth of it


class GrammarRequest(Protocol):
    """What the manager reads of a scheduler's request."""

    request_id: str
    grammar: GrammarSpec | None
    reasoning_end_token_ids: list[int] | None
    reasoning_start_token_ids: list[int] | None
    eos_token_id: int | None
    all_token_ids: list[int]
    num_prompt_tokens: int


@dataclass(slots=True)
class _Place:
    """Where a request is in its grammar.

    reasoning_end: ids that must come before the grammar begins; None once they have
    reasoning_start: ids that must come first to make it so; None once they have, or cannot any more
    num_started: how many of these have come; the answer may begin like them, so the matcher goes along while it can
    num_ahead: how many of these the matcher has taken; None once it could not
    recent: as many of the latest tokens as it takes to recognise the end
    keeps_going: the end-of-sequence ids do not end the request, and are not allowed while anything else is
    failure: what the matcher raised: it is of no more use, and neither asked nor advanced again
    is_slow: its last mask took long; mask: the next one, which such a place gets before its request is scheduled
    """

    matcher: Matcher
    reasoning_end: list[int] | None
    reasoning_start: list[int] | None
    keeps_going: bool
    num_started: int = 0
    num_ahead: int | None = 0
    recent: list[int] = field(default_factory=list)
    failure: str | None = None
    is_slow: bool = False
    mask: Future[Bitmask] | None = None

    @property
    def error(self) -> str | None:
        """Why the matcher can go no further; None while it can."""
        return self.failure or self.matcher.error

    @contextlib.contextmanager
    def failing_alone(self) -> Iterator[None]:
        """Keep what the matcher raises to this request, which it ends."""
        try:
            yield
        except Exception as error:
            logger.exception("a grammar failed, which ends its request")
            self.failure = f"{type(error).__name__}: {error}"

    @property
    def is_reasoning(self) -> bool:
        """Whether the next token is free."""
        return self.reasoning_end is not None and self.reasoning_start is None

    def take(self, token_id: int) -> GrammarProgress:
        """Advance by a token."""
        if self.reasoning_start is not None:
            if token_id == self.reasoning_start[self.num_started]:
                self._start_reasoning(token_id)
                return GrammarProgress.CONTINUES
            if self.num_ahead is None:
                return GrammarProgress.REJECTED
            self.reasoning_start = self.reasoning_end = None
        if self.reasoning_end is not None:
            self.recent = [*self.recent, token_id][-len(self.reasoning_end) :]
            if self.recent == self.reasoning_end:
                self.reasoning_end = None
            return GrammarProgress.CONTINUES
        if not self.matcher.accept(token_id):
            return GrammarProgress.REJECTED
        return GrammarProgress.COMPLETE if self.matcher.is_complete else GrammarProgress.CONTINUES

    def num_reasoning(self, token_ids: Sequence[int]) -> int:
        """Return how many of these tokens come before the one that ends the reasoning: behind it the grammar holds."""
        assert self.reasoning_end is not None
        known = [*self.recent, *token_ids]
        size = len(self.reasoning_end)
        for count in range(1, len(token_ids) + 1):
            end = len(self.recent) + count
            if known[max(end - size, 0) : end] == self.reasoning_end:
                return count - 1
        return len(token_ids)

    def _start_reasoning(self, token_id: int) -> None:
        """Take one more of the ids with which reasoning begins."""
        assert self.reasoning_start is not None
        self.num_started += 1
        if self.num_started == len(self.reasoning_start):
            self.reasoning_start = None
            if self.num_ahead:
                self.matcher.rollback(self.num_ahead)
        elif self.num_ahead is not None and self.matcher.num_valid([token_id]) == 1:
            self.matcher.accept(token_id)
            self.num_ahead += 1
        elif self.num_ahead is not None:
            self.matcher.rollback(self.num_ahead)
            self.num_ahead = None


class StructuredOutputManager:
    """The scheduler's GrammarHook. Not thread-safe; its own threads touch nothing but what they are given.

    Costs nothing until `load_vocabulary` is called. num_tokens: width of the logits
    """

    def __init__(self, backend: str, num_tokens: int, limits: GrammarLimits = GrammarLimits()) -> None:  # noqa: B008
        self._backend_name = backend
        self._num_words = num_mask_words(num_tokens)
        self._limits = limits
        self._backend: Future[Backend] | None = None
        self._eos_mask = np.zeros(self._num_words, np.int32)
        self._builder = ThreadPoolExecutor(1, "octavo-grammar", initializer=_lower_priority)
        self._filler = ThreadPoolExecutor(1, "octavo-mask")
        self._slow_filler = ThreadPoolExecutor(1, "octavo-slow-mask", initializer=_lower_priority)
        self._grammars: OrderedDict[GrammarSpec, Future[Matcher]] = OrderedDict()
        self._kept_chars = 0
        self._arriving: dict[str, Future[_Place]] = {}
        self._places: dict[str, _Place] = {}
        self._progress = threading.Event()
        self._started: tuple[list[str], Future[Bitmask]] | None = None

    def load_vocabulary(self, packed: bytes) -> None:
        """Learn the tokens' bytes, before the first request with a grammar; a second time is ignored."""
        if self._backend is not None:
            return
        self._backend = self._submit(self._builder, self._load, packed)

    def wait(self, timeout_s: float) -> None:
        """Wait until some grammar is ready, or until the time is over."""
        self._progress.wait(timeout_s)
        self._progress.clear()

    def close(self) -> None:
        """Let the threads go."""
        self._builder.shutdown(wait=False, cancel_futures=True)
        self._filler.shutdown(wait=False, cancel_futures=True)
        self._slow_filler.shutdown(wait=False, cancel_futures=True)

    # -- requests ------------------------------------------------------------------------------------------------------

    def is_ready(self, request: GrammarRequest) -> bool:
        """Tell whether the request's grammar is there; the first call asks for it. Raises InvalidRequestError."""
        request_id = request.request_id
        if request_id in self._places:
            return True
        arriving = self._arriving.get(request_id)
        if arriving is None:
            output = request.all_token_ids[request.num_prompt_tokens :]
            compiled = self._compiled(request)
            if output or not compiled.done():
                # the builder works in order: a grammar that it compiles is there before the place in it
                arriving = self._submit(self._builder, self._begin, compiled, request, output)
            else:
                arriving = Future()
                self._finish(arriving, compiled, request)
            self._arriving[request_id] = arriving
        if not arriving.done():
            return False
        del self._arriving[request_id]
        try:
            self._places[request_id] = arriving.result()
        except Exception as error:
            if not isinstance(error, GrammarError):
                logger.exception("a grammar failed, which ends its request")
            raise InvalidRequestError(f"{GRAMMAR_GAVE_UP}{error}", "structured_outputs") from None
        return True

    def accept(self, request: GrammarRequest, token_id: int) -> GrammarProgress:
        """Advance the request's grammar by a token that was sampled under its mask."""
        if self._started is not None:  # of a step that failed: its thread must be done with the matchers
            self._started[1].result()
            self._started = None
        place = self._places[request.request_id]
        progress = GrammarProgress.REJECTED
        if place.mask is not None and not place.mask.cancel():
            place.mask.result()  # more than one token of a step: its thread must be done with the matcher
        place.mask = None
        with place.failing_alone():
            progress = place.take(token_id)
        if place.is_slow and progress is GrammarProgress.CONTINUES and not place.is_reasoning:
            place.mask = self._submit(self._slow_filler, self._fill_alone, place)
        return progress

    def may_run(self, request: GrammarRequest) -> bool:
        """Say whether a running request may be scheduled: one whose masks take long sits out until its next is there.

        So nobody waits for it, where a mask that is made beside the forward holds up the whole step.
        """
        mask = self._places[request.request_id].mask
        return mask is None or mask.done()

    def error(self, request: GrammarRequest) -> str | None:
        """Say why the request's grammar can go no further; None while it can, and for a request that is unknown."""
        place = self._places.get(request.request_id)
        return None if place is None else place.error

    def valid_drafts(self, request: GrammarRequest, token_ids: Sequence[int]) -> list[int]:
        """Return the longest prefix of proposals that the grammar allows; while a model reasons, up to its end."""
        place = self._places[request.request_id]
        if place.reasoning_start is not None or place.mask is not None:
            return []
        if place.is_reasoning:
            return list(token_ids[: place.num_reasoning(token_ids)])
        num_valid = 0
        with place.failing_alone():
            num_valid = place.matcher.num_valid(token_ids)
        return list(token_ids[:num_valid])

    def release(self, request: GrammarRequest) -> None:
        """Forget a request; it may be unknown."""
        self._places.pop(request.request_id, None)
        self._arriving.pop(request.request_id, None)

    # -- masks ---------------------------------------------------------------------------------------------------------

    def start_masks(self, request_ids: Sequence[str], drafts: Mapping[str, Sequence[int]]) -> None:
        """Begin to fill the masks that `bitmask` will be asked for."""
        constrained = self._constrained(request_ids)
        places = [self._places[request_id] for request_id in constrained]
        tokens = [list(drafts.get(request_id, ())) for request_id in constrained]
        self._started = (constrained, self._filler.submit(self._fill, places, tokens)) if constrained else None

    def bitmask(self, request_ids: Sequence[str], drafts: Mapping[str, Sequence[int]]) -> GrammarOutput | None:
        """Return the masks of these requests; None if the grammars of none have begun."""
        constrained = self._constrained(request_ids)
        if not constrained:
            return None
        if self._started is None or self._started[0] != constrained:  # requests have ended since
            self.start_masks(constrained, drafts)
        assert self._started is not None
        masks = self._started[1].result()
        self._started = None
        return GrammarOutput(constrained, masks.tobytes())

    def _constrained(self, request_ids: Sequence[str]) -> list[str]:
        return [request_id for request_id in request_ids if not self._places[request_id].is_reasoning]

    def _fill(self, places: Sequence[_Place], drafts: Sequence[Sequence[int]]) -> Bitmask:
        """Return one row per request for the next token and, before it, one for each of its drafts."""
        masks = np.zeros((sum(map(len, drafts)) + len(places), self._num_words), np.int32)
        first = 0
        for place, tokens in zip(places, drafts, strict=True):
            rows = masks[first : first + len(tokens) + 1]
            if place.mask is None:
                self._fill_rows(place, tokens, rows)
            else:
                rows[:] = place.mask.result()
            first += len(rows)
        return masks

    def _fill_alone(self, place: _Place) -> Bitmask:
        """Return the row for a place's next token."""
        row = np.zeros((1, self._num_words), np.int32)
        self._fill_rows(place, (), row)
        return row

    def _fill_rows(self, place: _Place, drafts: Sequence[int], rows: Bitmask) -> None:
        begin = time.thread_time()
        with place.failing_alone():
            self._fill_drafts(self._ready_backend(), place, drafts, rows)
        if place.failure is not None:
            rows[:] = 0
        place.is_slow = time.thread_time() - begin > _SLOW_MASK_S * len(rows)

    def _fill_drafts(self, backend: Backend, place: _Place, drafts: Sequence[int], rows: Bitmask) -> None:
        """Fill a row for each draft and one for what follows; leave the matcher where it was."""
        num_taken = 0
        for index in range(len(rows)):
            backend.fill_mask(place.matcher, rows[index : index + 1])
            self._finish_row(place, rows[index])
            if index == len(drafts) or place.matcher.num_valid(drafts[index : index + 1]) == 0:
                break  # what follows a draft that is not allowed is never sampled
            place.matcher.accept(drafts[index])
            num_taken += 1
        if num_taken:
            place.matcher.rollback(num_taken)

    def _finish_row(self, place: _Place, row: Bitmask) -> None:
        if place.error is not None:
            row[:] = 0  # nothing can be sampled, which ends the request; `error` says why
            return
        if place.reasoning_start is not None:
            if place.num_ahead is None:
                row[:] = 0  # it is reasoning for certain
            _allow(row, place.reasoning_start[place.num_started])
        if place.keeps_going:
            without_end = row & ~self._eos_mask
            if without_end.any():
                row[:] = without_end

    # -- compiling -----------------------------------------------------------------------------------------------------

    def _compiled(self, request: GrammarRequest) -> Future[Matcher]:
        """Return the request's grammar, compiled or on its way. Its matcher stays at the begin: copy it."""
        spec = request.grammar
        assert spec is not None, "only requests with a grammar are constrained"
        assert self._backend is not None, "load_vocabulary comes before the first grammar"
        compiled = self._grammars.get(spec)
        if compiled is None:
            compiled = self._grammars[spec] = self._submit(self._builder, lambda: self._ready_backend().compile(spec))
            self._kept_chars += len(spec.source)
            self._forget_old()
        self._grammars.move_to_end(spec)
        return compiled

    def _forget_old(self) -> None:
        """Keep the latest grammars, as many as the limits allow; requests that run have theirs anyway."""
        while len(self._grammars) > 1:
            if len(self._grammars) <= _MAX_KEPT_GRAMMARS and self._kept_chars <= _MAX_KEPT_CHARS:
                return
            spec, _ = self._grammars.popitem(last=False)
            self._kept_chars -= len(spec.source)

    def _finish(self, arriving: Future[_Place], compiled: Future[Matcher], request: GrammarRequest) -> None:
        try:
            arriving.set_result(self._begin(compiled, request, ()))
        except Exception as error:
            arriving.set_exception(error)

    def _begin(self, compiled: Future[Matcher], request: GrammarRequest, output: Sequence[int]) -> _Place:
        """Return the request's place behind the tokens that it has."""
        end = request.reasoning_end_token_ids or None
        start = request.reasoning_start_token_ids or None if end else None
        place = _Place(compiled.result().copy(), end, start, request.eos_token_id is None)
        for token_id in output:
            if place.take(token_id) is GrammarProgress.REJECTED:
                raise GrammarError(f"the tokens so far do not follow the grammar: {place.matcher.error}")
        return place

    def _load(self, packed: bytes) -> Backend:
        vocabulary = Vocabulary.unpack(packed)
        for token_id in vocabulary.eos_ids:
            _allow(self._eos_mask, token_id)
        return make_backend(self._backend_name, vocabulary, self._limits)

    def _ready_backend(self) -> Backend:
        assert self._backend is not None
        return self._backend.result()

    def _submit(self, threads: ThreadPoolExecutor, work: Callable[..., Result], *args: object) -> Future[Result]:
        """Have it done by a thread, of which `wait` hears."""
        future = threads.submit(work, *args)
        future.add_done_callback(lambda _: self._progress.set())
        return future


def _allow(row: Bitmask, token_id: int) -> None:
    """Set a token's bit."""
    row.view(np.uint32)[token_id // 32] |= np.uint32(1 << token_id % 32)


def _lower_priority() -> None:
    """Let the calling thread give way to those that compute, where the system has priorities for threads."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
