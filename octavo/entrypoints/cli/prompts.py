"""Prompts from arguments, standard input and JSONL files, checked line by line before a model is loaded."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from octavo.errors import InvalidRequestError
from octavo.types.sampling_params import SamplingParams

Message = dict[str, Any]  # an OpenAI chat message: role, content, and what its role allows besides

CONTENT_KEYS = ("prompt", "messages", "prompt_token_ids")


@dataclass(frozen=True)
class PromptItem:
    """One request as the user wrote it. Exactly one of text, token_ids and messages is set.

    origin: where it came from, for error messages
    id: the caller's own name of the line, copied to the result
    sampling: SamplingParams fields that override the command line's
    """

    origin: str
    text: str | None = None
    token_ids: list[int] | None = None
    messages: list[Message] | None = None
    id: object = None
    sampling: Mapping[str, Any] = field(default_factory=dict)


def items_from_texts(texts: Sequence[str], as_chat: bool, system_prompt: str | None) -> list[PromptItem]:
    """Make one item per text; as_chat wraps each in a conversation of its own."""
    if not as_chat:
        return [PromptItem(f"prompt {index + 1}", text=text) for index, text in enumerate(texts)]
    system = [{"role": "system", "content": system_prompt}] if system_prompt else []
    return [
        PromptItem(f"prompt {index + 1}", messages=[*system, {"role": "user", "content": text}])
        for index, text in enumerate(texts)
    ]


def items_from_jsonl(path: str) -> list[PromptItem]:
    """Read a JSONL file ("-": standard input). The first bad line raises InvalidRequestError with its number."""
    if path == "-":
        return list(_items_from_lines("standard input", sys.stdin.buffer))
    with Path(path).open("rb") as file:
        return list(_items_from_lines(path, file))


def check_sampling(items: Iterable[PromptItem], common: Mapping[str, Any]) -> None:
    """Raise InvalidRequestError, naming the item, for sampling options that no model could run with."""
    no_limit = {"max_tokens": None}  # the command's and the model's limits come later
    SamplingParams.from_optional(**{**no_limit, **common})
    for item in items:
        if item.sampling:
            try:
                SamplingParams.from_optional(**{**no_limit, **common, **item.sampling})
            except InvalidRequestError as error:
                raise located(error, item) from error


def located(error: InvalidRequestError, item: PromptItem) -> InvalidRequestError:
    """Return the error with the item's origin in front."""
    return InvalidRequestError(f"{item.origin}: {error}", error.parameter)


def _items_from_lines(source: str, lines: BinaryIO | Iterable[bytes]) -> Iterator[PromptItem]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        origin = f"{source}, line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(f"{origin}: expected a JSON object, got {_shown(line)} ({error})") from error
        if not isinstance(record, dict):
            raise InvalidRequestError(f"{origin}: expected a JSON object, got {_shown(line)}")
        yield _item_from_record(origin, record)


def _item_from_record(origin: str, record: dict[str, Any]) -> PromptItem:
    given = [key for key in CONTENT_KEYS if key in record]
    if len(given) != 1:
        raise InvalidRequestError(f"{origin}: expected exactly one of {', '.join(CONTENT_KEYS)}, got {given or 'none'}")
    content = record[given[0]]
    sampling = {key: value for key, value in record.items() if key not in (*CONTENT_KEYS, "id")}
    if given == ["prompt"]:
        if not isinstance(content, str):
            raise InvalidRequestError(f"{origin}: prompt must be a string, got {content!r}", "prompt")
        return PromptItem(origin, text=content, id=record.get("id"), sampling=sampling)
    if given == ["messages"]:
        _check_messages(origin, content)
        return PromptItem(origin, messages=content, id=record.get("id"), sampling=sampling)
    if not isinstance(content, list) or any(type(token_id) is not int for token_id in content):
        raise InvalidRequestError(f"{origin}: prompt_token_ids must be a list of integers", "prompt_token_ids")
    return PromptItem(origin, token_ids=content, id=record.get("id"), sampling=sampling)


def _check_messages(origin: str, messages: object) -> None:
    if not isinstance(messages, list) or not messages:
        raise InvalidRequestError(f"{origin}: messages must be a non-empty list, got {messages!r}", "messages")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise InvalidRequestError(
                f'{origin}: a message must be an object with a "role", got {message!r}', "messages"
            )


def _shown(line: bytes) -> str:
    text = line.decode("utf-8", "replace").strip()
    return repr(text if len(text) <= 60 else text[:57] + "...")
