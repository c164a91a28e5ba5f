"""The text of one output while it arrives, and the steps that every format is read with.

A format is read by generators that look like ordinary recursive descent. Where they need text that is not there yet
they yield, and go on when more has come. What they consume is gone from the buffer, so the work is linear in the
length of the output, however it is cut; it is kept in `held` until the reader knows what it was: syntax (forgotten),
or, when a call turns out not to be one, content.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import TypeVar

Result = TypeVar("Result")
# A generator that yields whenever it needs more text.
Steps = Generator[None, None, Result]
Emit = Callable[[str], None]

_SPACE = re.compile(r"[ \t\r\n]*")


class MalformedCallError(Exception):
    """What is being read is not a call after all, or the output ended inside it."""


class Stops:
    """Markers to look for in text that is read in pieces. None may begin like another whole one."""

    __slots__ = ("_first_characters", "_pattern", "longest", "markers")

    def __init__(self, markers: tuple[str, ...]) -> None:
        """markers: not empty; none begins another, or it would depend on the pieces which one is found."""
        assert all(markers) and not any(a != b and b.startswith(a) for a in markers for b in markers), markers
        self.markers = markers
        self.longest = max(len(marker) for marker in markers)
        self._pattern = re.compile("|".join(re.escape(marker) for marker in markers))
        self._first_characters = re.compile(f"[{re.escape(''.join({marker[0] for marker in markers}))}]")

    def find(self, text: str, start: int, end: int, *, is_final: bool) -> tuple[int, str | None]:
        """Return where the first marker begins, and the marker; or where one may begin that is not whole yet, and None.

        Without either: where the search ended, and None. end: look no further; is_final: no more text will come
        """
        limit = min(end, len(text))
        found = self._pattern.search(text, start, limit)
        if not is_final:
            tail = max(start, limit - self.longest + 1)
            for candidate in self._first_characters.finditer(text, tail, found.start() if found else limit):
                rest = text[candidate.start() : limit]
                if any(marker.startswith(rest) for marker in self.markers):
                    return candidate.start(), None
        return (found.start(), found[0]) if found else (limit, None)


class Reader:
    """The unread text of an output, `text[at:]`, and what was read of a thing that is still undecided (`held`)."""

    __slots__ = ("_held", "at", "is_final", "is_over", "num_taken", "text")

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.is_final = False
        self.is_over = False  # more was wanted, and there was none
        self.num_taken = 0  # characters consumed so far
        self._held: list[str] | None = None

    def append(self, text: str) -> None:
        self.text = self.text[self.at :] + text
        self.at = 0

    def take(self, end: int) -> str:
        """Consume up to an index of `text`."""
        piece = self.text[self.at : end]
        self.num_taken += end - self.at
        self.at = end
        if self._held is not None:
            self._held.append(piece)
        return piece

    def hold(self) -> None:
        """Keep what is consumed from now on."""
        self._held = []

    def forget(self) -> None:
        """Drop what is held (it was syntax, or has been passed on), and go on holding."""
        if self._held:
            self._held = []

    def release(self) -> str:
        """Return what is held, and hold no more."""
        held = "".join(self._held or ())
        self._held = None
        return held

    def more(self) -> Steps[bool]:
        """Wait for more text; False when the output has ended."""
        num_unread = len(self.text) - self.at
        while not self.is_final:
            yield
            if len(self.text) - self.at > num_unread:
                return True
        self.is_over = True
        return False

    def until(self, stops: Stops, emit: Emit) -> Steps[str | None]:
        """Pass text on up to the first of the markers, and return it unread; None when the output ended first."""
        while True:
            end, marker = stops.find(self.text, self.at, len(self.text), is_final=self.is_final)
            if end > self.at:
                emit(self.take(end))
            if marker is not None:
                return marker
            if self.is_final:
                return None
            yield from self.more()

    def rest(self, emit: Emit) -> Steps[None]:
        """Pass all text on to the end of the output."""
        while True:
            if self.at < len(self.text):
                emit(self.take(len(self.text)))
            if not (yield from self.more()):
                return

    def peek(self, options: tuple[str, ...]) -> Steps[str | None]:
        """Return the longest of the options that comes next, unread, or None."""
        longest = max(map(len, options))
        while True:
            ahead = self.text[self.at : self.at + longest]
            possible = [option for option in options if option.startswith(ahead) or ahead.startswith(option)]
            if not possible:
                return None
            if ahead.startswith(max(possible, key=len)) or not (yield from self.more()):
                return max((option for option in possible if ahead.startswith(option)), key=len, default=None)

    def accept(self, options: tuple[str, ...]) -> Steps[str | None]:
        """Consume and return the longest of the options that comes next; None, and nothing consumed, if none does."""
        found = yield from self.peek(options)
        if found is not None:
            self.take(self.at + len(found))
        return found

    def expect(self, literal: str) -> Steps[None]:
        """Consume a literal. Raises MalformedCallError when something else comes."""
        if (yield from self.accept((literal,))) is None:
            raise MalformedCallError

    def character(self) -> Steps[str]:
        """Return the next character, unread. Raises MalformedCallError at the end of the output."""
        if self.at == len(self.text) and not (yield from self.more()):
            raise MalformedCallError
        return self.text[self.at]

    def skip_space(self, also: str = "") -> Steps[None]:
        """Consume spaces, tabs, line ends, and the other characters given."""
        pattern = re.compile(f"[ \\t\\r\\n{re.escape(also)}]*") if also else _SPACE
        while True:
            found = pattern.match(self.text, self.at)
            assert found
            if found.end() > self.at:
                self.take(found.end())
            if self.at < len(self.text) or not (yield from self.more()):
                return

    def run(self, pattern: re.Pattern[str], limit: int) -> Steps[str]:
        """Consume and return characters while they match (a pattern of one character, repeated); may be empty.

        Raises MalformedCallError when there are more than `limit`, or the output ends.
        """
        parts: list[str] = []
        allowed = limit
        while True:
            found = pattern.match(self.text, self.at, self.at + allowed)
            assert found
            parts.append(self.take(found.end()))
            allowed -= len(parts[-1])
            if self.at < len(self.text) and not pattern.fullmatch(self.text, self.at, self.at + 1):
                return "".join(parts)
            if not allowed or not (yield from self.more()):
                raise MalformedCallError

    def short_text(self, stops: Stops, limit: int) -> Steps[tuple[str, str]]:
        """Consume and return the text before a marker, and the marker, which is left unread.

        Raises MalformedCallError when the text is longer than `limit`, or the output ends.
        """
        parts: list[str] = []
        allowed = limit
        while True:
            window = self.at + allowed + stops.longest
            end, marker = stops.find(self.text, self.at, window, is_final=self.is_final)
            is_too_long = end - self.at > allowed
            if end > self.at:
                parts.append(self.take(min(end, self.at + allowed)))
                allowed -= len(parts[-1])
            if is_too_long:
                raise MalformedCallError
            if marker is not None:
                return "".join(parts), marker
            if not (yield from self.more()):
                raise MalformedCallError
