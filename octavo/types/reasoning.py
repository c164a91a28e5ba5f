"""How a model's reasoning begins and ends, as token ids: what the engine needs of a reasoning format."""

from __future__ import annotations

import msgspec


class ReasoningMarkers(msgspec.Struct, array_like=True, frozen=True):
    """The ids around a model's reasoning, and where an output begins.

    start_token_ids: empty when nothing but the prompt can begin it; end_token_ids: never empty
    begins_inside: the output begins inside the reasoning
    may_begin: it begins outside, and its first tokens may be the start
    further_ends: other ids that end it: markers of calls, before which some models leave the end out
    answer_token_ids: ids after which the answer comes; the same as the end for most formats
    eos_token_ids: cannot end an output before its answer has begun, for which a grammar waits; empty without one
    """

    start_token_ids: list[int]
    end_token_ids: list[int]
    begins_inside: bool = False
    may_begin: bool = False
    answer_token_ids: list[int] = []
    further_ends: list[list[int]] = []
    eos_token_ids: list[int] = []

    @property
    def ids_before_answer(self) -> list[int] | None:
        """Return the ids after which the answer begins; None when it begins with the output."""
        return self.answer_token_ids if self.begins_inside or self.may_begin else None

    @property
    def ids_that_may_begin(self) -> list[int] | None:
        """Return the ids without which an output has no reasoning and is an answer at once; None if it cannot be."""
        answers_at_once = self.may_begin and not self.begins_inside and self.answer_token_ids == self.end_token_ids
        return self.start_token_ids if answers_at_once else None
