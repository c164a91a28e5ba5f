"""Ends a model's reasoning where it has to end: when its budget is used up, or when an answer would be missing.

What is done is a function of the tokens and the logits alone, so it goes on unchanged after a preemption or in a new
engine process.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.ops.interface import Float
from octavo.types.reasoning import ReasoningMarkers


class ReasoningEnd:
    """Forces the end marker once `budget` tokens were generated inside the reasoning.

    Several sections of reasoning share the budget. Markers do not count.
    Where an answer has to follow, an output that would end before it closes its reasoning instead: the end marker takes
    the place of the ids that would end the output.
    """

    def __init__(self, budget: int | None, markers: ReasoningMarkers) -> None:
        """budget: None: no limit"""
        self._budget = budget
        self._start_ids = markers.start_token_ids
        self._end_ids = markers.end_token_ids
        self._ends = [markers.end_token_ids, *markers.further_ends]
        self._answer_ids = markers.answer_token_ids
        self._eos_ids = np.array(markers.eos_token_ids, np.intp)
        self._begins_inside = markers.begins_inside
        self._restart()

    def apply(self, logits: Float, output_ids: Sequence[int]) -> None:
        """Leave only the next id of the end marker if it is due, or give it the weight of the output's end."""
        self._follow(output_ids)
        tail = output_ids[max(self._section_start, len(output_ids) - len(self._end_ids)) :]
        num_matched = _num_matched(tail, self._end_ids)
        next_id = self._end_ids[num_matched]
        if self._is_due(len(output_ids) - num_matched):
            logits.fill(-np.inf)
            logits[next_id] = 0.0
        elif self._eos_ids.size and self._awaits_answer:
            logits[next_id] = max(logits[next_id], logits[self._eos_ids].max())
            logits[self._eos_ids] = -np.inf

    def _is_due(self, end: int) -> bool:
        """Tell whether the budget is used up by a section that ends here."""
        num_used = self._num_earlier + end - self._section_start
        return self._is_inside and self._budget is not None and num_used >= self._budget

    @property
    def _awaits_answer(self) -> bool:
        """Whether the answer is still to come; messages of gpt-oss's other channels may come before it too."""
        return not self._has_answer and (self._is_inside or self._answer_ids != self._end_ids)

    def _restart(self) -> None:
        self._is_inside = self._begins_inside
        self._has_answer = False
        self._num_seen = 0  # of the output
        self._section_start = 0  # place in the output
        self._num_earlier = 0  # tokens of sections that have ended

    def _follow(self, output_ids: Sequence[int]) -> None:
        if len(output_ids) < self._num_seen:  # guessed tokens were taken back
            self._restart()
        while self._num_seen < len(output_ids):
            self._num_seen += 1
            self._pass(output_ids)

    def _pass(self, output_ids: Sequence[int]) -> None:
        """Take one more token of the output into account."""
        end = self._num_seen
        is_answer = output_ids[max(end - len(self._answer_ids), 0) : end] == self._answer_ids
        self._has_answer = self._has_answer or is_answer
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
