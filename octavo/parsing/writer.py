"""Events of one output, in order: what the readers of formats write to."""

from __future__ import annotations

import enum
import secrets
import string
from collections.abc import Callable

from octavo.parsing.interface import (
    ContentDelta,
    ParserEvent,
    ReasoningDelta,
    ToolCallArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
)
from octavo.parsing.reader import Reader

# (index of the call in the output, function name) -> id
MakeId = Callable[[int, str], str]

_MISTRAL_ALPHABET = string.ascii_letters + string.digits


def random_id(index: int, name: str) -> str:
    """Return an id as vLLM makes them."""
    return f"chatcmpl-tool-{secrets.token_hex(16)}"


def mistral_id(index: int, name: str) -> str:
    """Return nine letters and digits: the only ids that Mistral's templates take back."""
    return "".join(secrets.choice(_MISTRAL_ALPHABET) for _ in range(9))


def kimi_id(index: int, name: str) -> str:
    """Return an id as Kimi K2 writes them; its template expects them back."""
    return f"functions.{name}:{index}"


class _Kind(enum.Enum):
    REASONING = enum.auto()
    CONTENT = enum.auto()
    ARGUMENTS = enum.auto()


class EventWriter:
    """Collects events; neighbours of one kind become one.

    Content is exactly the text outside reasoning and calls, but for one thing: a stretch of white space that touches a
    call and no other content (the line ends between two calls, or between reasoning and a call) is layout, and dropped.
    """

    __slots__ = (
        *("_call_is_open", "_events", "_kind", "_make_id", "_parts", "_reader", "_space"),
        *("is_reasoning", "num_calls", "num_reasoned"),
    )

    def __init__(self, reader: Reader, make_id: MakeId = random_id) -> None:
        self._reader = reader
        self._make_id = make_id
        self._events: list[ParserEvent] = []
        self._kind = _Kind.CONTENT
        self._parts: list[str] = []  # text of the event that is being put together
        # White space of which it is not known yet whether it is content; None once this stretch has content.
        self._space: list[str] | None = []
        self._call_is_open = False
        self.num_calls = 0
        self.num_reasoned = 0  # characters
        self.is_reasoning = False

    def take_events(self) -> list[ParserEvent]:
        self._flush()
        events, self._events = self._events, []
        return events

    def reasoning(self, text: str) -> None:
        self.num_reasoned += len(text)
        self._add(_Kind.REASONING, text)

    def content(self, text: str) -> None:
        if self._space is not None:
            if not text or text.isspace():
                self._space.append(text)
                return
            text = "".join(self._space) + text
            self._space = None
        self._add(_Kind.CONTENT, text)

    def start_call(self, name: str, call_id: str | None = None) -> None:
        """Begin a call: what was read up to here was its syntax."""
        self._reader.forget()
        self._flush()
        self._space = []
        index = self.num_calls
        self.num_calls += 1
        self._call_is_open = True
        self._events.append(ToolCallStart(index, call_id or self._make_id(index, name), name))

    def arguments(self, json_text: str) -> None:
        """Pass more of the arguments on: they account for all that was read up to here."""
        self._reader.forget()
        self._add(_Kind.ARGUMENTS, json_text)

    def end_call(self, *, is_complete: bool = True) -> None:
        """End the open call, if one is."""
        if self._call_is_open:
            self._flush()
            self._call_is_open = False
            self._events.append(ToolCallEnd(self.num_calls - 1, is_complete))

    def finish(self) -> None:
        """Decide about white space at the end: content, unless it only follows a call."""
        self.end_call(is_complete=False)
        if self._space and not self.num_calls:
            self._add(_Kind.CONTENT, "".join(self._space))

    def _add(self, kind: _Kind, text: str) -> None:
        if not text:
            return
        if kind is not self._kind:
            self._flush()
            self._kind = kind
        self._parts.append(text)

    def _flush(self) -> None:
        if not self._parts:
            return
        text = "".join(self._parts)
        self._parts.clear()
        if self._kind is _Kind.REASONING:
            self._events.append(ReasoningDelta(text))
        elif self._kind is _Kind.CONTENT:
            self._events.append(ContentDelta(text))
        else:
            self._events.append(ToolCallArgumentsDelta(self.num_calls - 1, text))
