"""Parsing whole and in pieces, and what came of it without the random ids."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from octavo.parsing.interface import (
    ParserEvent,
    Tool,
    ToolCallArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
    collect,
)
from octavo.parsing.parser import StreamParser, create_parser
from octavo.parsing.registry import resolve_reasoning_parser, resolve_tool_parser

MakeParser = Callable[[], StreamParser]

STRING = {"type": "string"}
TOOLS = (
    Tool("get_weather", {"type": "object", "properties": {"city": STRING, "unit": {"enum": ["celsius", "kelvin"]}}}),
    Tool("run", {"properties": {"command": STRING, "timeout": {"type": ["integer", "null"]}}}),
    Tool(
        "book",
        {
            "properties": {
                "items": {"type": "array", "items": {"$ref": "#/$defs/Item"}},
                "first": {"$ref": "#/$defs/Item"},
                "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "when": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            },
            "$defs": {"Item": {"type": "object", "properties": {"id": {"type": "integer"}}}},
        },
    ),
    Tool("now", {"type": "object", "properties": {}}),
    Tool(
        "calc",
        {
            "properties": {
                **{key: {"type": "number"} for key in "xe"},
                "big": {"type": "integer"},
                "ok": {"type": "boolean"},
                "off": {"type": "boolean"},
            }
        },
    ),
    Tool("say", {"properties": {"text": STRING}}),
    Tool("f"),
    Tool("g", {}),
)


@dataclass(frozen=True)
class Result:
    """A parsed message without ids. calls: (name, arguments, is complete)"""

    reasoning: str | None
    content: str | None
    calls: tuple[tuple[str, str, bool], ...]


def maker(
    tool: str | None, reasoning: str | None = None, *, is_reasoning: bool = False, tools: tuple[Tool, ...] = TOOLS
) -> MakeParser:
    tool_format, reasoning_format = resolve_tool_parser(tool), resolve_reasoning_parser(reasoning)
    return lambda: create_parser(tool_format, reasoning_format, tools=tools, is_reasoning=is_reasoning)


def result_of(events: Iterable[ParserEvent]) -> Result:
    message = collect(events)
    calls = tuple((call.name, call.arguments, call.is_complete) for call in message.tool_calls)
    return Result(message.reasoning, message.content, calls)


def whole(make: MakeParser, text: str) -> Result:
    parser = make()
    return result_of([*parser.feed(text), *parser.finish()])


def streamed(make: MakeParser, pieces: Iterable[str]) -> Result:
    """Parse pieces, and check that the events are in an order that a stream to a client can have."""
    parser = make()
    events: list[ParserEvent] = []
    for piece in pieces:
        events += parser.feed(piece)
    events += parser.finish()
    check_order(events)
    return result_of(events)


def check_order(events: Iterable[ParserEvent]) -> None:
    """Calls come one after the other, each begun and ended once, and no delta is empty."""
    open_index: int | None = None
    num_started = 0
    for event in events:
        if isinstance(event, ToolCallStart):
            assert open_index is None
            assert event.index == num_started
            assert event.id
            open_index, num_started = event.index, num_started + 1
        elif isinstance(event, ToolCallArgumentsDelta):
            assert event.index == open_index
            assert event.json_text
        elif isinstance(event, ToolCallEnd):
            assert event.index == open_index
            open_index = None
        else:
            assert open_index is None
            assert event.text
    assert open_index is None


def cut(text: str, generator: random.Random) -> list[str]:
    """Cut a text at random places: sometimes few, sometimes everywhere."""
    num_cuts = generator.choice((1, 2, 3, 5, 10, 30, max(1, len(text) // 3)))
    places = sorted(generator.randrange(len(text) + 1) for _ in range(num_cuts))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
