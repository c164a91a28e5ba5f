"""Stop strings over text that arrives in pieces: where the first one completes, and what may still become one.

Knows characters only; never token ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class StopMatch(NamedTuple):
    """A completed stop string. num_after: characters of the last piece that follow its end."""

    stop_string: str
    num_after: int


class StopMatcher:
    """Watch a stream of text for stop strings, one Knuth-Morris-Pratt automaton a string.

    An automaton's state is the length of the longest prefix of its string that the text so far ends with: reaching the
    whole length is a match, and the largest state is what must be held back from the reader.
    """

    __slots__ = ("_fallbacks", "_states", "_stop_strings")

    def __init__(self, stop_strings: Sequence[str]) -> None:
        self._stop_strings = tuple(stop_strings)
        self._fallbacks = [_fallback_table(stop_string) for stop_string in self._stop_strings]
        self._states = [0] * len(self._stop_strings)

    @property
    def num_held_back(self) -> int:
        """How many characters at the end of the text could still become part of a stop string."""
        return max(self._states)

    def feed(self, piece: str, may_stop: bool = True) -> StopMatch | None:
        """Take the next piece; return the match that completes first (ties: list order), or None.

        may_stop=False lets strings that complete within this piece pass; one that begins here still matches later.
        After a match the matcher is spent.
        """
        first_match: StopMatch | None = None
        for number, stop_string in enumerate(self._stop_strings):
            end = self._advance(number, piece, may_stop)
            if end is not None and (first_match is None or len(piece) - end > first_match.num_after):
                first_match = StopMatch(stop_string, len(piece) - end)
        return first_match

    def _advance(self, number: int, piece: str, may_stop: bool) -> int | None:
        """Run one automaton over the piece; return the position after the character that completes its string."""
        stop_string, fallbacks, state = self._stop_strings[number], self._fallbacks[number], self._states[number]
        length = len(stop_string)
        for position, character in enumerate(piece):
            while state and stop_string[state] != character:
                state = fallbacks[state - 1]
            if stop_string[state] == character:
                state += 1
            if state == length:
                if may_stop:
                    return position + 1
                state = fallbacks[state - 1]
        self._states[number] = state
        return None


def _fallback_table(stop_string: str) -> list[int]:
    """Return, per prefix, the length of the longest proper prefix of the string that the prefix ends with."""
    fallbacks = [0] * len(stop_string)
    state = 0
    for position in range(1, len(stop_string)):
        while state and stop_string[state] != stop_string[position]:
            state = fallbacks[state - 1]
        if stop_string[state] == stop_string[position]:
            state += 1
        fallbacks[position] = state
    return fallbacks
