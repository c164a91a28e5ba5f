"""/v1/messages and /v1/messages/count_tokens: Anthropic's way to ask for an answer to a conversation, in text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

from octavo.entrypoints.anthropic.errors import error_body
from octavo.entrypoints.anthropic.protocol import (
    BlockDelta,
    BlockStart,
    BlockStop,
    CountTokensRequest,
    Message,
    MessageDelta,
    MessagesRequest,
    MessageStart,
    MessageStop,
    MessageUsage,
    StopDelta,
    StreamEvent,
    TextBlock,
    TextDelta,
    TokenCount,
)
from octavo.entrypoints.openai.conversation_job import conversation_job
from octavo.entrypoints.openai.conversations import Conversation, render_conversation
from octavo.entrypoints.openai.generation import Job
from octavo.entrypoints.openai.http import Events, named_event
from octavo.entrypoints.openai.protocol.common import GenerationRequest
from octavo.entrypoints.openai.state import RequestContext, ServerState, new_request_ids
from octavo.errors import InvalidRequestError, RequestFailedError, UnsupportedError
from octavo.types.outputs import CompletionOutput
from octavo.types.sampling_checks import wrong


async def create_message(server: ServerState, request: MessagesRequest, context: RequestContext) -> Message | Events:
    """Answer a conversation; raises before anything runs if the request is wrong."""
    model = server.model_name(request.model)
    _refuse_unbuilt(request)
    if request.max_tokens < 1:
        raise wrong("max_tokens", "at least 1", request.max_tokens)
    server.runner.admission.check()
    ids = new_request_ids("msg", context.request_id, None)
    job = await server.prepare(lambda: _job(server, request, ids.engine), context.is_bulky)
    return _events(server, job, ids.shown, model) if request.stream else await _whole(server, job, ids.shown, model)


async def count_tokens(server: ServerState, request: CountTokensRequest, context: RequestContext) -> TokenCount:
    """Return how many tokens a conversation has, the header of the answer to come included."""
    server.model_name(request.model)
    _refuse_unbuilt(request)
    return await server.prepare(lambda: _count(server, request), context.is_bulky)


def _count(server: ServerState, request: CountTokensRequest) -> TokenCount:
    text = render_conversation(server, _conversation(request, None))
    return TokenCount(len(server.require_tokenizer().encode(text, add_special_tokens=False)))


def _job(server: ServerState, request: MessagesRequest, engine_id: str) -> Job:
    sampling = GenerationRequest(
        stop=request.stop_sequences or None,
        stream=request.stream,
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        seed=request.seed,
        priority=request.priority,
        cache_salt=request.cache_salt,
        vllm_xargs=request.vllm_xargs,
    )
    conversation = _conversation(request, request.chat_template_kwargs)
    return conversation_job(server, engine_id, conversation, sampling, request.max_tokens)


# -- conversations -----------------------------------------------------------------------------------------------------


def _conversation(request: CountTokensRequest, template_kwargs: Mapping[str, Any] | None) -> Conversation:
    """Return the conversation with the system prompt as its first message; a last assistant turn is continued."""
    if not request.messages:
        raise InvalidRequestError("messages must not be empty", "messages")
    messages = [_message(index, message) for index, message in enumerate(request.messages)]
    continues = messages[-1]["role"] == "assistant"
    if request.system:
        messages.insert(0, {"role": "system", "content": _texts("system", request.system)})
    return Conversation(messages, not continues, continues, chat_template_kwargs=template_kwargs)


def _message(index: int, message: Mapping[str, Any]) -> dict[str, Any]:
    role = message.get("role")
    if role not in ("user", "assistant"):
        raise wrong(f"messages[{index}].role", '"user" or "assistant" (system has a field of its own)', role)
    return {"role": role, "content": _texts(f"messages[{index}].content", message.get("content"))}


def _texts(where: str, content: object) -> str | list[dict[str, str]]:
    """Return content for the chat template: text, or parts that are texts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise wrong(where, "text, or a list of content blocks", content)
    return [_text_part(f"{where}[{index}]", block) for index, block in enumerate(content)]


