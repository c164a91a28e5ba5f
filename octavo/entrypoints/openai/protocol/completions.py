"""/v1/completions: request, response, and the chunks of a stream."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from octavo.entrypoints.openai.protocol.common import GenerationRequest, Usage

PROMPT_SCHEMA: dict[str, Any] = {
    "oneOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
        {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
        {
            "type": "array",
            "minItems": 1,
            "items": {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
        },
    ]
}


class CompletionRequest(GenerationRequest, kw_only=True):
    """A text, token ids, or a list of either, to be continued.

    max_tokens: 16 when not given; 0 only with echo, to score the prompt
    logprobs: true means 1 and false none, as chats have it
    """

    prompt: Annotated[str | list[Any] | None, Meta(extra_json_schema=PROMPT_SCHEMA)] = None
    logprobs: int | bool | None = None
    prompt_embeds: Any = None
    suffix: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.logprobs, bool):
            self.logprobs = 1 if self.logprobs else None


class CompletionLogprobs(msgspec.Struct):
    """One entry per token; the first of an echoed prompt has no logprob, for nothing predicts it.

    text_offset: where each token's text begins in the choice's text, in characters
    """

    text_offset: list[int] = []
    token_logprobs: list[float | None] = []
    tokens: list[str] = []
    top_logprobs: list[dict[str, float] | None] = []


class CompletionChoice(msgspec.Struct):
    """One continuation."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: list[dict[str, Any] | None] | UnsetType | None = UNSET


class CompletionResponse(msgspec.Struct):
    """All continuations: those of the first prompt, then those of the second."""

    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    system_fingerprint: str | None = None
    kv_transfer_params: dict[str, Any] | None = None


class CompletionChunk(msgspec.Struct):
    """One event of a stream."""

    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str | None = None
