"""gpt-oss's harmony: an output is messages, each with a channel and perhaps a recipient.

`<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json
<|message|>{...}<|call|>`. Analysis is reasoning, final is content, commentary to a function is a call, commentary to
nobody is content (what the model says before it calls). Source: OpenAI's description of the harmony format.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from octavo.parsing.interface import Tool
from octavo.parsing.json_calls import NO_ARGUMENTS
from octavo.parsing.json_text import read_container
from octavo.parsing.reader import MalformedCallError, Reader, Steps, Stops
from octavo.parsing.writer import EventWriter

MARKERS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_MAX_HEADER_CHARACTERS = 512
_MESSAGE = Stops(("<|message|>",))
_BODY_STOPS = Stops((*_ENDS, "<|start|>", "<|channel|>"))
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"to=([^\s<]+)")


def read_harmony(reader: Reader, writer: EventWriter, tools: Mapping[str, Tool] | None) -> Steps[None]:
    """Read messages to the end of the output. tools: None when the request has none; calls are content then.

    An output continues the prompt's `<|start|>assistant`, so it may begin with a recipient. Text outside messages is
    content, and so is a header that is none.
    """
    may_be_header = bool((yield from reader.peek((" to=",))))
    while True:
        if not may_be_header:
            marker = yield from reader.until(_BODY_STOPS, writer.content)
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
            yield from _read_message(reader, writer, header, tools)
        except MalformedCallError:
            writer.end_call(is_complete=False)
        writer.content(reader.release())


def _read_message(reader: Reader, writer: EventWriter, header: str, tools: Mapping[str, Tool] | None) -> Steps[None]:
    channel = _CHANNEL.search(header)
    recipient = _RECIPIENT.search(header)
    name = recipient[1] if recipient else ""
    if name.startswith("functions.") and tools is not None:
        yield from _read_arguments(reader, writer, name.removeprefix("functions."))
        return
    reader.release()
    is_reasoning = bool(channel and channel[1] == "analysis") or bool(name and not name.startswith("functions."))
    writer.is_reasoning = is_reasoning
    yield from reader.until(_BODY_STOPS, writer.reasoning if is_reasoning else writer.content)
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
