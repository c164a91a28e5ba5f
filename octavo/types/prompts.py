"""The prompt forms that every entry accepts."""

from __future__ import annotations

from typing import TypedDict


class TextPrompt(TypedDict, total=False):
    """A prompt as text; `text_pair`: the second text of a pair that a model scores."""

    prompt: str
    text_pair: str
    cache_salt: str


class TokensPrompt(TypedDict, total=False):
    """A prompt as token ids; `prompt` may carry the text they came from.

    token_type_ids: of a pair that a model scores: 0 for each token of the first text, 1 for each of the second
    """

    prompt_token_ids: list[int]
    token_type_ids: list[int]
    prompt: str
    cache_salt: str


PromptType = str | list[int] | TextPrompt | TokensPrompt
