"""Conversations in the OpenAI format -> the plain messages that chat templates expect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from octavo.errors import InvalidRequestError, UnsupportedError

Message = Mapping[str, Any]  # {"role": ..., "content": ..., ...}: free-form JSON of the caller
ContentFormat = Literal["string", "openai"]

_MAX_DEPTH = 100  # of nested lists and objects; deeper ones would exhaust the interpreter's stack in a template

_TEXT_KEYS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"}


def normalize_messages(messages: Sequence[Message], content_format: ContentFormat) -> list[dict[str, Any]]:
    """Return messages that a template can take: plain JSON values, the caller's objects untouched.

    - content: text parts become one string, joined by newlines ("string"), or stay a list ("openai"); None becomes ""
    - tool_calls: an empty list counts as absent; arguments given as JSON text become the mapping they stand for
    - fields that are None are dropped

    Raises InvalidRequestError for anything that is not a conversation.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise _wrong(f"a conversation must be a list of messages, got {type(messages).__name__}")
    if not messages:
        raise _wrong("a conversation needs at least one message, got an empty list")
    return [_normalize_message(message, i, content_format) for i, message in enumerate(messages)]


def _normalize_message(message: Message, index: int, content_format: ContentFormat) -> dict[str, Any]:
    message = _as_mapping(message, index)
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise _wrong(f"messages[{index}].role must be a non-empty string, got {role!r}")
    plain = {key: plain_value(value) for key, value in message.items() if value is not None}
    plain["content"] = _normalize_content(message.get("content"), index, content_format)
    tool_calls = plain.pop("tool_calls", None)
    if tool_calls:
        plain["tool_calls"] = _normalize_tool_calls(tool_calls, index)
    reasoning = plain.get("reasoning_content", plain.get("reasoning"))
    if reasoning is not None:  # one thing under the two names that templates read
        plain["reasoning_content"] = plain["reasoning"] = reasoning
    return plain


def _as_mapping(message: object, index: int) -> Message:
    if isinstance(message, Mapping):
        return message
    dump = getattr(message, "model_dump", None)  # the OpenAI client's own message objects
    if callable(dump):
        dumped = dump()
        if isinstance(dumped, Mapping):
            return dumped
    raise _wrong(f"messages[{index}] must be an object with role and content, got {type(message).__name__}")


def _normalize_content(content: object, index: int, content_format: ContentFormat) -> str | list[dict[str, Any]]:
    if content is None:
        parts: list[dict[str, Any]] = []
    elif isinstance(content, str):
        parts = [{"type": "text", "text": content}]
    elif isinstance(content, Sequence) and not isinstance(content, bytes):
        parts = [_text_part(part, index, i) for i, part in enumerate(content)]
    else:
        raise _wrong(f"messages[{index}].content must be a string or a list of parts, got {type(content).__name__}")
    if content_format == "openai":
        return parts
    return "\n".join(part["text"] for part in parts)


def _text_part(part: object, message_index: int, part_index: int) -> dict[str, Any]:
    where = f"messages[{message_index}].content[{part_index}]"
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, Mapping):
        raise _wrong(f"{where} must be a string or an object with a type, got {type(part).__name__}")
    kind = part.get("type", "text")
    key = _TEXT_KEYS.get(kind) if isinstance(kind, str) else None
    if key is None:
        raise UnsupportedError(f"{where} has type {kind!r}; this model takes text only (type 'text')")
    text = part.get(key)
    if not isinstance(text, str):
        raise _wrong(f"{where}.{key} must be a string, got {type(text).__name__}")
    return {"type": "text", "text": text}


def _normalize_tool_calls(tool_calls: object, index: int) -> list[dict[str, Any]]:
    if not isinstance(tool_calls, list):
        raise _wrong(f"messages[{index}].tool_calls must be a list, got {type(tool_calls).__name__}")
    for i, call in enumerate(tool_calls):
        where = f"messages[{index}].tool_calls[{i}]"
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise _wrong(f"{where} must be an object with a function, got {call!r}")
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            function["arguments"] = _parse_arguments(arguments, where)
        elif arguments is None:
            function["arguments"] = {}
    return tool_calls


def _parse_arguments(arguments: str, where: str) -> Any:
    if not arguments.strip():
        return {}
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError) as error:
        raise _wrong(f"{where}.function.arguments must be JSON, got {arguments!r:.200} ({error})") from None


def plain_value(value: object, depth: int = 0) -> Any:
    """Copy a JSON-like value; anything else must not reach a template, whose sandbox does not know its methods."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if depth > _MAX_DEPTH:
        raise _wrong(f"chat messages and template arguments must not be nested deeper than {_MAX_DEPTH} levels")
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return {str(key): plain_value(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_value(item, depth + 1) for item in value]
    if isinstance(value, (int, float)):
        return float(value) if isinstance(value, float) else int(value)
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return plain_value(dump(), depth + 1)
    raise _wrong(f"chat messages and template arguments must be plain JSON values, got {type(value).__name__}")


def _wrong(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, "messages")
