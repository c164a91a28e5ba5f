"""Filling the masks of one place at a time, and finding out which ones take long."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from octavo.structured.backend import Backend, Bitmask, Matcher
from octavo.structured.grammar_place import GrammarPlace
from octavo.structured.vocabulary import Vocabulary
from octavo.types.grammar import GrammarSpec

_SLOW_MASK_S = 0.002  # of a processor; most masks take a tenth of it


@dataclass(frozen=True, slots=True)
class Grammar:
    """A compiled grammar. matcher: stays at the begin: copy it; is_slow: already its first mask takes long"""

    matcher: Matcher
    is_slow: bool


class MaskFiller:
    """Thread-safe as long as every place is in one thread's hands."""

    def __init__(self, backend: Backend, vocabulary: Vocabulary) -> None:
        self.backend = backend
        self._num_words = len(vocabulary.tokens) // 32
        self._eos_mask = np.zeros(self._num_words, np.int32)
        for token_id in vocabulary.eos_ids:
            _allow(self._eos_mask, token_id)

    def compile(self, spec: GrammarSpec) -> Grammar:
        """Compile a grammar and make its first mask: what the library prepares late is then there for all copies."""
        matcher, row = self.backend.compile(spec), self.empty_rows(1)
        for _ in range(2):
            begin = time.thread_time()
            self.backend.fill_mask(matcher, row)
            is_slow = time.thread_time() - begin > _SLOW_MASK_S
            if not is_slow:
                break
        return Grammar(matcher, is_slow)

    def empty_rows(self, num_rows: int) -> Bitmask:
        return np.zeros((num_rows, self._num_words), np.int32)

    def next_mask(self, place: GrammarPlace) -> Bitmask:
        """Return the row for a place's next token."""
        row = self.empty_rows(1)
        self.fill(place, (), row, lambda: False)
        return row

    def fill(self, place: GrammarPlace, drafts: Sequence[int], rows: Bitmask, is_late: Callable[[], bool]) -> None:
        """Fill a row for each draft and one for what follows, no more of them once it is late."""
        begin, num_filled = time.thread_time(), 0
        with place.failing_alone():
            num_filled = self._fill_drafts(place, drafts, rows, is_late)
        if place.failure is not None:
            rows[:] = 0
        place.is_slow = time.thread_time() - begin > _SLOW_MASK_S * num_filled

    def _fill_drafts(
        self, place: GrammarPlace, drafts: Sequence[int], rows: Bitmask, is_late: Callable[[], bool]
    ) -> int:
        """Return how many rows were of use; leave the matcher where it was."""
        index = 0
        for index in range(len(rows)):
            self.backend.fill_mask(place.matcher, rows[index : index + 1])
            self._finish_row(place, rows[index])
            if index == len(drafts) or is_late() or place.matcher.num_valid(drafts[index : index + 1]) == 0:
                break  # what follows a draft that is not allowed is never sampled
            place.matcher.accept(drafts[index])
        if index:
            place.matcher.rollback(index)
        return index + 1

    def _finish_row(self, place: GrammarPlace, row: Bitmask) -> None:
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


def _allow(row: Bitmask, token_id: int) -> None:
    """Set a token's bit."""
    row.view(np.uint32)[token_id // 32] |= np.uint32(1 << token_id % 32)
