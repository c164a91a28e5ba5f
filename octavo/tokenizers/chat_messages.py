"""Conversations in the OpenAI format -> the plain messages that chat templates expect."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.tokenizers.generic_tools import write_calls

Message = Mapping[str, Any]  # {"role": ..., "content": ..., ...}: free-form JSON of the caller
ContentFormat = Literal["string", "openai"]
# of a message without content: an empty text or list, a list with an empty text, or null
EmptyContent = Literal["empty", "part", "null"]

_MAX_DEPTH = 100  # of nested lists and objects; deeper ones would exhaust the interpreter's stack in a template

_SHORT_ID_CHARS = 9

_TEXTS = ("name", "tool_call_id", "reasoning", "reasoning_content")  # fields of messages, besides the content
_TEXT_KEYS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"}


@dataclass(frozen=True)
class MessageStyle:
    """How a template wants its messages, beyond their content's format.

    arguments_are_text: calls carry their arguments as JSON text, not as a mapping
    has_short_call_ids: ids of calls must be nine letters or digits (Mistral)
    knows_developer: there is a role "developer"; elsewhere such messages join the system's in one at the start
    writes_calls: calls of earlier turns are written; elsewhere they become the message's text
    has_tool_role: results of calls are written; elsewhere they become the user's messages
    text_roles: roles whose content is text although the template loops over parts of others
    content_beside_calls: what stands for the content of a turn that has only calls
    """

    arguments_are_text: bool = False
    has_short_call_ids: bool = False
    knows_developer: bool = True
    writes_calls: bool = True
    has_tool_role: bool = True
    text_roles: frozenset[str] = frozenset()
    content_beside_calls: EmptyContent = "empty"


def normalize_messages(
    messages: Sequence[Message], content_format: ContentFormat, style: MessageStyle | None = None
) -> list[dict[str, Any]]:
    """Return messages that a template can take: plain JSON values, the caller's objects untouched.

    - content: text parts become one string, joined by newlines ("string"), or stay a list ("openai"); None becomes ""
    - tool_calls: an empty list counts as absent; arguments given as JSON text become the mapping they stand for
    - tool results without a name get that of the function whose call they answer
    - reasoning of earlier turns is there under each of the names that templates read
    - fields that are None are dropped

    Raises InvalidRequestError for anything that is not a conversation.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise _wrong(f"a conversation must be a list of messages, got {type(messages).__name__}")
    if not messages:
        raise _wrong("a conversation needs at least one message, got an empty list")
    style = style or MessageStyle()
    normalized = [_normalize_message(message, i, content_format, style) for i, message in enumerate(messages)]
    if not style.knows_developer and any(
        _as_mapping(one, i).get("role") == "developer" for i, one in enumerate(messages)
    ):
        normalized = _with_one_system_message(normalized)
    _name_tool_results(normalized)
    if style.has_short_call_ids:
        _shorten_call_ids(normalized)
    return [_in_plain_words(message, style) for message in normalized]


def _normalize_message(
    message: Message, index: int, content_format: ContentFormat, style: MessageStyle
) -> dict[str, Any]:
    message = _as_mapping(message, index)
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise _wrong(f"messages[{index}].role must be a non-empty string, got {role!r}")
    plain = {key: plain_value(value) for key, value in message.items() if value is not None}
    if role == "developer" and not style.knows_developer:
        plain["role"] = role = "system"
    if role in style.text_roles:
        content_format = "string"
    for key in _TEXTS:
        if not isinstance(plain.get(key, ""), str):
            raise _wrong(f"messages[{index}].{key} must be a string, got {plain[key]!r:.200}")
    plain["content"] = _normalize_content(message.get("content"), index, content_format)
    tool_calls = _normalize_tool_calls(plain.pop("tool_calls", []), index, style)
    if tool_calls:
        plain["tool_calls"] = tool_calls
        if not plain["content"] and style.writes_calls:
            plain["content"] = empty_content(style.content_beside_calls, content_format)
    reasoning = plain.get("reasoning_content", plain.get("reasoning"))
    if reasoning is not None:  # one thing under the names that templates read
        plain["reasoning_content"] = plain["reasoning"] = plain["thinking"] = reasoning
    return plain


