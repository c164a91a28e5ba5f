"""gpt-oss's harmony: an output is messages, each with a channel and perhaps a recipient.

`<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json
<|message|>{...}<|call|>`. Analysis is reasoning, final is content, commentary to a function is a call, commentary to
nobody is content (what the model says before it calls). Source: OpenAI's description of the harmony format.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from octavo.parsing.formats import ToolFormat
from octavo.parsing.interface import Tool
from octavo.parsing.json_calls import NO_ARGUMENTS
from octavo.parsing.json_text import read_container
from octavo.parsing.reader import MalformedCallError, Reader, Steps, Stops
from octavo.parsing.reading import read_content
from octavo.parsing.writer import EventWriter

MARKERS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_MAX_HEADER_CHARACTERS = 512
_MESSAGE = Stops(("<|message|>",))
BODY_ENDS = (*_ENDS, "<|start|>", "<|channel|>")
_BODY_STOPS = Stops(BODY_ENDS)
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"to=([^\s<]+)")


def read_harmony(
    reader: Reader, writer: EventWriter, tool_format: ToolFormat | None, tools: Mapping[str, Tool]
) -> Steps[None]:
    """Read messages to the end of the output.

    tool_format: this one; None when the request allows no calls, which are content then; or the one of forced calls,
    which are the content of a message, or stand without one

    An output continues the prompt's `<|start|>assistant`, so it may begin with a recipient. Text outside messages is
    content, and so is a header that is none.
    """
    has_calls = tool_format is not None and tool_format.is_harmony
    inner = tool_format if not has_calls else None
    may_be_header = bool((yield from reader.peek((" to=",))))
    while True:
        if not may_be_header:
            marker = yield from read_content(reader, writer, inner, tools, ends=BODY_ENDS)
            if marker is None:
                return
            if marker in _ENDS:
                reader.take(reader.at + len(marker))
                continue
        may_be_header = False
        reader.hold()
        try:
            header, _ = yield from reader.short_text(_MESSAGE, _MAX_HEADER_CHARACTERS)
            reader.take(reader.at + len("<|message|>"))
            yield from _read_message(reader, writer, header, has_calls=has_calls)
        except MalformedCallError:
            writer.end_call(is_complete=False)
        writer.content(reader.release())


def _read_message(reader: Reader, writer: EventWriter, header: str, *, has_calls: bool) -> Steps[None]:
    """Read the body of a call or of reasoning; that of content is left to the caller."""
    channel = _CHANNEL.search(header)
    recipient = _RECIPIENT.search(header)
    name = recipient[1] if recipient else ""
    is_call = name.startswith("functions.")
    if is_call and has_calls:
        yield from _read_arguments(reader, writer, name.removeprefix("functions."))
        return
    reader.release()
    if not is_call and (name or (channel and channel[1] == "analysis")):
        writer.is_reasoning = True
        yield from reader.until(_BODY_STOPS, writer.reasoning)
        writer.is_reasoning = False


def _read_arguments(reader: Reader, writer: EventWriter, name: str) -> Steps[None]:
    """Read a call's message. What is no JSON object is passed on all the same, as an incomplete call."""
    writer.start_call(name)
    yield from reader.skip_space()
    if (yield from reader.peek(("{",))):
        yield from read_container(reader, writer.arguments)
    elif (yield from reader.peek(_ENDS)):
        writer.arguments(NO_ARGUMENTS)
    else:
        yield from reader.until(_BODY_STOPS, writer.arguments)
        raise MalformedCallError
    writer.end_call()
    yield from reader.skip_space()
