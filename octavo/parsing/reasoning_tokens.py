"""Counting the tokens of the reasoning by their ids, so that the count does not depend on how a stream was cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.parsing.reasoning import ReasoningFormat
from octavo.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ReasoningTokens:
    """The ids of a format's markers with one tokenizer; several for a marker that is several tokens."""

    ends: tuple[tuple[int, ...], ...]
    openings: tuple[tuple[int, ...], ...]


def reasoning_tokens(
    reasoning: ReasoningFormat, tokenizer: Tokenizer, call_markers: Sequence[str] = ()
) -> ReasoningTokens:
    """Look the markers up. call_markers: those of the tool format, which may end the reasoning as well."""
    ends = (*reasoning.closing, *(call_markers if reasoning.ends_at_call else ()))
    return ReasoningTokens(_ids_of(ends, tokenizer), _ids_of(reasoning.opening, tokenizer))


def _ids_of(markers: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(tokenizer.encode(marker, add_special_tokens=False)) for marker in markers)


class ReasoningTokenCounter:
    """Counts tokens up to the first ids that end the reasoning, the opening marker not counted."""

    __slots__ = ("_has_ended", "_last", "_markers", "_num_before_end", "_num_opening", "_window")

    def __init__(self, markers: ReasoningTokens | None) -> None:
        self._markers = markers
        self._has_ended = markers is None
        self._num_before_end = 0
        self._num_opening = 0
        self._last: tuple[int, ...] = ()
        self._window = max((len(ids) for ids in (*markers.ends, *markers.openings)), default=0) if markers else 0

    @property
    def num_tokens(self) -> int:
        return max(0, self._num_before_end - self._num_opening)

    def push(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            if self._has_ended or self._markers is None:
                return
            self._num_before_end += 1
            self._last = (*self._last, token_id)[-self._window :]
            if self._last in self._markers.openings and self._num_before_end == len(self._last):
                self._num_opening = len(self._last)
            for ids in self._markers.ends:
                if ids and self._last[-len(ids) :] == ids:
                    self._num_before_end -= len(ids)
                    self._has_ended = True
                    break
