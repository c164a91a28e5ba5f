"""What a parser takes and gives: tools in; events, and the message that they add up to, out.

How a server uses this package:

1. at start: `registry.load_plugin(path)` for the operator's own formats; then
   `registry.resolve_tool_parser(name, chat_template) -> ToolFormat | None` and
   `registry.resolve_reasoning_parser(name, chat_template) -> ReasoningFormat | None` ("auto" chooses by the template);
   `reasoning_tokens.reasoning_tokens(reasoning, tokenizer)` for the usage's reasoning_tokens;
2. a request that must call: `forced.forced_calls_schema(tools, function_name, parallel=...)` is its structured output
   (function_name None: any of the tools, tool_choice "required"), and `forced.forced_calls_format(function_name)`
   takes the place of the model's own tool format;
3. the request's text must show the formats' marker tokens, which skip_special_tokens leaves out:
   `parser.shown_tokens(tool_format, reasoning)` names them;
4. per choice: `parser.create_parser(tool_format, reasoning, tools=tools, is_reasoning=starts_in_reasoning(reasoning,
   prompt_text, chat_template_kwargs))`, then `feed(text, token_ids)` for every delta and `finish()` once.
   tool_format None: no calls, their text is content;
5. not streamed: the same parser, `collect([*parser.feed(whole_text, ids), *parser.finish()])`.

Finish reason: "tool_calls" when a call was started and the engine says "stop", unless a stop string cut the arguments;
"length" and "abort" stay what they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the reasoning; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the content; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call begins. Indices count from 0; a call ends before the next one begins."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArgumentsDelta:
    """More of a call's arguments, as JSON text; never empty."""

    index: int
    json_text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """A call ends. is_complete: False when the output broke off or went wrong inside it (its arguments are no JSON)."""

    index: int
    is_complete: bool


ParserEvent = ReasoningDelta | ContentDelta | ToolCallStart | ToolCallArgumentsDelta | ToolCallEnd


@dataclass(frozen=True, slots=True)
class ParsedToolCall:
    """A whole call. arguments: JSON text when is_complete, otherwise the part that was generated."""

    id: str
    name: str
    arguments: str
    is_complete: bool


@dataclass(frozen=True, slots=True)
class ParsedMessage:
    """A whole output. reasoning, content: None when there was none."""

    reasoning: str | None
    content: str | None
    tool_calls: tuple[ParsedToolCall, ...]


def collect(events: Iterable[ParserEvent]) -> ParsedMessage:
    """Add events up to the message."""
    reasoning: list[str] = []
    content: list[str] = []
    starts: list[ToolCallStart] = []
    arguments: list[list[str]] = []
    complete: list[bool] = []
    for event in events:
        if isinstance(event, ReasoningDelta):
            reasoning.append(event.text)
        elif isinstance(event, ContentDelta):
            content.append(event.text)
        elif isinstance(event, ToolCallStart):
            starts.append(event)
            arguments.append([])
            complete.append(False)
        elif isinstance(event, ToolCallArgumentsDelta):
            arguments[event.index].append(event.json_text)
        else:
            complete[event.index] = event.is_complete
    calls = tuple(
        ParsedToolCall(start.id, start.name, "".join(parts), is_complete)
        for start, parts, is_complete in zip(starts, arguments, complete, strict=True)
    )
    return ParsedMessage("".join(reasoning) or None, "".join(content) or None, calls)


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. parameters: the JSON schema of its arguments, None when it takes any."""

    name: str
    parameters: Mapping[str, Any] | None = None
