"""/v1/responses: request, response, and the events of a stream."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from octavo.entrypoints.openai.protocol.chat import TokenLogprob

_PART = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"enum": ["input_text", "output_text"]}, "text": {"type": "string"}},
}
_ITEM = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "type": {"const": "message"},
        "role": {"enum": ["user", "assistant", "system", "developer"]},
        "content": {"oneOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": _PART}]},
    },
}
_CALL = {
    "type": "object",
    "required": ["type", "call_id", "name", "arguments"],
    "properties": {
        "type": {"const": "function_call"},
        "call_id": {"type": "string"},
        "name": {"type": "string"},
        "arguments": {"type": "string"},
    },
}
_RESULT = {
    "type": "object",
    "required": ["type", "call_id", "output"],
    "properties": {
        "type": {"const": "function_call_output"},
        "call_id": {"type": "string"},
        "output": _ITEM["properties"]["content"],  # type: ignore[index]
    },
}
_REASONING = {"type": "object", "required": ["type"], "properties": {"type": {"const": "reasoning"}}}
INPUT_SCHEMA: dict[str, Any] = {
    "oneOf": [
        {"type": "string"},
        {"type": "array", "minItems": 1, "items": {"oneOf": [_ITEM, _CALL, _RESULT, _REASONING]}},
    ]
}


class ResponsesRequest(msgspec.Struct, kw_only=True):
    """A text or a list of messages, to be answered, perhaps as the next turn of an earlier response.

    store: True when not given; background needs it
    max_tool_calls: of tools that the server runs itself, of which there are none
    From frequency_penalty on: vLLM's additions.
    """

    input: Annotated[str | list[Any], Meta(extra_json_schema=INPUT_SCHEMA)]
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    store: bool | None = None
    background: bool | None = None
    metadata: dict[str, str] | None = None
    text: dict[str, Any] | None = None
    truncation: str | None = None
    reasoning: dict[str, Any] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    parallel_tool_calls: bool | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    max_tool_calls: int | None = None
    conversation: Any = None
    prompt: Any = None

    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    priority: int | None = None
    request_id: str | None = None
    cache_salt: str | None = None
    structured_outputs: Any = None
    vllm_xargs: dict[str, Any] | None = None

    # other endpoints' words for what this one calls otherwise, and what is not built
    response_format: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    enable_response_messages: Any = None
    previous_input_messages: Any = None


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    """The answer's text; logprobs only if asked for."""

    text: str = ""
    logprobs: list[TokenLogprob] = []
    annotations: list[Any] = []


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    """What the model thought."""

    text: str = ""


class OutputMessage(msgspec.Struct, tag_field="type", tag="message"):
    """The answer. status of all items: in_progress, completed or incomplete"""

    id: str
    content: list[OutputText] = []
    status: str = "in_progress"
    role: str = "assistant"


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning"):
    """The model's reasoning, as it is: never summarised or encrypted."""

    id: str
    summary: list[Any] = []
    content: list[ReasoningText] = []
    status: str = "in_progress"


class FunctionCallItem(msgspec.Struct, tag_field="type", tag="function_call"):
    """A function to call. call_id: what the result's item refers to; arguments: JSON text, in part when incomplete"""

    id: str
    call_id: str
    name: str
    arguments: str = ""
    status: str = "in_progress"


OutputItem = OutputMessage | ReasoningItem | FunctionCallItem


class InputTokensDetails(msgspec.Struct):
    """Where the input's tokens came from."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct):
    """What the output's tokens were spent on."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct):
    """How many tokens were read and written."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens_details: OutputTokensDetails


class ResponseError(msgspec.Struct):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct):
    """Why a response is incomplete."""

    reason: str


class ResponseObject(msgspec.Struct, kw_only=True):
    """A response. status: queued, in_progress, completed, incomplete, failed or cancelled"""

    id: str
    created_at: int
    model: str
    status: str
    output: list[OutputItem]
    object: str = "response"
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    usage: ResponseUsage | None = None
    completed_at: int | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    metadata: dict[str, str] = {}
    background: bool = False
    store: bool = True
    text: dict[str, Any] = msgspec.field(default_factory=lambda: {"format": {"type": "text"}})
    truncation: str = "disabled"
    reasoning: dict[str, Any] | None = None
    user: str | None = None
    service_tier: str = "default"
    parallel_tool_calls: bool = True
    tool_choice: str | dict[str, Any] = "auto"
    tools: list[Any] = []


class DeletedResponse(msgspec.Struct):
    """A response that is not stored any more."""

    id: str
    object: str = "response.deleted"
    deleted: bool = True


# -- events: sequence_number counts them from 0 ------------------------------------------------------------------------


class LifecycleEvent(msgspec.Struct):
    """The response as it is now: response.created, .in_progress, .completed, .incomplete or .failed."""

    type: str
    sequence_number: int
    response: ResponseObject


class ItemEvent(msgspec.Struct):
    """An output item begins or is complete."""

    type: str
    sequence_number: int
    item: OutputItem
    output_index: int


class PartEvent(msgspec.Struct):
    """A content part begins or is complete."""

    type: str
    sequence_number: int
    item_id: str
    part: OutputText | ReasoningText
    output_index: int
    content_index: int = 0


class TextDeltaEvent(msgspec.Struct):
    """More text."""

    type: str
    sequence_number: int
    item_id: str
    delta: str
    logprobs: list[TokenLogprob]
    output_index: int
    content_index: int = 0


class TextDoneEvent(msgspec.Struct):
    """All of the text."""

    type: str
    sequence_number: int
    item_id: str
    text: str
    logprobs: list[TokenLogprob]
    output_index: int
    content_index: int = 0


class ReasoningDeltaEvent(msgspec.Struct):
    """More of the reasoning."""

    type: str
    sequence_number: int
    item_id: str
    delta: str
    output_index: int
    content_index: int = 0


class ReasoningDoneEvent(msgspec.Struct):
    """All of the reasoning."""

    type: str
    sequence_number: int
    item_id: str
    text: str
    output_index: int
    content_index: int = 0


class ArgumentsDeltaEvent(msgspec.Struct):
    """More of a call's arguments."""

    type: str
    sequence_number: int
    item_id: str
    delta: str
    output_index: int


class ArgumentsDoneEvent(msgspec.Struct):
    """All of a call's arguments."""

    type: str
    sequence_number: int
    item_id: str
    name: str
    arguments: str
    output_index: int


ResponseEvent = (
    LifecycleEvent
    | ItemEvent
    | PartEvent
    | TextDeltaEvent
    | TextDoneEvent
    | ReasoningDeltaEvent
    | ReasoningDoneEvent
    | ArgumentsDeltaEvent
    | ArgumentsDoneEvent
)