def _with_one_system_message(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge the system's messages into one at the start, where many templates want it: a developer's became its too."""
    contents = [message["content"] for message in messages if message["role"] == "system"]
    merged = "\n\n".join(contents) if isinstance(contents[0], str) else [part for parts in contents for part in parts]
    return [{"role": "system", "content": merged}, *(message for message in messages if message["role"] != "system")]


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


def empty_content(kind: EmptyContent, content_format: ContentFormat) -> str | list[dict[str, Any]] | None:
    """Return what stands for no content."""
    if kind == "null":
        return None
    if content_format == "string":
        return ""
    return [{"type": "text", "text": ""}] if kind == "part" else []


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


def _normalize_tool_calls(tool_calls: object, index: int, style: MessageStyle) -> list[dict[str, Any]]:
    if not isinstance(tool_calls, list):
        raise _wrong(f"messages[{index}].tool_calls must be a list, got {type(tool_calls).__name__}")
    for i, call in enumerate(tool_calls):
        where = f"messages[{index}].tool_calls[{i}]"
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise _wrong(f"{where} must be an object with a function, got {call!r:.200}")
        if not isinstance(function.get("name"), str) or not function["name"]:
            raise _wrong(f"{where}.function.name must be a non-empty string, got {function.get('name')!r:.200}")
        if not isinstance(call.get("id", ""), str | None):
            raise _wrong(f"{where}.id must be a string, got {call['id']!r:.200}")
        arguments = _arguments(function.get("arguments"), where)
        function["arguments"] = json.dumps(arguments, ensure_ascii=False) if style.arguments_are_text else arguments
        call.setdefault("type", "function")
        call.pop("index", None)  # a stream's, which clients send back
    return tool_calls


def _arguments(arguments: object, where: str) -> dict[str, Any]:
    """Return a call's arguments as the mapping that they are, or that their JSON text stands for."""
    value = arguments
    if isinstance(value, str):
        try:
            value = json.loads(value, parse_float=_finite, parse_constant=_finite) if value.strip() else {}
        except (ValueError, RecursionError) as error:
            raise _wrong(f"{where}.function.arguments must be JSON, got {arguments!r:.200} ({error})") from None
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise _wrong(f"{where}.function.arguments must be a JSON object, got {arguments!r:.200}")
    return plain_value(value)  # type: ignore[no-any-return]  # JSON text may be nested deeper than templates bear


def _finite(text: str) -> float:
    """Read a number of JSON; raises ValueError for what JSON cannot say again: NaN, infinities, 1e999."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:80]} is not a finite number")
    return number


def _name_tool_results(messages: Sequence[dict[str, Any]]) -> None:
    names: dict[Any, str] = {}
    for message in messages:
        for call in message.get("tool_calls", ()):
            if isinstance(call.get("id"), str):
                names[call["id"]] = call["function"]["name"]
        call_id = message.get("tool_call_id")
        if message["role"] == "tool" and "name" not in message and isinstance(call_id, str) and call_id in names:
            message["name"] = names[call_id]


def _in_plain_words(message: dict[str, Any], style: MessageStyle) -> dict[str, Any]:
    """Return a message whose calls, or the call's result that it is, are text where the template drops them."""
    if "tool_calls" in message and not style.writes_calls:
        calls = write_calls(message.pop("tool_calls"))
        message["content"] = _with_text(message["content"], calls)
    if message["role"] == "tool" and not style.has_tool_role:
        name = message.get("name")
        heading = f"Result of {name}:" if name else "Result of the call:"
        content = message["content"]
        text = content if isinstance(content, str) else "\n".join(part["text"] for part in content)
        text = f"{heading}\n{text}"
        return {"role": "user", "content": text if isinstance(content, str) else [{"type": "text", "text": text}]}
    return message


def _with_text(content: str | list[dict[str, Any]], text: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return f"{content}\n{text}" if content else text
    return [*content, {"type": "text", "text": text}]


def _shorten_call_ids(messages: Sequence[dict[str, Any]]) -> None:
    for message in messages:
        for call in message.get("tool_calls", ()):
            if isinstance(call.get("id"), str):
                call["id"] = short_call_id(call["id"])
        if isinstance(message.get("tool_call_id"), str):
            message["tool_call_id"] = short_call_id(message["tool_call_id"])


def short_call_id(call_id: str) -> str:
    """Return an id of nine letters and digits; equal ids stay equal, and one that is right stays as it is."""
    if len(call_id) == _SHORT_ID_CHARS and call_id.isascii() and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:_SHORT_ID_CHARS]


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
