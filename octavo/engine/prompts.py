"""The prompt forms that every entry accepts, brought into one: token ids, the text if there was one, the cache salt."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.types.sampling_checks import as_int, is_valid_unicode, wrong
from octavo.utils.absence import holds_nothing

MAX_CACHE_SALT_CHARS = 1024


@dataclass(frozen=True)
class TokenizationOptions:
    """How a prompt becomes token ids (vLLM's tokenization_kwargs).

    add_special_tokens: whether text gets the tokenizer's begin and end marks; None = yes
    truncate_prompt_tokens: keep at most so many tokens; -1 = as many as the model takes; None = never shorten
    truncation_side: which end is cut off
    """

    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] = "left"

    @staticmethod
    def from_kwargs(options: Mapping[str, object] | None) -> TokenizationOptions:
        """Check a mapping of options; unknown names are refused."""
        options = {} if options is None else options
        if not isinstance(options, Mapping):
            raise wrong("tokenization_kwargs", "a mapping", options)
        unknown = sorted(map(repr, options.keys() - _OPTION_NAMES))
        if unknown:
            known = ", ".join(sorted(_OPTION_NAMES))
            message = f"unknown tokenization option {unknown[0]}; known: {known}"
            raise InvalidRequestError(message, "tokenization_kwargs")
        add_special_tokens = options.get("add_special_tokens")
        if add_special_tokens is not None and not isinstance(add_special_tokens, bool):
            raise wrong("add_special_tokens", "a bool", add_special_tokens)
        length = options.get("truncate_prompt_tokens")
        side = options.get("truncation_side") or "left"
        if side not in ("left", "right"):
            raise wrong("truncation_side", "'left' or 'right'", side)
        return TokenizationOptions(add_special_tokens, None if length is None else _truncation_length(length), side)


@dataclass(frozen=True)
class ParsedPrompt:
    """One prompt. text: None when it came as token ids only."""

    token_ids: list[int]
    text: str | None = None
    cache_salt: str | None = None


def parse_prompt(prompt: object, encode: Callable[[str], list[int]]) -> ParsedPrompt:
    """Bring a prompt of any accepted form to token ids; InvalidRequestError names the form that was expected.

    Ids are Python ints afterwards, but not yet checked against the model.
    """
    if isinstance(prompt, str):
        return ParsedPrompt(encode(prompt), prompt)
    if isinstance(prompt, Mapping):
        return _parse_mapping(prompt, encode)
    if isinstance(prompt, Sequence) and not isinstance(prompt, (bytes, bytearray)):
        return ParsedPrompt(_token_ids(prompt))
    raise _wrong_form(prompt)


def as_prompts(prompts: object) -> list[Any]:
    """Return the prompts of an API call: one alone, or those of a list, an array, a column of a table, a generator.

    A collection whose first item is a number is one prompt.
    """
    prompts = _plain(prompts)
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    if isinstance(prompts, (bytes, bytearray)) or not isinstance(prompts, Iterable):
        raise _wrong_form(prompts)
    listed = list(map(_plain, prompts))
    is_one = len(listed) > 0 and not isinstance(listed[0], (str, Mapping, Sequence))
    return [listed] if is_one else listed


def _plain(value: Any) -> Any:
    """Return arrays and tensors as lists, their numbers as numbers, and the rest as it is."""
    to_list = getattr(value, "tolist", None)
    return to_list() if callable(to_list) else value


def _parse_mapping(prompt: Mapping[str, object], encode: Callable[[str], list[int]]) -> ParsedPrompt:
    for key in prompt:
        if key in _UNSUPPORTED_KEYS and not holds_nothing(prompt[key]):
            raise UnsupportedError(f"prompts with {key!r} are not supported: {_UNSUPPORTED_KEYS[key]}")
        if key not in _PROMPT_KEYS and key not in _UNSUPPORTED_KEYS:
            raise InvalidRequestError(f"unknown prompt field {key!r}; known: {', '.join(_PROMPT_KEYS)}", key)
    cache_salt = _cache_salt(prompt.get("cache_salt"))
    text = prompt.get("prompt")
    if text is not None and not isinstance(text, str):
        raise wrong("prompt", "text", text)
    token_ids = prompt.get("prompt_token_ids")
    if token_ids is not None:
        return ParsedPrompt(_token_ids(token_ids), text, cache_salt)
    if text is None:
        raise _wrong_form(prompt)
    return ParsedPrompt(encode(text), text, cache_salt)


def _token_ids(values: object) -> list[int]:
    if not isinstance(values, Sequence) or isinstance(values, (str, bytes, bytearray)):
        values = _as_list(values)
    if set(map(type, values)) <= {int}:  # the usual case, at C speed
        return list(values)
    token_ids: list[int] = []
    for value in values:
        if isinstance(value, bool):
            raise wrong("prompt_token_ids", "a list of integers", value)
        try:
            token_ids.append(operator.index(value))  # type: ignore[arg-type]  # the question is whether it can
        except TypeError:
            raise wrong("prompt_token_ids", "a list of integers", value) from None
    return token_ids


def _as_list(values: object) -> list[object]:
    """Accept an array of ids (NumPy's, a tensor)."""
    to_list = getattr(values, "tolist", None)
    listed = to_list() if callable(to_list) else None
    if not isinstance(listed, list):
        raise wrong("prompt_token_ids", "a list of integers", values)
    return listed


def _cache_salt(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_CACHE_SALT_CHARS:
        raise wrong("cache_salt", f"text of 1 to {MAX_CACHE_SALT_CHARS} characters", value)
    if not is_valid_unicode(value):
        raise wrong("cache_salt", "valid Unicode, without lone surrogates", value)
    return value


def _truncation_length(value: object) -> int:
    length = as_int("truncate_prompt_tokens", value, -1)
    if length == 0:
        raise wrong("truncate_prompt_tokens", "at least 1, or -1 for the model's limit", 0)
    return length


def _wrong_form(prompt: object) -> InvalidRequestError:
    return wrong("prompt", "text, a list of token ids, {'prompt': text} or {'prompt_token_ids': ids}", prompt)


_OPTION_NAMES = frozenset(TokenizationOptions.__dataclass_fields__)
_PROMPT_KEYS = ("prompt", "prompt_token_ids", "cache_salt")
_UNSUPPORTED_KEYS = {
    "multi_modal_data": "multimodal input is not built",
    "multi_modal_uuids": "multimodal input is not built",
    "mm_processor_kwargs": "multimodal input is not built",
    "prompt_embeds": "prompt embeddings are not built",
    "encoder_prompt": "encoder-decoder models are not built",
    "decoder_prompt": "encoder-decoder models are not built",
}
