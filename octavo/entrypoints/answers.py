"""How answers are read: which formats a model writes calls and reasoning in, and what one request's answers may hold.

Every API reads its answers here, whole ones and streams alike, so that they cannot disagree.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from octavo.engine.reasoning import reasoning_markers
from octavo.entrypoints.strict_calls import free_calls_grammar
from octavo.entrypoints.tool_requests import NO_TOOLS, ToolWish
from octavo.errors import InvalidRequestError
from octavo.parsing.forced import forced_calls_format, forced_calls_schema
from octavo.parsing.formats import ToolFormat
from octavo.parsing.interface import (
    ContentDelta,
    ParserEvent,
    ReasoningDelta,
    Tool,
    ToolCallArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
)
from octavo.parsing.parser import StreamParser, create_parser, shown_tokens
from octavo.parsing.reasoning import ReasoningFormat, starts_in_reasoning
from octavo.parsing.reasoning_tokens import reasoning_tokens
from octavo.parsing.registry import AUTO, resolve_reasoning_parser, resolve_tool_parser
from octavo.tokenizers.tokenizer import Tokenizer
from octavo.types.outputs import CompletionOutput
from octavo.types.sampling_params import SamplingParams
from octavo.types.structured_params import StructuredOutputsParams


@dataclass(frozen=True)
class AnswerFormats:
    """What a model writes, as far as it is known.

    allows_auto: requests may leave it to the model whether to call; heeds_strict: arguments of strict functions follow
    their schema then
    """

    tool: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    allows_auto: bool = True
    heeds_strict: bool = True


def choose_formats(
    tool_parser: str,
    reasoning_parser: str,
    tool_template: str | None = None,
    template: str | None = None,
    allows_auto: bool = True,
    heeds_strict: bool = True,
) -> AnswerFormats:
    """Return the formats of these names; raises ConfigError or UnsupportedError.

    tool_parser, reasoning_parser: "auto": as the template shows; "none": nothing is recognised
    tool_template, template: of conversations with tools and without
    """
    return AnswerFormats(
        resolve_tool_parser(tool_parser or AUTO, tool_template),
        resolve_reasoning_parser(reasoning_parser or AUTO, template),
        allows_auto,
        heeds_strict,
    )


@dataclass(frozen=True)
class AnswerPlan:
    """How the answers to one prompt are read.

    tool_format, reasoning_format: None: calls, or reasoning, are content like everything else
    template_arguments: the request's chat_template_kwargs, which may have switched reasoning off
    shows_reasoning: False: it is read and left out
    continued_text: of the message that the answer goes on with
    """

    tool_format: ToolFormat | None = None
    reasoning_format: ReasoningFormat | None = None
    wish: ToolWish = NO_TOOLS
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    shows_reasoning: bool = True
    continued_text: str = ""

    def reader(self, tokenizer: Tokenizer | None, prompt_text: str) -> AnswerReader:
        """Return a reader for one answer to the prompt."""
        reasoning, calls = self.reasoning_format, self.tool_format
        if reasoning is None and calls is None:
            return AnswerReader(None, self)
        markers = None
        if reasoning is not None and tokenizer is not None:
            markers = reasoning_tokens(reasoning, tokenizer, self._call_markers)
        arguments, continued = self.template_arguments, self.continued_text
        parser = create_parser(
            calls,
            reasoning,
            tools=self.wish.functions,
            is_reasoning=reasoning is not None and starts_in_reasoning(reasoning, prompt_text, arguments, continued),
            reasoning_tokens=markers,
        )
        return AnswerReader(parser, self)

    def prepare(self, params: SamplingParams, tokenizer: Tokenizer | None, prompt_text: str) -> None:
        """Make a request generate what can be read: markers shown, calls forced, reasoning ended within its budget."""
        special = tokenizer.all_special_tokens if tokenizer is not None else ()
        markers_shown = shown_tokens(self.tool_format, self.reasoning_format)
        params.show_special_tokens(token for token in special if any(token in marker for marker in markers_shown))
        if self.wish.is_forced:
            params.structured_outputs = _forced(self.wish, params.structured_outputs)
        elif self.tool_format is not None:
            other = params.structured_outputs
            params.structured_outputs = free_calls_grammar(self.tool_format, self.wish, other, special)
        waits = params.thinking_token_budget is not None or params.structured_outputs is not None
        if self.reasoning_format is not None and tokenizer is not None and waits:
            params.set_reasoning_markers(
                reasoning_markers(
                    self.reasoning_format,
                    tokenizer,
                    prompt_text,
                    self.template_arguments,
                    self._call_markers,
                    self.continued_text,
                )
            )

    @property
    def _call_markers(self) -> tuple[str, ...]:
        return self.tool_format.opening if self.tool_format is not None else ()


def plan_answers(
    formats: AnswerFormats,
    wish: ToolWish,
    template_arguments: Mapping[str, Any] | None = None,
    shows_reasoning: bool = True,
    num_earlier_calls: int = 0,
    continued_text: str = "",
) -> AnswerPlan:
    """Return how a request's answers are read; raises InvalidRequestError for calls that could not be recognised.

    num_earlier_calls: of the conversation, for ids that count them
    """
    tool_format = None
    if wish.is_forced:
        tool_format = _with_ids_of(formats.tool, forced_calls_format(wish.function), num_earlier_calls)
    elif wish.mode == "auto":
        if not formats.allows_auto:
            raise InvalidRequestError(
                'tool_choice "auto" is switched off on this server (--no-enable-auto-tool-choice); use "required", a '
                'function\'s name, or "none"',
                "tool_choice",
            )
        if formats.tool is None:
            raise InvalidRequestError(
                "the model's chat template shows no format of tool calls that is known, so its calls could not be "
                'recognised; name the format with --tool-call-parser, or force a call (tool_choice "required", or a '
                "function's name)",
                "tools",
            )
        tool_format = _with_ids_of(formats.tool, formats.tool, num_earlier_calls)
        wish = wish if formats.heeds_strict else replace(wish, strict=frozenset())
    arguments = template_arguments or {}
    return AnswerPlan(tool_format, formats.reasoning, wish, arguments, shows_reasoning, continued_text)


def _with_ids_of(model: ToolFormat | None, tool_format: ToolFormat, num_earlier_calls: int) -> ToolFormat:
    """Return a format whose ids are the model's, counted over the conversation: its template may insist on them."""
    if model is None:
        return tool_format
    make_id = model.make_id
    return replace(tool_format, make_id=lambda index, name: make_id(num_earlier_calls + index, name))


