"""Where a request is in its grammar: before it while the model reasons, somewhere in it, or at its end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from octavo.log import get_logger
from octavo.structured.backend import Bitmask, Matcher
from octavo.types.grammar import GrammarProgress

logger = get_logger(__name__)


@dataclass(slots=True)
class GrammarPlace:
    """Used by one thread at a time: by that of `taken` or `mask` until it is done.

    reasoning_end: ids that must come before the grammar begins; None once they have
    reasoning_start: ids that must come first to make it so; None once they have, or cannot any more
    num_started: how many of these have come; the answer may begin like them, so the matcher goes along while it can
    num_ahead: how many of these the matcher has taken; None once it could not
    keeps_going: the end-of-sequence ids do not end the request, and are not allowed while anything else is
    call_starts: ids that end the reasoning too where the grammar allows them, and are the first that it holds
    recent: as many of the latest tokens as it takes to recognise the end
    failure: what the matcher raised: it is of no more use, and neither asked nor advanced again
    is_slow: its last mask took long, or will
    mask: the next one, made beside the steps; taken: what became of the token behind it
    """

    matcher: Matcher
    reasoning_end: list[int] | None
    reasoning_start: list[int] | None
    keeps_going: bool
    call_starts: Sequence[list[int]] = ()
    is_slow: bool = False
    num_started: int = 0
    num_ahead: int | None = 0
    recent: list[int] = field(default_factory=list)
    failure: str | None = None
    mask: Future[Bitmask] | None = None
    taken: Future[GrammarProgress] | None = None

    @property
    def error(self) -> str | None:
        """Why the matcher can go no further; None while it can."""
        return self.failure or self.matcher.error

    @property
    def is_busy(self) -> bool:
        """Whether a thread beside the steps is at work on it."""
        return not all(work is None or work.done() for work in (self.mask, self.taken))

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

    def take(self, token_id: int, *, unlocked: bool = False) -> GrammarProgress:
        """Advance by a token. unlocked: without the interpreter lock, so that other threads go on."""
        if self.reasoning_start is not None:
            if token_id == self.reasoning_start[self.num_started]:
                self._start_reasoning(token_id)
                return GrammarProgress.CONTINUES
            if self.num_ahead is None:
                return GrammarProgress.REJECTED
            self.reasoning_start = self.reasoning_end = None
        if self.reasoning_end is not None:
            self._reason(token_id, self.reasoning_end)
            return GrammarProgress.CONTINUES
        accept = self.matcher.accept_unlocked if unlocked else self.matcher.accept
        if not accept(token_id):
            return GrammarProgress.REJECTED
        return GrammarProgress.COMPLETE if self.matcher.is_complete else GrammarProgress.CONTINUES

    def num_reasoning(self, token_ids: Sequence[int]) -> int:
        """Return how many of these tokens come before the one that ends the reasoning: behind it the grammar holds."""
        assert self.reasoning_end is not None
        known = [*self.recent, *token_ids]
        for count in range(1, len(token_ids) + 1):
            before = known[: len(self.recent) + count]
            if any(before[-len(marker) :] == marker for marker in (self.reasoning_end, *self.call_starts)):
                return count - 1
        return len(token_ids)

    def _reason(self, token_id: int, end: list[int]) -> None:
        """Take a token of the reasoning, which may be its last one or the last of a call's start."""
        self.recent = [*self.recent, token_id][-max(map(len, (end, *self.call_starts))) :]
        if self.recent[-len(end) :] == end:
            self.reasoning_end = None
            return
        for marker in self.call_starts:
            if self.recent[-len(marker) :] == marker and self.matcher.num_valid(marker) == len(marker):
                self.reasoning_end = None
                for begun in marker:
                    self.matcher.accept(begun)
                return

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
