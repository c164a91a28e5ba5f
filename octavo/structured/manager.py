"""The core's side of grammars: compiles what has been found harmless, keeps every request's place, fills masks.

Masks are filled in a thread while the model computes. What takes long (compiling, some masks, tokens behind these) is
done beside the steps at a low priority, and its request sits out until then. The interpreter lock stays free. Knows
token ids; never text.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol

from octavo.errors import InvalidRequestError
from octavo.log import get_logger
from octavo.structured.backend import Bitmask, GrammarError, make_backend
from octavo.structured.background import BackgroundThread, settled
from octavo.structured.grammar_place import GrammarPlace
from octavo.structured.limits import GrammarLimits
from octavo.structured.mask_filler import Grammar, MaskFiller
from octavo.structured.step_masks import MaskJob, StepMasks
from octavo.structured.vocabulary import Vocabulary
from octavo.types.grammar import GrammarProgress, GrammarSpec
from octavo.types.request import GRAMMAR_GAVE_UP
from octavo.types.step import GrammarOutput

logger = get_logger(__name__)

_MAX_KEPT_GRAMMARS = 256
_MAX_KEPT_CHARS = 2**20  # of their sources; compiled, a grammar takes 50 to 200 times as much


class GrammarRequest(Protocol):
    """What the manager reads of a scheduler's request."""

    request_id: str
    grammar: GrammarSpec | None
    reasoning_end_token_ids: list[int] | None
    reasoning_start_token_ids: list[int] | None
    call_start_token_ids: list[list[int]]
    eos_token_id: int | None
    all_token_ids: list[int]
    num_prompt_tokens: int


