"""A text, or a pair of texts, as the ids that an encoder reads; cut so that the special tokens stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import tokenizers

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.tokenizers.tokenizer import Tokenizer

TruncationSide = Literal["left", "right"]


@dataclass(frozen=True)
class EncodedText:
    """second_text_start: where the tokenizer says that the second text begins; None: it does not tell them apart"""

    token_ids: list[int]
    second_text_start: int | None = None


def encode_text(
    tokenizer: Tokenizer,
    text: str,
    text_pair: str | None = None,
    *,
    add_special_tokens: bool = True,
    max_tokens: int | None = None,
    side: TruncationSide = "right",
) -> EncodedText:
    """Tokenise a text, or a pair as the tokenizer joins them; of a pair the longer text is cut first.

    max_tokens: for all, special tokens included; side: the end that is cut off
    Raises InvalidRequestError where they leave no room for a text.
    """
    first, second = _encode(tokenizer, text), None if text_pair is None else _encode(tokenizer, text_pair)
    if max_tokens is not None:
        num_special = tokenizer.backend.num_special_tokens_to_add(second is not None) if add_special_tokens else 0
        least = num_special + (1 if second is None else 2)
        if max_tokens < least:
            raise InvalidRequestError(
                f"truncate_prompt_tokens must be at least {least} for {'a text' if second is None else 'two texts'}, "
                f"beside the {num_special} tokens that the tokenizer adds, got {max_tokens}",
                "truncate_prompt_tokens",
            )
        _truncate(first, second, max_tokens - num_special, side)
    encoding = tokenizer.backend.post_process(first, second, add_special_tokens)
    return EncodedText(list(encoding.ids), _second_text_start(encoding.type_ids))


def _encode(tokenizer: Tokenizer, text: str) -> tokenizers.Encoding:
    try:
        return tokenizer.backend.encode(text, add_special_tokens=False)
    except (UnicodeEncodeError, TypeError):  # the backend's words for a lone surrogate, as in '\ud800'
        raise InvalidRequestError("the text is not valid Unicode: it has a lone surrogate", "prompt") from None


def _truncate(
    first: tokenizers.Encoding, second: tokenizers.Encoding | None, max_tokens: int, side: TruncationSide
) -> None:
    if second is None:
        lengths = [max_tokens]
    elif len(first.ids) + len(second.ids) <= max_tokens:
        return
    else:
        lengths = pair_lengths(len(first.ids), len(second.ids), max_tokens)
    for encoding, length in zip((first, second), lengths, strict=False):
        if encoding is not None and len(encoding.ids) > length:
            encoding.truncate(length, direction=side)


def pair_lengths(first: int, second: int, max_tokens: int) -> list[int]:
    """Return what is left of two texts: the longer one is cut, both to half where that is not enough."""
    shorter = min(first, second)
    if 2 * shorter > max_tokens:
        shorter = max_tokens // 2
    longer = max_tokens - shorter
    return [shorter, longer] if first <= second else [longer, shorter]


def _second_text_start(type_ids: list[int]) -> int | None:
    """Return where types change from 0 to 1; None where all are alike."""
    if not any(type_ids):
        return None
    start = type_ids.index(1) if 1 in type_ids else 0
    if type_ids != [0] * start + [1] * (len(type_ids) - start):
        raise UnsupportedError("token types other than 0 for a first text and 1 for a second one are not supported")
    return start
