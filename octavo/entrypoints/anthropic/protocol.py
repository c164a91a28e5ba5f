"""The wire types of Anthropic's Messages API: requests, messages, the events of a stream, errors."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

_TEXT_BLOCK = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
}
_CONTENT = {"oneOf": [{"type": "string"}, {"type": "array", "items": _TEXT_BLOCK}]}
_THINKING_BLOCK = {
    "type": "object",
    "required": ["type", "thinking"],
    "properties": {"type": {"const": "thinking"}, "thinking": {"type": "string"}},
}
_TOOL_USE_BLOCK = {
    "type": "object",
    "required": ["type", "id", "name", "input"],
    "properties": {
        "type": {"const": "tool_use"},
        "id": {"type": "string"},
        "name": {"type": "string"},
        "input": {"type": "object"},
    },
}
_TOOL_RESULT_BLOCK = {
    "type": "object",
    "required": ["type", "tool_use_id"],
    "properties": {"type": {"const": "tool_result"}, "tool_use_id": {"type": "string"}, "content": _CONTENT},
}
_TURN = {
    "oneOf": [
        {"type": "string"},
        {
            "type": "array",
            "minItems": 1,
            "items": {"oneOf": [_TEXT_BLOCK, _THINKING_BLOCK, _TOOL_USE_BLOCK, _TOOL_RESULT_BLOCK]},
        },
    ]
}
_MESSAGES_SCHEMA: dict[str, Any] = {
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["role", "content"],
        "properties": {"role": {"type": "string", "enum": ["user", "assistant"]}, "content": _TURN},
    },
}

InputMessages = Annotated[list[dict[str, Any]], Meta(extra_json_schema=_MESSAGES_SCHEMA)]
System = Annotated[str | list[dict[str, Any]] | None, Meta(extra_json_schema=_CONTENT)]


class CountTokensRequest(msgspec.Struct, kw_only=True):
    """A conversation. Fields of what is not built may hold only what asks for nothing.

    tool_choice: auto when there are tools; thinking: as the chat template has it when not given
    """

    messages: InputMessages
    model: str | None = None
    system: System = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    mcp_servers: list[dict[str, Any]] | None = None
    context_management: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None


class MessagesRequest(CountTokensRequest, kw_only=True):
    """A conversation to be answered; a last turn of the assistant is gone on with.

    metadata, service_tier: accepted and without effect; the last five are vLLM's and Octavo's additions
    """

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    container: Any = None
    cache_salt: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    priority: int | None = None
    seed: int | None = None
    vllm_xargs: dict[str, Any] | None = None


class TokenCount(msgspec.Struct):
    """The tokens of a conversation, as a request with it would read them."""

    input_tokens: int


class MessageUsage(msgspec.Struct):
    """input_tokens: all of the prompt, from the prefix cache or not, as count_tokens counts them."""

    input_tokens: int
    output_tokens: int


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    """The answer's text."""

    text: str


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    """The model's reasoning, as it is. signature: empty, for nobody checks it"""

    thinking: str
    signature: str = ""


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A function to call; the tool_result refers to the id. input: empty when the answer was cut inside it"""

    id: str
    name: str
    input: dict[str, Any] = {}


ContentBlock = TextBlock | ThinkingBlock | ToolUseBlock


class Message(msgspec.Struct):
    """An answer. stop_reason: end_turn, tool_use, max_tokens or stop_sequence; None at the beginning of a stream."""

    id: str
    model: str
    content: list[ContentBlock]
    usage: MessageUsage
    stop_reason: str | None = None
    stop_sequence: str | None = None
    type: str = "message"
    role: str = "assistant"


# -- stream ------------------------------------------------------------------------------------------------------------


class MessageStart(msgspec.Struct):
    """The first event: the message without its content."""

    message: Message
    type: str = "message_start"


class BlockStart(msgspec.Struct):
    """A content block begins."""

    index: int
    content_block: ContentBlock
    type: str = "content_block_start"


class TextDelta(msgspec.Struct, tag_field="type", tag="text_delta"):
    """More text of a block."""

    text: str


class ThinkingDelta(msgspec.Struct, tag_field="type", tag="thinking_delta"):
    """More reasoning."""

    thinking: str


class InputJSONDelta(msgspec.Struct, tag_field="type", tag="input_json_delta"):
    """More of the JSON text of a tool's input."""

    partial_json: str


Delta = TextDelta | ThinkingDelta | InputJSONDelta


class BlockDelta(msgspec.Struct):
    """A content block goes on."""

    index: int
    delta: Delta
    type: str = "content_block_delta"


class BlockStop(msgspec.Struct):
    """A content block is complete."""

    index: int
    type: str = "content_block_stop"


class StopDelta(msgspec.Struct):
    """Why the message ended."""

    stop_reason: str
    stop_sequence: str | None


class MessageDelta(msgspec.Struct):
    """What is known at the end."""

    delta: StopDelta
    usage: MessageUsage
    type: str = "message_delta"


class MessageStop(msgspec.Struct):
    """The last event."""

    type: str = "message_stop"


StreamEvent = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop


# -- errors ------------------------------------------------------------------------------------------------------------


class AnthropicErrorBody(msgspec.Struct):
    """What went wrong."""

    type: str
    message: str


class AnthropicError(msgspec.Struct):
    """The body of every response that is not a success, and the event that ends a stream early."""

    error: AnthropicErrorBody
    type: str = "error"