class StructuredOutputManager:
    """The scheduler's GrammarHook. Not thread-safe; its own threads touch nothing but what they are given.

    Costs nothing until `load_vocabulary` is called.
    """

    def __init__(self, backend: str, limits: GrammarLimits = GrammarLimits()) -> None:  # noqa: B008
        self._backend_name = backend
        self._limits = limits
        self._progress = threading.Event()
        self._builder = BackgroundThread("octavo-grammar", self._progress)
        self._costly_builder = BackgroundThread("octavo-slow-grammar", self._progress)  # nobody else waits behind these
        self._aside = BackgroundThread("octavo-slow-mask", self._progress)
        self._filler: Future[MaskFiller] | None = None
        self._step_masks = StepMasks(self._fill)
        self._grammars: OrderedDict[GrammarSpec, Future[Grammar]] = OrderedDict()
        self._kept_chars = 0
        self._arriving: dict[str, Future[GrammarPlace]] = {}
        self._arrived: deque[str] = deque()  # ids whose builders are done since `take_ready`
        self._places: dict[str, GrammarPlace] = {}
        self._started: dict[str, MaskJob] = {}  # the masks of the step under way

    def load_vocabulary(self, packed: bytes, beside_steps: bool = False) -> None:
        """Learn the tokens' bytes, before the first request with a grammar; a second time is ignored.

        beside_steps: in the thread that compiles, which lets steps pass but for the time that the library takes
        """
        if self._filler is None:
            work = functools.partial(_load, self._backend_name, packed, self._limits)
            self._filler = self._builder.submit(work) if beside_steps else settled(work)

    def wait(self, timeout_s: float) -> None:
        """Wait until some grammar is ready, or until the time is over."""
        self._progress.wait(timeout_s)
        self._progress.clear()

    def close(self) -> None:
        """Let the threads go."""
        self._builder.close()
        self._costly_builder.close()
        self._aside.close()
        self._step_masks.close()

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
                # its builder works in order: a grammar that it compiles is there before the place in it
                arriving = self._builder_of(request).submit(self._begin, compiled, request, output)
                arriving.add_done_callback(lambda _: self._tell_arrival(request_id))
            else:
                arriving = settled(functools.partial(self._begin, compiled, request, ()))
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

    def take_ready(self) -> list[str]:
        """Return the ids of requests whose grammars have come, or failed, since the last call; some may be gone."""
        return [self._arrived.popleft() for _ in range(len(self._arrived))]

    def begin_accept(self, request: GrammarRequest, token_id: int) -> bool:
        """Say whether `accept` would answer at once. Begins, beside the steps, what takes long; then ask again."""
        if self._started:  # of a step that failed: its thread must be done with the matchers
            self._finish_masks()
        place = self._places[request.request_id]
        if place.taken is None:
            if place.mask is None:
                return True
            place.taken = self._aside.submit(self._take_aside, place, token_id, place.mask)
        return place.taken.done()

    def accept(self, request: GrammarRequest, token_id: int) -> GrammarProgress:
        """Advance the request's grammar by a token that was sampled under its mask."""
        self.begin_accept(request, token_id)
        place = self._places[request.request_id]
        if place.taken is not None:
            taken, place.taken = place.taken, None
            return taken.result()
        progress = GrammarProgress.REJECTED
        with place.failing_alone():
            progress = place.take(token_id)
        return progress

    def may_run(self, request: GrammarRequest) -> bool:
        """Say whether a request may be scheduled: one whose masks take long sits out until its next is there.

        So nobody waits for it, where a mask that is made beside the forward holds up the whole step.
        """
        place = self._places[request.request_id]
        if place.taken is None and place.mask is None:
            if not place.is_slow or place.is_reasoning:
                return True
            place.mask = self._aside.submit(self._ready_filler().next_mask, place)
        return not place.is_busy

    def error(self, request: GrammarRequest) -> str | None:
        """Say why the request's grammar can go no further; None while it can, and for a request that is unknown."""
        place = self._places.get(request.request_id)
        return None if place is None or place.is_busy else place.error

    def valid_drafts(self, request: GrammarRequest, token_ids: Sequence[int]) -> list[int]:
        """Return the longest prefix of proposals that the grammar allows; while a model reasons, up to its end.

        None of a grammar whose masks take long: each draft would need one.
        """
        place = self._places[request.request_id]
        if place.reasoning_start is not None:
            return []
        if place.is_reasoning:
            return list(token_ids[: place.num_reasoning(token_ids)])
        if place.is_slow or place.mask is not None:
            return []
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
        if self._started:  # of a step that failed, or of which all requests have ended since
            self._finish_masks()
        for request_id in request_ids:
            place, tokens = self._places[request_id], drafts.get(request_id, ())
            if not place.is_reasoning:
                rows = self._ready_filler().empty_rows(len(tokens) + 1)
                self._started[request_id] = MaskJob(place, tokens, rows, place.mask)
        if self._started:
            self._step_masks.start(list(self._started.values()))

    def bitmask(self, request_ids: Sequence[str], drafts: Mapping[str, Sequence[int]]) -> GrammarOutput | None:
        """Return the masks of these requests; None if the grammars of none have begun."""
        if not self._started:
            self.start_masks(request_ids, drafts)
        jobs = self._finish_masks()
        constrained = [request_id for request_id in request_ids if request_id in jobs]
        if not constrained:
            return None
        in_time = [request_id for request_id in constrained if jobs[request_id].is_in_time]
        late = [request_id for request_id in constrained if not jobs[request_id].is_in_time]
        return GrammarOutput(in_time, b"".join(jobs[request_id].rows.tobytes() for request_id in in_time), late)

    def _finish_masks(self) -> dict[str, MaskJob]:
        """Wait for the masks that were started, as long as others may; return them."""
        jobs, self._started = self._started, {}
        if jobs:
            self._step_masks.finish()
        for job in jobs.values():
            if job.afterwards is not None:
                job.place.mask = job.afterwards
                job.afterwards.add_done_callback(lambda _: self._progress.set())
        return jobs

    def _fill(self, job: MaskJob) -> None:
        if job.made is None:
            self._ready_filler().fill(job.place, job.drafts, job.rows, lambda: job.afterwards is not None)
        else:
            job.rows[:] = job.made.result()

    def _take_aside(self, place: GrammarPlace, token_id: int, mask: Future[Bitmask]) -> GrammarProgress:
        """Advance a place by a token, and begin its next mask."""
        mask.result()  # the step was faster than who made it
        progress = GrammarProgress.REJECTED
        with place.failing_alone():
            progress = place.take(token_id, unlocked=True)
        is_next = place.is_slow and progress is GrammarProgress.CONTINUES and not place.is_reasoning
        place.mask = self._aside.submit(self._ready_filler().next_mask, place) if is_next else None
        return progress

    # -- compiling -----------------------------------------------------------------------------------------------------

    def _compiled(self, request: GrammarRequest) -> Future[Grammar]:
        """Return the request's grammar, compiled or on its way."""
        spec = request.grammar
        assert spec is not None, "only requests with a grammar are constrained"
        compiled = self._grammars.get(spec)
        if compiled is None:
            builder = self._builder_of(request)
            compiled = self._grammars[spec] = builder.submit(lambda: self._ready_filler().compile(spec))
            self._kept_chars += len(spec.source)
            self._forget_old()
        self._grammars.move_to_end(spec)
        return compiled

    def _tell_arrival(self, request_id: str) -> None:
        self._arrived.append(request_id)
        self._progress.set()  # once more: who was woken before might have looked too early

    def _builder_of(self, request: GrammarRequest) -> BackgroundThread:
        return self._costly_builder if request.grammar is not None and request.grammar.is_costly else self._builder

    def _forget_old(self) -> None:
        """Keep the latest grammars, as many as the limits allow; requests that run have theirs anyway."""
        while len(self._grammars) > 1:
            if len(self._grammars) <= _MAX_KEPT_GRAMMARS and self._kept_chars <= _MAX_KEPT_CHARS:
                return
            spec, _ = self._grammars.popitem(last=False)
            self._kept_chars -= len(spec.source)

    def _begin(self, compiled: Future[Grammar], request: GrammarRequest, output: Sequence[int]) -> GrammarPlace:
        """Return the request's place behind the tokens that it has."""
        end = request.reasoning_end_token_ids or None
        start = request.reasoning_start_token_ids or None if end else None
        grammar = compiled.result()
        keeps_going, calls = request.eos_token_id is None, request.call_start_token_ids
        place = GrammarPlace(grammar.matcher.copy(), end, start, keeps_going, calls, grammar.is_slow)
        for token_id in output:
            if place.take(token_id, unlocked=place.is_slow) is GrammarProgress.REJECTED:
                raise GrammarError(f"the tokens so far do not follow the grammar: {place.matcher.error}")
        return place

    def _ready_filler(self) -> MaskFiller:
        assert self._filler is not None, "load_vocabulary comes before the first grammar"
        return self._filler.result()


def _load(backend_name: str, packed: bytes, limits: GrammarLimits) -> MaskFiller:
    vocabulary = Vocabulary.unpack(packed)
    return MaskFiller(make_backend(backend_name, vocabulary, limits), vocabulary)
