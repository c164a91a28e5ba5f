"""What guesses tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Proposer(Protocol):
    """Guesses how each row goes on. Guesses change how fast tokens come, never which tokens.

    Call order of a row: add, then append and propose (each any number of times), remove.
    """

    def add(self, row: int, token_ids: Sequence[int], num_prompt_tokens: int) -> None:
        """Take a row with its prompt and, if it was preempted or goes on after a crash, its output."""
        ...

    def append(self, row: int, token_ids: Sequence[int]) -> None:
        """Take what the row has generated since."""
        ...

    def propose(self, rows: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
        """Return up to so many guesses of what follows for each row; none where nothing speaks for any.

        Called in every step, without rows where no guess is wanted.
        """
        ...

    def remove(self, row: int) -> None:
        """Give the row up."""
        ...
