"""One output from beginning to end: reasoning, then content and calls."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.parsing.formats import CallContext, ToolFormat
from octavo.parsing.interface import Tool
from octavo.parsing.reader import MalformedCallError, Reader, Steps, Stops
from octavo.parsing.reasoning import ReasoningFormat
from octavo.parsing.writer import EventWriter


def read_reasoning(
    reader: Reader, writer: EventWriter, reasoning: ReasoningFormat, *, is_open: bool, call_markers: tuple[str, ...]
) -> Steps[None]:
    """Read the reasoning, if the output has any, and the marker that ends it.

    is_open: the output begins inside it; an opening marker is then read over, as some models repeat it
    call_markers: end the reasoning too, where the format says so
    """
    writer.is_reasoning = is_open
    reader.hold()
    yield from reader.skip_space()
    marker = (yield from reader.accept(reasoning.opening)) if reasoning.opening else None
    before = reader.release()
    if reasoning.stays_in_content or (marker is None and not is_open):
        writer.is_reasoning = False
        writer.content(f"{reasoning.opening[0]}{before}" if marker is None and is_open else before)
        return
    if marker is None:
        writer.reasoning(before)
    writer.is_reasoning = True
    ending = (*reasoning.closing, *(call_markers if reasoning.ends_at_call else ()))
    found = yield from reader.until(Stops(ending), writer.reasoning)
    writer.is_reasoning = False
    if found in reasoning.closing:
        assert found is not None
        reader.take(reader.at + len(found))
        if reasoning.drops_space:
            yield from reader.skip_space()


def read_content(
    reader: Reader,
    writer: EventWriter,
    tool_format: ToolFormat | None,
    tools: Mapping[str, Tool],
    *,
    dropped: tuple[str, ...] = (),
    ends: tuple[str, ...] = (),
) -> Steps[str | None]:
    """Read content and calls up to the first of the markers that end it, and return that unread; None: to the very end.

    dropped: markers that only wrap content
    """
    triggers = tool_format.triggers if tool_format else ()
    if not (triggers or dropped or ends):
        yield from reader.rest(writer.content)
        return None
    stops = Stops((*triggers, *dropped, *ends))
    while (marker := (yield from reader.until(stops, writer.content))) is not None:
        if marker in ends:
            return marker
        if marker in dropped:
            reader.take(reader.at + len(marker))
        else:
            assert tool_format
            yield from _read_calls(reader, writer, tool_format, tools, is_bare=marker in tool_format.bare)
    return None


def _read_calls(
    reader: Reader, writer: EventWriter, tool_format: ToolFormat, tools: Mapping[str, Tool], *, is_bare: bool
) -> Steps[None]:
    """Read the calls that begin here, with their markers. What is no call after all becomes content, as it is written.

    A call that breaks off once it has begun ends incomplete, and what follows is content.
    """
    num_taken = reader.num_taken
    reader.hold()
    try:
        yield from _read_section(CallContext(reader, writer, tools, is_bare), tool_format)
    except MalformedCallError:
        writer.end_call(is_complete=False)
    if reader.num_taken == num_taken:
        reader.take(reader.at + 1)  # refused at sight: never look twice at the same place
    rest = reader.release()
    if not (tool_format.is_forced and reader.is_over):
        writer.content(rest)


def _read_section(context: CallContext, tool_format: ToolFormat) -> Steps[None]:
    """Read calls in a row: markers before and after them as they come, and what separates them."""
    reader = context.reader
    markers = (*tool_format.opening, *tool_format.closing)
    is_expecting = True  # a call has to come; after one, more may
    may_repeat = False  # another call may follow without a marker of its own
    while True:
        yield from reader.skip_space("" if is_expecting else tool_format.separators)
        marker = (yield from reader.accept(markers)) if markers else None
        if marker in tool_format.opening:
            is_expecting = True
        elif marker is not None and not is_expecting:
            may_repeat = False
            reader.forget()
        elif marker is not None:
            raise MalformedCallError
        elif is_expecting or (may_repeat and (yield from _next_is_call(context, tool_format))):
            num_taken = reader.num_taken
            yield from tool_format.body.read(context)
            if reader.num_taken == num_taken:
                raise MalformedCallError  # a plug-in's body that reads nothing must not be asked for ever
            reader.forget()
            is_expecting, may_repeat = False, True
        else:
            _drop_cut_marker(reader, tool_format.closing)
            return


def _drop_cut_marker(reader: Reader, closing: tuple[str, ...]) -> None:
    """Forget the beginning of a closing marker with which the output breaks off: the calls before it are whole."""
    rest = reader.text[reader.at :] if reader.is_final else ""
    if rest and any(marker.startswith(rest) for marker in closing):
        reader.take(len(reader.text))
        reader.forget()


def _next_is_call(context: CallContext, tool_format: ToolFormat) -> Steps[bool]:
    starts = tool_format.bare if context.is_bare else tool_format.body.starts
    return bool(starts) and (yield from context.reader.peek(starts)) is not None
