"""What a request to /v1/responses asks for: its conversation, its sampling fields, and what is not built of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.entrypoints.openai.conversation_job import conversation_job
from octavo.entrypoints.openai.conversations import Conversation
from octavo.entrypoints.openai.generation import Job
from octavo.entrypoints.openai.protocol.common import GenerationRequest
from octavo.entrypoints.openai.protocol.responses import ResponsesRequest
from octavo.entrypoints.openai.response_store import Messages
from octavo.entrypoints.openai.state import ServerState
from octavo.errors import InvalidRequestError
from octavo.types.sampling_checks import wrong

LOGPROBS = "message.output_text.logprobs"
_ROLES = ("user", "assistant", "system", "developer")
_TEXT_PARTS = ("input_text", "output_text", "text")
_SAME_NAMES = (
    *("frequency_penalty", "presence_penalty", "repetition_penalty", "temperature", "top_p", "top_k", "min_p"),
    *("seed", "stop", "stream", "ignore_eos", "priority", "cache_salt", "vllm_xargs"),
)


def response_job(server: ServerState, request: ResponsesRequest, messages: Messages, engine_id: str) -> Job:
    """Check the sampling fields and tokenise the conversation. Takes time: not for the event loop.

    messages: all turns, without the request's instructions
    """
    sampling = GenerationRequest(**{name: getattr(request, name) for name in _SAME_NAMES})
    if request.instructions:
        messages = [{"role": "system", "content": request.instructions}, *messages]
    effort = (request.reasoning or {}).get("effort")
    conversation = Conversation(messages, chat_template_kwargs={"reasoning_effort": effort} if effort else None)
    return conversation_job(
        server, engine_id, conversation, sampling, request.max_output_tokens, num_top_logprobs(request)
    )


def num_top_logprobs(request: ResponsesRequest) -> int | None:
    """Return how many candidates per token are wanted; None for no logprobs."""
    wants = LOGPROBS in (request.include or ())
    if request.top_logprobs and not wants:
        raise InvalidRequestError(f"top_logprobs needs include={[LOGPROBS]}", "top_logprobs")
    return request.top_logprobs or 0 if wants else None


def input_messages(request: ResponsesRequest) -> list[Mapping[str, Any]]:
    """Return the input as messages; raises InvalidRequestError."""
    if isinstance(request.input, str):
        return [{"role": "user", "content": request.input}]
    if not request.input:
        raise InvalidRequestError("input must not be an empty list", "input")
    return [_message(index, item) for index, item in enumerate(request.input)]


def _message(index: int, item: object) -> Mapping[str, Any]:
    where = f"input[{index}]"
    if not isinstance(item, Mapping):
        raise wrong(where, "an object", item)
    kind = item.get("type", "message")
    if kind != "message":
        raise InvalidRequestError(f"{where}: items of type {str(kind)[:80]} are not supported; messages are", "input")
    role, content = item.get("role"), item.get("content")
    if role not in _ROLES:
        raise wrong(f"{where}.role", f"one of {', '.join(_ROLES)}", role)
    if isinstance(content, str):
        return {"role": role, "content": content}
    if not isinstance(content, list) or not content:
        raise wrong(f"{where}.content", "text, or a list of parts", content)
    return {"role": role, "content": "".join(_text(f"{where}.content[{i}]", part) for i, part in enumerate(content))}


def _text(where: str, part: object) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if isinstance(kind, str) and kind not in _TEXT_PARTS:
        raise InvalidRequestError(f"{where}: parts of type {kind[:80]} are not supported; input_text is", "input")
    text = part.get("text") if isinstance(part, Mapping) else None
    if kind is None or not isinstance(text, str):
        raise wrong(where, '{"type": "input_text", "text": …}', part)
    return text


# -- what is not built -------------------------------------------------------------------------------------------------

_TOOLS = "tool calls are not built"
# field -> (values that ask for nothing, what is missing)
_UNBUILT: Mapping[str, tuple[Sequence[object], str]] = {
    "tools": (([],), _TOOLS),
    "tool_choice": (("auto", "none"), _TOOLS),
    "max_tool_calls": ((), _TOOLS),
    "conversation": ((), "conversations are not stored; use previous_response_id"),
    "prompt": ((), "prompt templates are not stored"),
    "truncation": (("disabled",), "a conversation that does not fit is refused, not cut"),
    "service_tier": (("auto", "default"), "there is one service tier"),
}
_KNOWN_INCLUDES = (LOGPROBS,)


def check_fields(request: ResponsesRequest) -> None:
    """Raise InvalidRequestError, naming the field, if a request asks for something that is not built."""
    for name, (neutral, reason) in _UNBUILT.items():
        value = getattr(request, name)
        if value is not None and value not in neutral:
            raise InvalidRequestError(f"{name} is not supported: {reason}; leave it out", name)
    for wish in request.include or ():
        if wish not in _KNOWN_INCLUDES:
            raise InvalidRequestError(f"include: {wish[:80]!r} is not supported; {LOGPROBS!r} is", "include")
    text = request.text or {}
    if text.get("format", {"type": "text"}) != {"type": "text"}:
        raise InvalidRequestError("text.format must be text: structured outputs are not built", "text")
    if text.get("verbosity") not in (None, "medium"):
        raise InvalidRequestError("text.verbosity is not supported: models have no setting for it", "text")
    reasoning = request.reasoning or {}
    if reasoning.get("summary") or reasoning.get("generate_summary"):
        raise InvalidRequestError("reasoning.summary is not supported: reasoning parsers are not built", "reasoning")
    if request.stream_options is not None and not request.stream:
        raise InvalidRequestError("stream_options need stream=true", "stream_options")
    _check_background(request)


def _check_background(request: ResponsesRequest) -> None:
    if request.background and request.store is False:
        raise InvalidRequestError("background=true needs store=true: how else would the answer be found", "background")
    if request.background and request.stream:
        raise InvalidRequestError("background=true and stream=true together are not supported", "background")
