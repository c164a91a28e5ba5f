"""Suffix decoding: what followed the longest context that was seen before, in this text or in past outputs, follows.

After Oliaro et al., "SuffixDecoding", 2024. The paper walks suffix trees with counts; here the places
where a context stood before are linked from each to the one before, the latest of them are compared directly, and their
continuations vote. That takes a few words of memory for each token, where a tree takes a node for each of its suffixes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

_GRAM = 3  # tokens that must agree at least
_MAX_PLACES = 16  # the latest, of a text
_MAX_KEPT_TOKENS = 2**18  # of past outputs, in each of the two generations
_SEPARATOR = -1


class SuffixProposer:
    """Texts of rows, and of past outputs in two generations: when the young one is full, the old one goes.

    max_depth: longest context that is compared; max_kept: outputs that are kept
    factor: guesses for each token of context; min_share: see SpeculativeConfig
    """

    def __init__(self, max_depth: int, max_kept: int, factor: float, min_share: float) -> None:
        self._depths = [max_depth, *(depth for depth in (48, 24, 16, 12, 8, 6, 4, _GRAM) if depth < max_depth)]
        self._max_kept = max_kept
        self._factor = factor
        self._min_share = min_share
        self._rows: dict[int, tuple[_Text, int]] = {}  # with the size of the prompt
        self._young = self._old = _Text()

    def add(self, row: int, token_ids: Sequence[int], num_prompt_tokens: int) -> None:
        text = _Text()
        text.extend(token_ids)
        self._rows[row] = text, num_prompt_tokens

    def append(self, row: int, token_ids: Sequence[int]) -> None:
        self._rows[row][0].extend(token_ids)

    def propose(self, rows: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
        return [self._propose(row, length) for row, length in zip(rows, lengths, strict=True)]

    def _propose(self, row: int, max_tokens: int) -> list[int]:
        known = self._rows[row][0].token_ids
        places = [
            (text.token_ids, place)
            for text in (self._rows[row][0], self._young, self._old)
            for place in text.places(known[-_GRAM:])
        ]
        for depth in self._depths if places else ():
            context = known[-depth:]
            deepest = [(text, place) for text, place in places if text[max(place - depth, 0) : place] == context]
            if deepest:
                return self._vote(deepest, min(max_tokens, int(self._factor * depth)))
        return []

    def remove(self, row: int) -> None:
        text, num_prompt_tokens = self._rows.pop(row)
        output = text.token_ids[num_prompt_tokens:]
        if len(output) <= _GRAM or not self._max_kept:
            return
        is_full = len(self._young.token_ids) + len(output) > _MAX_KEPT_TOKENS
        if self._young is self._old or is_full or 2 * self._young.num_outputs >= self._max_kept:
            self._old, self._young = self._young, _Text()
        self._young.extend((*output, _SEPARATOR))
        self._young.num_outputs += 1

    def _vote(self, places: list[tuple[list[int], int]], max_tokens: int) -> list[int]:
        """Return the most frequent continuation of the places, as long as its share is large enough."""
        guesses: list[int] = []
        num_places = len(places)
        while len(guesses) < max_tokens and places:
            if len(places) == 1 and self._min_share * num_places <= 1:
                text, place = places[0]
                rest = text[place : place + max_tokens - len(guesses)]
                return guesses + (rest[: rest.index(_SEPARATOR)] if _SEPARATOR in rest else rest)
            votes = Counter(text[place] for text, place in places if place < len(text))
            token_id, num_votes = max(votes.items(), key=lambda item: item[1], default=(_SEPARATOR, 0))
            if token_id == _SEPARATOR or num_votes < self._min_share * num_places:
                break
            guesses.append(token_id)
            places = [(text, place + 1) for text, place in places if place < len(text) and text[place] == token_id]
        return guesses


class _Text:
    """Tokens, and for each gram of them the place behind its last occurrence and, from each place, the one before.

    The gram at the end is not among them until something follows it.
    """

    __slots__ = ("_before", "_last", "num_outputs", "token_ids")

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.num_outputs = 0
        self._last: dict[int, int] = {}
        self._before: list[int] = []  # by place

    def extend(self, token_ids: Sequence[int]) -> None:
        known, last = self.token_ids, self._last
        for token_id in token_ids:
            gram = hash(tuple(known[-_GRAM:]))
            self._before.append(last.get(gram, 0))
            last[gram] = len(known)
            known.append(token_id)

    def places(self, gram: list[int]) -> list[int]:
        """Return the latest places behind the gram, the last one first."""
        places: list[int] = []
        place = self._last.get(hash(tuple(gram)), 0)
        while place >= _GRAM and len(places) < _MAX_PLACES:
            if self.token_ids[place - _GRAM : place] == gram:
                places.append(place)
            place = self._before[place]
        return places
