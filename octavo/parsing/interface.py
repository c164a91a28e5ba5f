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
4. per choice: `parser.create_parser(tool_format, reasoning, tools=tools_of_request(request.tools),
   is_reasoning=starts_in_reasoning(reasoning, prompt_text, chat_template_kwargs))`, then `feed(text, token_ids)` for
   every delta and `finish()` once. tool_format None: no calls, their text is content;
5. not streamed: the same parser, `collect([*parser.feed(whole_text, ids), *parser.finish()])`.

Finish reason: "tool_calls" when a call was started and the engine says "stop"; "length" and "abort" stay what they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from octavo.errors import InvalidRequestError


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


class OutputParser(Protocol):
    """Reads one output, in pieces of any size; the joined events do not depend on where the pieces were cut."""

    @property
    def is_reasoning(self) -> bool:
        """Tell whether the text so far ends inside the reasoning."""

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens fed so far that belong to the reasoning, the marker that ends it not counted."""

    def feed(self, text: str, token_ids: Sequence[int] = ()) -> list[ParserEvent]:
        """Take new text and its tokens (only counted); return what is certain by now."""

    def finish(self) -> list[ParserEvent]:
        """Return the rest: the output has ended. The parser takes nothing more."""


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


def parse(parser: OutputParser, text: str) -> ParsedMessage:
    """Parse a whole output with a fresh parser: everything fed at once, so that it equals what a stream gives."""
    return collect([*parser.feed(text), *parser.finish()])


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. parameters: the JSON schema of its arguments, None when it takes any."""

    name: str
    parameters: Mapping[str, Any] | None = None


def tools_of_request(tools: Sequence[Mapping[str, Any]]) -> tuple[Tool, ...]:
    """Read tools as the chat API writes them ({"type": "function", "function": {...}}), or flat as Responses does.

    Raises InvalidRequestError for what is not a function with a name and a schema that is an object.
    """
    return tuple(_read_tool(index, tool) for index, tool in enumerate(tools))


def _read_tool(index: int, tool: Mapping[str, Any]) -> Tool:
    where = f"tools[{index}]"
    kind = tool.get("type", "function")
    if kind != "function":
        raise InvalidRequestError(f'{where}.type must be "function", got {kind!r}', "tools")
    function = tool.get("function", tool)
    if not isinstance(function, Mapping):
        raise InvalidRequestError(f"{where}.function must be an object, got {type(function).__name__}", "tools")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidRequestError(f"{where}: the function's name must be a non-empty string, got {name!r}", "tools")
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise InvalidRequestError(
            f"{where}: the function's parameters must be a JSON schema (an object), got {type(parameters).__name__}",
            "tools",
        )
    return Tool(name, parameters)
