"""A proposer for tests that knows the results: its guesses are right or wrong as often as a test needs."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from octavo import RequestOutput
from octavo.worker import draft_step, model_runner


class Oracle:
    """A Proposer. sequences: prompts with the outputs to come; share_right: of guesses"""

    def __init__(self, sequences: Sequence[list[int]], vocab_size: int, share_right: float, seed: int) -> None:
        self.sequences = sequences
        self.vocab_size = vocab_size
        self.share_right = share_right
        self.chance = random.Random(seed)
        self.rows: dict[int, list[int]] = {}
        self.num_right = 0

    def add(self, row: int, token_ids: Sequence[int], num_prompt_tokens: int) -> None:
        assert row not in self.rows
        self.rows[row] = list(token_ids)

    def append(self, row: int, token_ids: Sequence[int]) -> None:
        self.rows[row] += token_ids

    def propose(self, rows: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
        return [self._propose(row, length) for row, length in zip(rows, lengths, strict=True)]

    def _propose(self, row: int, max_tokens: int) -> list[int]:
        known = self.rows[row]
        fitting = [sequence for sequence in self.sequences if sequence[: len(known)] == known]
        future = self.chance.choice(fitting)[len(known) :] if fitting else []
        # beyond the end too: nobody may look at what is guessed behind a stop
        guesses = (future + [self.chance.randrange(self.vocab_size) for _ in range(max_tokens)])[:max_tokens]
        for place in range(len(guesses)):
            if self.chance.random() > self.share_right:
                guesses[place] = self.chance.randrange(self.vocab_size)
        return guesses[: self.chance.randint(0, max_tokens)]

    def remove(self, row: int) -> None:
        del self.rows[row]


def sequences_of(outputs: Sequence[RequestOutput]) -> list[list[int]]:
    return [[*output.prompt_token_ids, *c.token_ids] for output in outputs for c in output.outputs]


@contextmanager
def guessing(oracle: Oracle | None = None) -> Iterator[None]:
    """Let engines compute as many guesses as they may, in any batch; those that start in here guess with the oracle."""
    with pytest.MonkeyPatch.context() as patch:
        if oracle is not None:
            patch.setattr(model_runner, "make_proposer", lambda config: oracle)
        patch.setattr(draft_step.DraftLengths, "lengths", lambda self, rows: [self._max_tokens] * len(rows))
        patch.setattr(draft_step.DraftLengths, "pays", lambda self, batch_size: True)
        yield
