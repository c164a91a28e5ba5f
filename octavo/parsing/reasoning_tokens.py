"""Counting the tokens of the reasoning by their ids, so that the count does not depend on how a stream was cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.parsing.harmony import BODY_ENDS
from octavo.parsing.reasoning import ReasoningFormat
from octavo.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ReasoningTokens:
    """The ids of a format's markers with one tokenizer; several for a marker that is several tokens.

    comes_in_messages: reasoning is what stands between an opening and the next end, as often as there are such
    """

    ends: tuple[tuple[int, ...], ...]
    openings: tuple[tuple[int, ...], ...]
    comes_in_messages: bool = False


def reasoning_tokens(
    reasoning: ReasoningFormat, tokenizer: Tokenizer, call_markers: Sequence[str] = ()
) -> ReasoningTokens:
    """Look the markers up. call_markers: those of the tool format, which may end the reasoning as well."""
    if reasoning.is_harmony:
        ends: Sequence[str] = BODY_ENDS
    else:
        ends = (*reasoning.closing, *(call_markers if reasoning.ends_at_call else ()))
    return ReasoningTokens(_ids_of(ends, tokenizer), _ids_of(reasoning.opening, tokenizer), reasoning.is_harmony)


def _ids_of(markers: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    encoded = (tuple(tokenizer.encode(marker, add_special_tokens=False)) for marker in markers)
    return tuple(ids for ids in encoded if ids)


class ReasoningTokenCounter:
    """Counts the tokens of an output up to the first ids that end the reasoning, the opening marker not counted."""

    __slots__ = ("_is_counting", "_last", "_longest", "_markers", "_num_pushed", "num_tokens")

    def __init__(self, markers: ReasoningTokens | None) -> None:
        self._markers = markers
        self._is_counting = markers is not None and not markers.comes_in_messages
        self._last: tuple[int, ...] = ()
        self._longest = max((len(ids) for ids in (*markers.ends, *markers.openings)), default=1) if markers else 1
        self._num_pushed = 0
        self.num_tokens = 0

    def push(self, token_ids: Sequence[int]) -> None:
        if self._markers is None or not (self._is_counting or self._markers.comes_in_messages):
            return
        for token_id in token_ids:
            self._num_pushed += 1
            self._last = (*self._last, token_id)[-self._longest :]
            if self._is_counting:
                self.num_tokens += 1
                self._take_ends(self._markers)
            self._take_openings(self._markers)

    def _take_ends(self, markers: ReasoningTokens) -> None:
        for ids in markers.ends:
            if self._last[-len(ids) :] == ids:
                self.num_tokens = max(0, self.num_tokens - len(ids))
                self._is_counting = False
                return

    def _take_openings(self, markers: ReasoningTokens) -> None:
        for ids in markers.openings:
            if self._last[-len(ids) :] == ids:
                if markers.comes_in_messages:
                    self._is_counting = True
                elif self._num_pushed == len(ids):
                    self.num_tokens = 0
                return