def _forced(wish: ToolWish, other: StructuredOutputsParams | None) -> StructuredOutputsParams:
    if other is not None:
        raise InvalidRequestError(
            "a forced call (tool_choice) and another format of the answer exclude each other; leave one of them out",
            "tool_choice",
        )
    tools = [Tool(tool.name, _closed(tool.parameters or {})) for tool in wish.functions]
    schema = forced_calls_schema(tools, wish.function, parallel=wish.parallel)
    return StructuredOutputsParams(json=dict(schema))


def _closed(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Keep arguments to those that a function declares, where nothing else in its schema speaks of others.

    A schema by itself allows any others, and a small model goes on inventing them.
    """
    declared = parameters.get("properties", {})
    is_open = _SPEAK_OF_OTHERS.isdisjoint(parameters) and parameters.get("type", "object") == "object"
    if not is_open or not set(parameters.get("required", ())) <= set(declared):
        return parameters
    return {**parameters, "properties": declared, "additionalProperties": False}


_SPEAK_OF_OTHERS = frozenset(
    (
        *("additionalProperties", "patternProperties", "propertyNames", "unevaluatedProperties", "minProperties"),
        *("allOf", "anyOf", "oneOf", "not", "if", "enum", "const", "$ref", "$dynamicRef"),
        *("dependencies", "dependentSchemas", "dependentRequired"),
    )
)


class AnswerReader:
    """Reads one answer as it comes. Calls beyond the first are dropped where the request wants no several."""

    def __init__(self, parser: StreamParser | None, plan: AnswerPlan) -> None:
        self._parser = parser
        self._plan = plan
        self.num_calls = 0
        self._arguments = ""  # of the last call

    def read(self, completion: CompletionOutput) -> list[ParserEvent]:
        """Take an output, a delta or the whole; return what it adds."""
        if self._parser is None:
            return [ContentDelta(completion.text)] if completion.text else []
        events = self._parser.feed(completion.text, completion.token_ids)
        if completion.finished():
            events = [*events, *self._parser.finish()]
        kept = list(self._kept(events))
        for event in kept:
            if isinstance(event, ToolCallStart):
                self.num_calls, self._arguments = self.num_calls + 1, ""
            elif isinstance(event, ToolCallArgumentsDelta):
                self._arguments += event.json_text
        return kept

    @property
    def is_plain(self) -> bool:
        """Whether all of the answer is content."""
        return self._parser is None

    @property
    def num_reasoning_tokens(self) -> int:
        return self._parser.num_reasoning_tokens if self._parser is not None else 0

    def finish_reason(self, completion: CompletionOutput) -> str | None:
        """Return why the answer ended, in the words of OpenAI's chats: calls to carry out are whole."""
        if completion.finish_reason != "stop" or not self.num_calls:
            return completion.finish_reason
        is_cut = isinstance(completion.stop_reason, str) and not _is_json(self._arguments)
        return "stop" if is_cut else "tool_calls"

    def _kept(self, events: Iterable[ParserEvent]) -> Iterable[ParserEvent]:
        for event in events:
            if isinstance(event, ReasoningDelta) and not self._plan.shows_reasoning:
                continue
            is_call = isinstance(event, (ToolCallStart, ToolCallArgumentsDelta, ToolCallEnd))
            if is_call and event.index > 0 and not self._plan.wish.parallel:  # type: ignore[union-attr]
                continue
            yield event


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
