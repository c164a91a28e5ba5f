"""Grammars for calls that a model may make or leave: its text is free, but where it calls, arguments follow the schema.

Needed for `strict` functions, and for requests whose answer, if it is none of calls, must have a format of its own.
Built for formats whose calls are JSON between texts, which a grammar can describe; others are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.entrypoints.tool_requests import ToolWish
from octavo.errors import InvalidRequestError
from octavo.parsing.formats import CallSyntax, ToolFormat
from octavo.parsing.tool_formats import TOOL_FORMATS
from octavo.types.structured_params import StructuredOutputsParams


def free_calls_grammar(
    tool_format: ToolFormat, wish: ToolWish, answer: StructuredOutputsParams | None, special_tokens: Sequence[str]
) -> StructuredOutputsParams | None:
    """Return the grammar of an answer with tool_choice "auto"; None for one that may be anything.

    answer: what an answer without calls must follow; special_tokens: which a grammar of text cannot produce
    Raises InvalidRequestError where the format's calls cannot be described.
    """
    if answer is None and not wish.strict:
        return None
    syntax = tool_format.syntax
    if syntax is None or syntax.trigger in special_tokens:
        raise _refusal(tool_format, wish)
    tags = [_tag(syntax, tool["function"], wish.strict) for tool in wish.tools]
    if answer is None:
        calls: dict[str, Any] = {"type": "triggered_tags", "triggers": [syntax.trigger], "tags": tags}
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


def _tag(syntax: CallSyntax, function: Mapping[str, Any], strict: frozenset[str]) -> dict[str, Any]:
    schema = function["parameters"] if function["name"] in strict else {"type": "object"}
    begin = syntax.begin.format(name=json.dumps(function["name"], ensure_ascii=False))
    content = {"type": "json_schema", "json_schema": schema}
    return {"type": "tag", "begin": begin, "content": content, "end": syntax.end}


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
    if answer.grammar is not None:
        return {"type": "grammar", "grammar": answer.grammar}
    raise InvalidRequestError(
        f'{answer.constraint} together with tools that the model may call is not supported; use tool_choice "none" or '
        '"required", or a JSON schema, a regex, a choice or a grammar',
        "structured_outputs",
    )


def _refusal(tool_format: ToolFormat, wish: ToolWish) -> InvalidRequestError:
    known = ", ".join(sorted(one.name for one in TOOL_FORMATS.values() if one.syntax is not None))
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
