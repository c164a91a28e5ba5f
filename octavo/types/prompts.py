"""The prompt forms that every entry accepts."""

from __future__ import annotations

from typing import TypedDict


class TextPrompt(TypedDict, total=False):
    """A prompt as text."""

    prompt: str
    cache_salt: str


class TokensPrompt(TypedDict, total=False):
    """A prompt as token ids; `prompt` may carry the text they came from."""

    prompt_token_ids: list[int]
    prompt: str
    cache_salt: str


PromptType = str | list[int] | TextPrompt | TokensPrompt