def _text_part(where: str, block: object) -> dict[str, str]:
    kind = block.get("type") if isinstance(block, Mapping) else None
    if isinstance(kind, str) and kind in _UNBUILT_BLOCKS:
        raise UnsupportedError(f"{where}: blocks of type {kind} are not supported: {_UNBUILT_BLOCKS[kind]}")
    text = block.get("text") if isinstance(block, Mapping) else None
    if kind != "text" or not isinstance(text, str):
        raise wrong(where, '{"type": "text", "text": …}', block)
    return {"type": "text", "text": text}


_TOOLS = "tool calls are not built"
_MULTIMODAL = "multimodal input is not built"
_REASONING = "reasoning parsers are not built"
_UNBUILT_BLOCKS: Mapping[str, str] = {
    "image": _MULTIMODAL,
    "document": _MULTIMODAL,
    "search_result": _TOOLS,
    "tool_use": _TOOLS,
    "tool_result": _TOOLS,
    "server_tool_use": _TOOLS,
    "web_search_tool_result": _TOOLS,
    "thinking": _REASONING,
    "redacted_thinking": _REASONING,
}
# field -> (values that ask for nothing, what is missing)
_UNBUILT_FIELDS: Mapping[str, tuple[Sequence[object], str]] = {
    "tools": (([],), _TOOLS),
    "tool_choice": (({"type": "none"}, {"type": "auto"}), _TOOLS),
    "thinking": (({"type": "disabled"},), _REASONING),
    "output_config": (({},), "structured outputs and efforts are not built"),
    "mcp_servers": (([],), _TOOLS),
    "context_management": (({},), "conversations are sent as they are"),
    "container": ((), _TOOLS),
}


def _refuse_unbuilt(request: CountTokensRequest) -> None:
    for name in request.__struct_fields__:
        neutral, reason = _UNBUILT_FIELDS.get(name, ((), ""))
        value = getattr(request, name)
        if reason and value is not None and value not in neutral:
            raise UnsupportedError(f"{name} is not supported: {reason}; leave it out")


# -- answers -----------------------------------------------------------------------------------------------------------


async def _whole(server: ServerState, job: Job, message_id: str, model: str) -> Message:
    (output,) = await server.runner.run_to_end(job)
    (completion,) = output.outputs
    reason, sequence = _stop(completion)
    usage = MessageUsage(job.num_prompt_tokens, len(completion.token_ids))
    return Message(message_id, model, [TextBlock(completion.text)], usage, reason, sequence)


async def _events(server: ServerState, job: Job, message_id: str, model: str) -> Events:
    """Yield the events of a stream; an error in its midst becomes one of them."""
    num_tokens = 0
    started = False
    try:
        async with aclosing(server.runner.stream(job)) as outputs:
            async for item in outputs:
                (completion,) = item.output.outputs
                if not started:
                    started = True
                    yield _first_events(Message(message_id, model, [], MessageUsage(job.num_prompt_tokens, 0)))
                num_tokens += len(completion.token_ids)
                if completion.text:
                    yield _encoded(BlockDelta(0, TextDelta(completion.text)))
                if completion.finished():
                    yield _last_events(completion, MessageUsage(job.num_prompt_tokens, num_tokens))
    except Exception as error:
        if not started:
            raise
        yield named_event("error", error_body(error))


def _first_events(message: Message) -> bytes:
    return _encoded(MessageStart(message)) + _encoded(BlockStart(0, TextBlock("")))


def _last_events(completion: CompletionOutput, usage: MessageUsage) -> bytes:
    delta = MessageDelta(StopDelta(*_stop(completion)), usage)
    return _encoded(BlockStop(0)) + _encoded(delta) + _encoded(MessageStop())


def _encoded(data: StreamEvent) -> bytes:
    return named_event(data.type, data)


def _stop(completion: CompletionOutput) -> tuple[str, str | None]:
    """Return Anthropic's reason for the end of an answer, and the stop sequence that was met."""
    if completion.finish_reason == "abort":
        raise RequestFailedError("the request was aborted: the server stops, or its engine was paused")
    if completion.finish_reason == "length":
        return "max_tokens", None
    if isinstance(completion.stop_reason, str) and completion.finish_reason == "stop":
        return "stop_sequence", completion.stop_reason
    return "end_turn", None
