"""How many guesses are worth computing: fewer for a row that is often wrong, and fewer in a large batch.

A step of B tokens takes about B + r times what one more token adds, r telling how much of a step is paid once (reading
the weights, mostly). Without guesses it yields B tokens, so a guess must come true with a probability over
B / (B + r): little when one request runs alone, nearly 1 in a large batch, where computing is all that there is to pay.
A draft model's step, shared by the rows that guess, adds its own d to that: (B + d) / (B + r) where all of them do. Few
rows may not be worth one, however sure they are. A row that does not guess is tried with one now and then: rarely
enough to cost little, and as long as that is right it goes on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_MARGIN = 1.15  # guesses must be worth so much more than they cost: chances and costs are estimates
_WEIGHT = 0.12  # of the newest outcome in a row's chance
_MOST_NEEDED = 0.9  # a guess that needs a higher chance gains too little to be looked for
_FIRST_CHANCE = 0.5
_TRIAL_SHARE = 0.012  # of a row's time goes into guesses that are made to see whether they are right
_MAX_CHANCE = 0.995


@dataclass(frozen=True)
class StepCosts:
    """What is paid once a step (r), and for making a guess (d), in units of what one more token adds to a step."""

    fixed: float
    guess: float = 0.0


class DraftLengths:
    """Keeps each row's chance that a guess is right, given that those before it were.

    limits: (least batch size, greatest, most guesses) as the user wants it; batch sizes not named have no limit
    """

    def __init__(
        self, max_num_seqs: int, max_tokens: int, costs: StepCosts, limits: Sequence[tuple[int, int, int]] = ()
    ) -> None:
        self._chances = [_FIRST_CHANCE] * max_num_seqs
        self._savings = [0.0] * max_num_seqs  # of each row for a trial, in steps
        self._max_tokens = max_tokens
        self._guess_cost = costs.guess
        sizes = np.maximum(np.arange(max_num_seqs + 1), 1)
        prices = sizes / (sizes + costs.fixed)  # of what one more token adds, in tokens that the batch would yield
        needed = _MARGIN * prices * (sizes + costs.guess) / sizes  # chance of a guess, where all rows guess
        self._prices: list[float] = prices.tolist()
        self._pays: list[bool] = (needed <= _MOST_NEEDED).tolist()
        self._log_needed: list[float] = np.log(np.minimum(needed, 0.999)).tolist()
        self._most = [max_tokens] * (max_num_seqs + 1)
        for least, greatest, most in limits:
            for size in range(least, min(greatest, max_num_seqs) + 1):
                self._most[size] = min(most, max_tokens)

    def add(self, row: int) -> None:
        self._chances[row] = _FIRST_CHANCE
        self._savings[row] = 1.0

    def pays(self, batch_size: int) -> bool:
        """Say whether guesses may be worth it for any row among so many: if not, they are not even made."""
        return self._pays[batch_size] and self._most[batch_size] > 0

    def lengths(self, rows: Sequence[int]) -> list[int]:
        """Return how many tokens to guess for each of the rows, which are all that generate."""
        lengths = [self._limit(row, len(rows)) for row in rows]
        if not self._guess_cost:
            return lengths
        lengths = self._worth_a_step(rows, lengths)
        return [length or int(self._is_trial(row, len(rows))) for row, length in zip(rows, lengths, strict=True)]

    def _limit(self, row: int, batch_size: int) -> int:
        length = self._log_needed[batch_size] / math.log(self._chances[row])
        return min(int(length), self._most[batch_size])

    def _worth_a_step(self, rows: Sequence[int], lengths: list[int]) -> list[int]:
        """Cut the lengths where too few rows go on to pay for the step that guesses."""
        price = _MARGIN * self._prices[len(rows)]
        for depth in range(1, max(lengths, default=0) + 1):
            chances = [
                self._chances[row] ** depth for row, length in zip(rows, lengths, strict=True) if length >= depth
            ]
            if sum(chances) < price * (len(chances) + self._guess_cost):
                return [min(length, depth - 1) for length in lengths]
        return lengths

    def _is_trial(self, row: int, batch_size: int) -> bool:
        """Say whether to make one guess in this step all the same, for a row that would make none."""
        self._savings[row] += _TRIAL_SHARE
        if self._savings[row] < self._prices[batch_size] * (1 + self._guess_cost):
            return False
        self._savings[row] = 0.0
        self._chances[row] = max(self._chances[row], math.exp(self._log_needed[batch_size]))
        return True

    def observe(self, row: int, guesses: Sequence[int], token_ids: Sequence[int]) -> None:
        """Learn from what a row generated where it had been guessed, whether the guesses were computed or not."""
        chance = self._chances[row]
        for guess, token_id in zip(guesses, token_ids, strict=False):
            chance += _WEIGHT * ((guess == token_id) - chance)
            if guess != token_id:
                break
        self._chances[row] = min(max(chance, 0.01), _MAX_CHANCE)
