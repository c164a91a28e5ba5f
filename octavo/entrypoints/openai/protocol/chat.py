"""/v1/chat/completions: request, response, and the chunks of a stream."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from octavo.entrypoints.openai.protocol.common import GenerationRequest, Usage
from octavo.entrypoints.openai.protocol.tools import TOOL_CHOICE_SCHEMA, TOOLS_SCHEMA, ToolCall, ToolCallDelta

MESSAGE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"type": "string", "enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {
            "oneOf": [
                {"type": ["string", "null"]},
                {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["type", "text"],
                        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                    },
                },
            ]
        },
        "name": {"type": "string"},
        "tool_calls": {"type": "array", "items": {"type": "object", "required": ["function"]}},
        "tool_call_id": {"type": "string"},
        "reasoning": {"type": "string"},
    },
}
MESSAGES_SCHEMA: dict[str, Any] = {"minItems": 1, "items": MESSAGE_SCHEMA}
MESSAGE_FIELDS = frozenset(
    (
        *("role", "content", "name", "refusal", "audio", "tool_calls", "tool_call_id", "function_call"),
        *("reasoning", "reasoning_content", "tools", "prefix", "annotations"),
    )
)

Messages = Annotated[list[dict[str, Any]], Meta(extra_json_schema=MESSAGES_SCHEMA)]


class ChatCompletionRequest(GenerationRequest, kw_only=True):
    """A conversation, to be answered or, with continue_final_message, gone on with.

    max_completion_tokens wins over max_tokens; without either, as many as the context has room for
    add_generation_prompt: True when not given; continue_final_message needs it False
    tool_choice: auto when there are tools; include_reasoning: True when not given
    reasoning_effort: given to the template, under this name; "none" also switches reasoning off
    """

    messages: Messages
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    return_prompt_text: bool | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None
    tools: Annotated[list[dict[str, Any]] | None, Meta(extra_json_schema=TOOLS_SCHEMA)] = None
    tool_choice: Annotated[str | dict[str, Any] | None, Meta(extra_json_schema=TOOL_CHOICE_SCHEMA)] = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    # capabilities that are not built: see unbuilt_fields.py for what each may hold
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    prediction: Any = None
    web_search_options: Any = None
    verbosity: Any = None


class TokenCandidate(msgspec.Struct):
    """One candidate for a position; bytes are its true bytes, part of a character or not."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(msgspec.Struct):
    """The token of a position, and the likeliest candidates there."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TokenCandidate]


class ChatLogprobs(msgspec.Struct):
    """One entry per generated token."""

    content: list[TokenLogprob] | None
    refusal: None = None


class ChatMessage(msgspec.Struct):
    """The answer. content: None when there is none beside calls or reasoning"""

    role: str
    content: str | None
    refusal: None = None
    tool_calls: list[ToolCall] = []
    reasoning: str | None = None


class ChatChoice(msgspec.Struct):
    """One answer and why it ended."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletionResponse(msgspec.Struct):
    """All answers, by index."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str | None = None
    service_tier: str | None = None
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET
    kv_transfer_params: dict[str, Any] | None = None


class ChatDelta(msgspec.Struct, omit_defaults=True):
    """What is new; the first one of a choice carries the role."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChunkChoice(msgspec.Struct):
    """What is new in one answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletionChunk(msgspec.Struct):
    """One event of a stream."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str | None = None
    prompt_token_ids: list[int] | UnsetType = UNSET
