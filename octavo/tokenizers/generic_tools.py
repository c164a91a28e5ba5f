"""Tools for models whose chat template knows nothing of them: described in the system prompt, called in plain JSON.

The form is that of forced calls, so what such a model reads of earlier turns looks like what it is made to write.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_INTRODUCTION = (
    "You can call these functions, each described by a JSON object with its name and the JSON schema of its parameters:"
)
_INSTRUCTION = (
    "To call functions, answer with nothing but a JSON array of the calls, each of the form "
    '{"name": "the function\'s name", "parameters": {"a parameter\'s name": "its value"}}.'
)


def describe_tools(tools: Sequence[Mapping[str, Any]]) -> str:
    """Return what a system prompt says of tools in OpenAI's form."""
    lines = [_to_json(tool.get("function", tool)) for tool in tools]
    return "\n".join((_INTRODUCTION, *lines, _INSTRUCTION))


def write_calls(tool_calls: Sequence[Mapping[str, Any]]) -> str:
    """Return an earlier turn's calls as text. Each has a function with a name and arguments that are a mapping."""
    functions = (call["function"] for call in tool_calls)
    return _to_json([{"name": function["name"], "parameters": function["arguments"]} for function in functions])


def with_tools_described(
    messages: Sequence[dict[str, Any]], tools: Sequence[Mapping[str, Any]], has_system_role: bool
) -> list[dict[str, Any]]:
    """Return the conversation with tools described in its first message: the system's, or else the first of all.

    messages: as `normalize_messages` returns them
    has_system_role: whether a system message may be put in front of a conversation that has none
    """
    text = describe_tools(tools)
    first = messages[0]
    if first["role"] in ("system", "developer") or not has_system_role:
        return [{**first, "content": _joined(first["content"], text, first["role"] != "user")}, *messages[1:]]
    content = [{"type": "text", "text": text}] if isinstance(first["content"], list) else text
    return [{"role": "system", "content": content}, *messages]


def _joined(content: object, text: str, is_behind: bool) -> object:
    """Add a paragraph behind or before a message's content, text or parts."""
    if isinstance(content, list):
        part = {"type": "text", "text": text}
        return [*content, part] if is_behind else [part, *content]
    if not isinstance(content, str) or not content:
        return text
    return f"{content}\n\n{text}" if is_behind else f"{text}\n\n{content}"


def _to_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
