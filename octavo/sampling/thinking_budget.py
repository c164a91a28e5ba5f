"""Ends a model's reasoning when its budget of tokens is used up, by forcing the marker that ends it.

What is forced is a function of the tokens alone, so it goes on unchanged after a preemption or in a new engine process.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.ops.interface import Float
from octavo.types.reasoning import ReasoningMarkers


class ThinkingBudget:
    """Forces the end marker once `budget` tokens were generated inside the reasoning.

    Several sections of reasoning share the budget. Markers do not count.
    """

    def __init__(self, budget: int, markers: ReasoningMarkers) -> None:
        self._budget = budget
        self._start_ids = markers.start_token_ids
        self._end_ids = markers.end_token_ids
        self._ends = [markers.end_token_ids, *markers.further_ends]
        self._begins_inside = markers.begins_inside
        self._restart()

    def apply(self, logits: Float, output_ids: Sequence[int]) -> None:
        """Leave only the next id of the end marker if it is due."""
        forced = self._forced_id(output_ids)
        if forced is not None:
            logits.fill(-np.inf)
            logits[forced] = 0.0

    def _restart(self) -> None:
        self._is_inside = self._begins_inside
        self._num_seen = 0  # of the output
        self._section_start = 0  # place in the output
        self._num_earlier = 0  # tokens of sections that have ended

    def _forced_id(self, output_ids: Sequence[int]) -> int | None:
        if len(output_ids) < self._num_seen:  # guessed tokens were taken back
            self._restart()
        while self._num_seen < len(output_ids):
            self._num_seen += 1
            self._pass(output_ids)
        if not self._is_inside:
            return None
        tail = output_ids[max(self._section_start, len(output_ids) - len(self._end_ids)) :]
        num_matched = _num_matched(tail, self._end_ids)
        num_used = self._num_earlier + len(output_ids) - self._section_start - num_matched
        return self._end_ids[num_matched] if num_used >= self._budget else None

    def _pass(self, output_ids: Sequence[int]) -> None:
        """Take one more token of the output into account."""
        end = self._num_seen
        for marker in self._ends if self._is_inside else (self._start_ids,):
            begin = end - len(marker)
            if not marker or begin < self._section_start or output_ids[begin:end] != marker:
                continue
            if self._is_inside:
                self._num_earlier += begin - self._section_start
            self._is_inside = not self._is_inside
            self._section_start = end
            return


def _num_matched(token_ids: Sequence[int], marker: list[int]) -> int:
    """Return how many ids of the marker, less than all, the tokens end with."""
    for size in range(min(len(marker) - 1, len(token_ids)), 0, -1):
        if list(token_ids[-size:]) == marker[:size]:
            return size
    return 0
