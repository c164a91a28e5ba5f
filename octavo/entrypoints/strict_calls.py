"""Grammars for calls that a model may make or leave: its text is free, but where it calls, arguments follow the schema.

Needed for `strict` functions, and for requests whose answer, if it is none of calls, must have a format of its own.
Built for formats whose calls are JSON between texts, which a grammar can describe; others are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.entrypoints.tool_requests import ToolWish
from octavo.errors import InvalidRequestError
from octavo.parsing.formats import ToolFormat
from octavo.types.structured_params import StructuredOutputsParams


@dataclass(frozen=True)
class _Written:
    """How a format's calls are written: {name} is the function's, as JSON; arguments stand between begin and end.

    trigger: what begin begins with, and free text may not hold
    """

    trigger: str
    begin: str
    end: str


_HERMES = _Written("<tool_call>", '<tool_call>\n{{"name": {name}, "arguments": ', "}\n</tool_call>")
_LLAMA = _Written('{"name": ', '{{"name": {name}, "parameters": ', "}")
_WRITTEN: Mapping[str, _Written] = {
    **dict.fromkeys(("hermes", "qwen3_json", "granite4", "ernie45", "plamo3", "json"), _HERMES),
    **dict.fromkeys(("llama3_json", "llama4_json"), _LLAMA),
    "longcat": _Written(
        "<longcat_tool_call>", '<longcat_tool_call>\n{{"name": {name}, "arguments": ', "}\n</longcat_tool_call>"
    ),
}


def free_calls_grammar(
    tool_format: ToolFormat, wish: ToolWish, answer: StructuredOutputsParams | None, special_tokens: Sequence[str]
) -> StructuredOutputsParams | None:
    """Return the grammar of an answer with tool_choice "auto"; None for one that may be anything.

    answer: what an answer without calls must follow; special_tokens: which a grammar of text cannot produce
    Raises InvalidRequestError where the format's calls cannot be described.
    """
    if answer is None and not wish.strict:
        return None
    written = _WRITTEN.get(tool_format.name)
    if written is None or written.trigger in special_tokens:
        raise _refusal(tool_format, wish)
    tags = [_tag(written, tool["function"], wish.strict) for tool in wish.tools]
    if answer is None:
        calls: dict[str, Any] = {"type": "triggered_tags", "triggers": [written.trigger], "tags": tags}
        tag = {"type": "structural_tag", "format": calls}
        # models learn calls with a space behind colons and commas
        return StructuredOutputsParams(structural_tag=tag, disable_any_whitespace=False)
    calls = {"type": "tags_with_separator", "tags": tags, "separator": "\n", "at_least_one": True}
    either = {"type": "or", "elements": [_as_format(answer), calls]}
    return StructuredOutputsParams(
        structural_tag={"type": "structural_tag", "format": either},
        disable_any_whitespace=answer.disable_any_whitespace,
        disable_additional_properties=answer.disable_additional_properties,
        whitespace_pattern=answer.whitespace_pattern,
    )


def _tag(written: _Written, function: Mapping[str, Any], strict: frozenset[str]) -> dict[str, Any]:
    schema = function["parameters"] if function["name"] in strict else {"type": "object"}
    begin = written.begin.format(name=json.dumps(function["name"], ensure_ascii=False))
    content = {"type": "json_schema", "json_schema": schema}
    return {"type": "tag", "begin": begin, "content": content, "end": written.end}


def _as_format(answer: StructuredOutputsParams) -> dict[str, Any]:
    """Return a constraint as part of a structural tag."""
    if answer.json is not None:
        schema = json.loads(answer.json) if isinstance(answer.json, str) else answer.json
        return {"type": "json_schema", "json_schema": schema}
    if answer.json_object:
        return {"type": "json_schema", "json_schema": {"type": "object"}}
    if answer.regex is not None:
        return {"type": "regex", "pattern": answer.regex}
    if answer.choice is not None:
        return {"type": "or", "elements": [{"type": "const_string", "value": text} for text in answer.choice]}
    raise InvalidRequestError(
        f'{answer.constraint} together with tools that the model may call is not supported; use tool_choice "none" or '
        '"required", or a JSON schema, a regex or a choice',
        "structured_outputs",
    )


def _refusal(tool_format: ToolFormat, wish: ToolWish) -> InvalidRequestError:
    known = ", ".join(_WRITTEN)
    if wish.strict:
        return InvalidRequestError(
            f"strict functions that the model may call or not are enforced for the formats {known}, not for "
            f"{tool_format.name}; force the call (tool_choice), leave strict out, or let the operator start the server "
            "with --tool-strict-level none",
            "tools",
        )
    return InvalidRequestError(
        f"a format of the answer together with tools that the model may call is enforced for the formats {known}, not "
        f'for {tool_format.name}; use tool_choice "none" or "required"',
        "response_format",
    )
