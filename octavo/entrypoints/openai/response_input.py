"""What a request to /v1/responses asks for: its conversation, its sampling fields, and what is not built of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from octavo.entrypoints.openai.conversation_job import ConversationJob, conversation_job
from octavo.entrypoints.openai.conversations import Conversation, template_arguments
from octavo.entrypoints.openai.protocol.common import GenerationRequest
from octavo.entrypoints.openai.protocol.responses import ResponsesRequest
from octavo.entrypoints.openai.response_store import Messages
from octavo.entrypoints.openai.response_turns import add_assistant_call, add_assistant_reasoning, add_assistant_text
from octavo.entrypoints.openai.sampling import to_sampling_params
from octavo.entrypoints.openai.state import ServerState
from octavo.entrypoints.openai.structured import from_text_format
from octavo.entrypoints.openai.unbuilt_fields import Unbuilt, refuse_unbuilt, refuse_unknown
from octavo.entrypoints.tool_requests import response_tools
from octavo.errors import InvalidRequestError
from octavo.types.sampling_checks import wrong

LOGPROBS = "message.output_text.logprobs"
_ROLES = ("user", "assistant", "system", "developer")
_TEXT_PARTS = ("input_text", "output_text", "text")
_SAME_NAMES = (
    *("frequency_penalty", "presence_penalty", "repetition_penalty", "temperature", "top_p", "top_k", "min_p"),
    *("model", "seed", "stop", "stream", "ignore_eos", "priority", "cache_salt", "structured_outputs", "vllm_xargs"),
)


def response_job(server: ServerState, request: ResponsesRequest, messages: Messages, engine_id: str) -> ConversationJob:
    """Check the sampling fields and tokenise the conversation. Takes time: not for the event loop.

    messages: all turns, without the request's instructions
    """
    sampling = GenerationRequest(**{name: getattr(request, name) for name in _SAME_NAMES})
    if request.instructions:
        messages = [{"role": "system", "content": request.instructions}, *messages]
    arguments = template_arguments(None, (request.reasoning or {}).get("effort"))
    wish = response_tools(request.tools, request.tool_choice, request.parallel_tool_calls)
    conversation = Conversation(messages, chat_template_kwargs=arguments, tools=wish)
    params = to_sampling_params(
        server,
        sampling,
        max_tokens=request.max_output_tokens,
        logprobs=num_top_logprobs(request),
        overrides=_format_of(request),
    )
    return conversation_job(server, engine_id, conversation, sampling, params)


def _format_of(request: ResponsesRequest) -> dict[str, object]:
    """Return what text.format makes of the sampling parameters; nothing if it asks for nothing."""
    wanted = from_text_format(request.text)
    if wanted is None:
        return {}
    if request.structured_outputs:
        raise InvalidRequestError(
            "text.format and structured_outputs exclude each other; leave one of them out", "structured_outputs"
        )
    return {"structured_outputs": wanted}


def num_top_logprobs(request: ResponsesRequest) -> int | None:
    """Return how many candidates per token are wanted; None for no logprobs."""
    wants = LOGPROBS in (request.include or ())
    if request.top_logprobs and not wants:
        raise InvalidRequestError(f"top_logprobs needs include={[LOGPROBS]}", "top_logprobs")
    return request.top_logprobs or 0 if wants else None


def input_messages(request: ResponsesRequest) -> list[dict[str, Any]]:
    """Return the input as messages; raises InvalidRequestError."""
    if isinstance(request.input, str):
        return [{"role": "user", "content": request.input}]
    if not request.input:
        raise InvalidRequestError("input must not be an empty list", "input")
    turns: list[dict[str, Any]] = []
    for index, item in enumerate(request.input):
        _add_item(turns, f"input[{index}]", item)
    return turns


def _add_item(turns: list[dict[str, Any]], where: str, item: object) -> None:
    """Add an item to the conversation. Reasoning, text and calls in a row are one turn of the assistant."""
    if not isinstance(item, Mapping):
        raise wrong(where, "an object", item)
    kind = item.get("type", "message")
    add = _ITEM_KINDS.get(kind) if isinstance(kind, str) else None
    if add is None:
        known = ", ".join(_ITEM_KINDS)
        raise InvalidRequestError(f"{where}: items of type {str(kind)[:80]} are not supported; {known} are", "input")
    add(turns, where, item)


def _add_message(turns: list[dict[str, Any]], where: str, item: Mapping[str, Any]) -> None:
    role = item.get("role")
    if role not in _ROLES:
        raise wrong(f"{where}.role", f"one of {', '.join(_ROLES)}", role)
    text = _joined_text(f"{where}.content", item.get("content"))
    if role == "assistant":
        add_assistant_text(turns, text)
    else:
        turns.append({"role": role, "content": text})


def _add_reasoning(turns: list[dict[str, Any]], where: str, item: Mapping[str, Any]) -> None:
    for name in ("content", "summary"):
        parts = item.get(name) or ()
        if not isinstance(parts, Sequence) or isinstance(parts, str):
            raise wrong(f"{where}.{name}", "a list of parts", parts)
        texts = [part["text"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("text"), str)]
        if len(texts) != len(parts):
            raise wrong(f"{where}.{name}", '[{"type": "reasoning_text", "text": …}]', parts)
        if texts:
            add_assistant_reasoning(turns, "".join(texts))
            return


def _add_call(turns: list[dict[str, Any]], where: str, item: Mapping[str, Any]) -> None:
    for name in ("call_id", "name", "arguments"):
        if not isinstance(item.get(name), str):
            raise wrong(f"{where}.{name}", "text", item.get(name), "input")
    add_assistant_call(turns, item["call_id"], item["name"], item["arguments"])


def _add_result(turns: list[dict[str, Any]], where: str, item: Mapping[str, Any]) -> None:
    if not isinstance(item.get("call_id"), str):
        raise wrong(f"{where}.call_id", "that of the call", item.get("call_id"), "input")
    output = _joined_text(f"{where}.output", item.get("output"))
    turns.append({"role": "tool", "tool_call_id": item["call_id"], "content": output})


_ITEM_KINDS: Mapping[str, Callable[[list[dict[str, Any]], str, Mapping[str, Any]], None]] = {
    "message": _add_message,
    "reasoning": _add_reasoning,
    "function_call": _add_call,
    "function_call_output": _add_result,
}


def _joined_text(where: str, content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise wrong(where, "text, or a list of parts", content)
    return "".join(_text(f"{where}[{i}]", part) for i, part in enumerate(content))


def _text(where: str, part: object) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(kind, str):
        raise wrong(where, '{"type": "input_text", "text": …}', part)
    if kind not in _TEXT_PARTS:
        raise InvalidRequestError(f"{where}: parts of type {kind[:80]} are not supported; input_text is", "input")
    text = part.get("text") if isinstance(part, Mapping) else None
    if not isinstance(text, str):
        raise wrong(where, '{"type": "input_text", "text": …}', part)
    return text


# -- what is not built -------------------------------------------------------------------------------------------------

_UNBUILT: Unbuilt = {
    "conversation": ((), "conversations are not stored; use previous_response_id"),
    "prompt": ((), "prompt templates are not stored"),
    "truncation": (("disabled",), "a conversation that does not fit is refused, not cut"),
    "service_tier": (("auto", "default"), "there is one service tier"),
    "response_format": ((), "here it is text.format"),
    "max_tokens": ((), "here it is max_output_tokens"),
    "max_completion_tokens": ((), "here it is max_output_tokens"),
    "enable_response_messages": ((), "messages of the Harmony format are not told"),
    "previous_input_messages": (([],), "use previous_response_id, or send the conversation as input"),
}
# reasoning is never encrypted: it comes as text, which its item may bring back in the next turn
_KNOWN_INCLUDES = (LOGPROBS, "reasoning.encrypted_content")


def check_fields(request: ResponsesRequest) -> None:
    """Raise InvalidRequestError, naming the field, if a request asks for something that is not built."""
    refuse_unbuilt(request, _UNBUILT)
    for wish in request.include or ():
        if wish not in _KNOWN_INCLUDES:
            raise InvalidRequestError(f"include: {wish[:80]!r} is not supported; {LOGPROBS!r} is", "include")
    text = request.text or {}
    refuse_unknown("text", text, ("format", "verbosity"))
    from_text_format(text)
    if text.get("verbosity") not in (None, "medium"):
        raise InvalidRequestError("text.verbosity is not supported: models have no setting for it", "text")
    reasoning = request.reasoning or {}
    refuse_unknown("reasoning", reasoning, ("effort", "summary", "generate_summary"))
    if not isinstance(reasoning.get("effort"), (str, type(None))):
        raise wrong("reasoning.effort", "text", reasoning["effort"], "reasoning")
    for name in ("summary", "generate_summary"):
        if reasoning.get(name) not in (None, "auto"):
            raise InvalidRequestError(
                f"reasoning.{name} is not supported: reasoning comes as it is, in full; leave it out", "reasoning"
            )
    if request.max_tool_calls is not None and request.max_tool_calls < 1:
        raise wrong("max_tool_calls", "at least 1", request.max_tool_calls)
    if request.stream_options is not None and not request.stream:
        raise InvalidRequestError("stream_options need stream=true", "stream_options")
    _check_background(request)


def _check_background(request: ResponsesRequest) -> None:
    if request.background and request.store is False:
        raise InvalidRequestError("background=true needs store=true: how else would the answer be found", "background")
    if request.background and request.stream:
        raise InvalidRequestError("background=true and stream=true together are not supported", "background")
