"""Prompt lookup: what followed the last few tokens when they stood in the text before, follows them again.

Saxena, "Prompt Lookup Decoding", 2023. Good where the answer quotes: edited code, summaries, extraction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count


@dataclass(slots=True)
class _History:
    """A row's tokens, and for each n-gram size: hash -> where it ended last, but for the n-gram at the end."""

    token_ids: list[int]
    ends: dict[int, dict[int, int]]


class NgramProposer:
    """Looks for the longest n-gram, of min_size to max_size tokens, that the text ends with and had before."""

    def __init__(self, min_size: int, max_size: int) -> None:
        self._sizes = range(max_size, min_size - 1, -1)
        self._rows: dict[int, _History] = {}

    def add(self, row: int, token_ids: Sequence[int], num_prompt_tokens: int) -> None:
        ends = {}
        for size in self._sizes:
            ngrams = zip(*(token_ids[start : len(token_ids) - 1] for start in range(size)), strict=False)
            ends[size] = dict(zip(map(hash, ngrams), count(size), strict=False))
        self._rows[row] = _History(list(token_ids), ends)

    def append(self, row: int, token_ids: Sequence[int]) -> None:
        history = self._rows[row]
        known = history.token_ids
        for token_id in token_ids:
            for size, ends in history.ends.items():
                if size <= len(known):
                    ends[hash(tuple(known[-size:]))] = len(known)
            known.append(token_id)

    def propose(self, rows: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
        return [self._propose(row, length) for row, length in zip(rows, lengths, strict=True)]

    def _propose(self, row: int, max_tokens: int) -> list[int]:
        history = self._rows[row]
        known = history.token_ids
        for size, ends in history.ends.items():
            end = ends.get(hash(tuple(known[-size:])))
            if end is not None and known[end - size : end] == known[-size:]:
                followed = known[end : end + max_tokens]
                # a text that repeats itself up to its end is taken to go on so
                return (followed * -(-max_tokens // len(followed)))[:max_tokens]
        return []

    def remove(self, row: int) -> None:
        del self._rows[row]
