"""The parser of one output, put together from the formats that a server chose."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.parsing.formats import ToolFormat
from octavo.parsing.harmony import MARKERS as HARMONY_MARKERS
from octavo.parsing.harmony import read_harmony
from octavo.parsing.interface import ParserEvent, Tool
from octavo.parsing.reader import Reader, Steps
from octavo.parsing.reading import read_content, read_reasoning
from octavo.parsing.reasoning import ReasoningFormat
from octavo.parsing.reasoning_tokens import ReasoningTokenCounter, ReasoningTokens
from octavo.parsing.writer import EventWriter, random_id


class StreamParser:
    """Reads one output, in pieces of any size; the joined events do not depend on where the pieces were cut."""

    __slots__ = ("_counter", "_reader", "_steps", "_writer")

    def __init__(self, reader: Reader, writer: EventWriter, steps: Steps[None], counter: ReasoningTokenCounter) -> None:
        """steps: of the whole output; they end only when the output has."""
        self._reader = reader
        self._writer = writer
        self._steps = steps
        self._counter = counter
        next(steps)

    @property
    def is_reasoning(self) -> bool:
        """Tell whether the text so far ends inside the reasoning."""
        return self._writer.is_reasoning

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens fed so far that belong to the reasoning, the marker that ends it not counted."""
        return self._counter.num_tokens if self._writer.num_reasoned else 0

    def feed(self, text: str, token_ids: Sequence[int] = ()) -> list[ParserEvent]:
        """Take new text and its tokens (only counted); return what is certain by now."""
        self._counter.push(token_ids)
        if not text:
            return []
        self._reader.append(text)
        next(self._steps)
        return self._writer.take_events()

    def finish(self) -> list[ParserEvent]:
        """Return the rest: the output has ended. The parser takes nothing more."""
        self._reader.is_final = True
        for _ in self._steps:
            raise AssertionError("a format waits for text after the end of the output")
        self._writer.finish()
        return self._writer.take_events()


def create_parser(
    tool_format: ToolFormat | None = None,
    reasoning: ReasoningFormat | None = None,
    *,
    tools: Sequence[Tool] = (),
    is_reasoning: bool = False,
    reasoning_tokens: ReasoningTokens | None = None,
) -> StreamParser:
    """Return the parser of one output.

    tool_format: None when the request allows no calls; what looks like one is content then
    reasoning: None leaves reasoning in the content
    tools: those of the request; they give untyped values their types, and tell bare calls from other JSON
    is_reasoning: the output begins inside the reasoning (`reasoning.starts_in_reasoning`)
    reasoning_tokens: the ids that `num_reasoning_tokens` needs; without them it counts nothing
    """
    reader = Reader()
    writer = EventWriter(reader, tool_format.make_id if tool_format else random_id)
    steps = _read_output(reader, writer, tool_format, reasoning, {tool.name: tool for tool in tools}, is_reasoning)
    return StreamParser(reader, writer, steps, ReasoningTokenCounter(reasoning_tokens))


def _read_output(
    reader: Reader,
    writer: EventWriter,
    tool_format: ToolFormat | None,
    reasoning: ReasoningFormat | None,
    tools: dict[str, Tool],
    is_reasoning: bool,
) -> Steps[None]:
    if (tool_format and tool_format.is_harmony) or (reasoning and reasoning.is_harmony):
        yield from read_harmony(reader, writer, tool_format, tools)
        return
    if reasoning:
        call_markers = tool_format.opening if tool_format else ()
        yield from read_reasoning(reader, writer, reasoning, is_open=is_reasoning, call_markers=call_markers)
    dropped = reasoning.content_markers if reasoning else ()
    yield from read_content(reader, writer, tool_format, tools, dropped=dropped)


def shown_tokens(tool_format: ToolFormat | None, reasoning: ReasoningFormat | None) -> frozenset[str]:
    """Return the markers that a parser has to see in the text, special tokens or not.

    Some markers are several tokens and some part of one; what matters to a server is which special tokens of its model
    are among them or inside them.
    """
    markers: set[str] = set()
    if tool_format:
        markers.update(HARMONY_MARKERS if tool_format.is_harmony else tool_format.markers)
    if reasoning:
        markers.update(HARMONY_MARKERS if reasoning.is_harmony else reasoning.markers)
    return frozenset(markers)
