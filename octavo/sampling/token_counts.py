"""Which tokens a request has seen and how often it generated them, sparsely: what the penalties need."""

from __future__ import annotations

import numpy as np

from octavo.ops.interface import Int


class TokenCounts:
    """Distinct token ids in order of first appearance, and how often each was generated (0: in the prompt only)."""

    __slots__ = ("_counts", "_ids", "_place_of")

    def __init__(self, prompt_ids: list[int], output_ids: list[int]) -> None:
        distinct = list(dict.fromkeys([*prompt_ids, *output_ids]))
        self._place_of = {token_id: place for place, token_id in enumerate(distinct)}
        capacity = len(distinct) + 64
        self._ids: Int = np.zeros(capacity, np.int32)
        self._ids[: len(distinct)] = distinct
        self._counts: Int = np.zeros(capacity, np.int32)
        places = np.array([self._place_of[token_id] for token_id in output_ids], np.intp)
        np.add.at(self._counts, places, 1)

    def __len__(self) -> int:
        return len(self._place_of)

    @property
    def token_ids(self) -> Int:
        return self._ids[: len(self._place_of)]

    @property
    def output_counts(self) -> Int:
        return self._counts[: len(self._place_of)]

    def add(self, token_id: int) -> None:
        """Count one more generated token."""
        place = self._place_of.setdefault(token_id, len(self._place_of))
        if place == len(self._ids):
            self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
        self._ids[place] = token_id
        self._counts[place] += 1
