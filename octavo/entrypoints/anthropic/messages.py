"""/v1/messages and /v1/messages/count_tokens: Anthropic's way to ask for an answer to a conversation."""

from __future__ import annotations

from contextlib import aclosing

from octavo.entrypoints.anthropic.answer import ContentBlocks
from octavo.entrypoints.anthropic.conversation import conversation_of, thinking_budget, thinking_mode
from octavo.entrypoints.anthropic.errors import error_body
from octavo.entrypoints.anthropic.protocol import (
    CountTokensRequest,
    Message,
    MessageDelta,
    MessagesRequest,
    MessageStart,
    MessageStop,
    MessageUsage,
    StopDelta,
    StreamEvent,
    TokenCount,
)
from octavo.entrypoints.openai.conversation_job import ConversationJob, check_not_aborted, conversation_job
from octavo.entrypoints.openai.conversations import render_conversation
from octavo.entrypoints.openai.http import Events, named_event
from octavo.entrypoints.openai.protocol.common import GenerationRequest
from octavo.entrypoints.openai.sampling import to_sampling_params
from octavo.entrypoints.openai.state import RequestContext, ServerState, new_request_ids
from octavo.entrypoints.openai.structured import from_output_config
from octavo.entrypoints.openai.unbuilt_fields import Unbuilt, refuse_unbuilt
from octavo.errors import InvalidRequestError
from octavo.types.outputs import CompletionOutput
from octavo.types.sampling_checks import wrong


async def create_message(server: ServerState, request: MessagesRequest, context: RequestContext) -> Message | Events:
    """Answer a conversation; raises before anything runs if the request is wrong."""
    model = server.model_name(request.model)
    _check_fields(request)
    if request.max_tokens < 1:
        raise wrong("max_tokens", "at least 1", request.max_tokens)
    server.runner.admission.check()
    ids = new_request_ids("msg", context.request_id, None)
    compiles = bool(request.output_config or request.tools)
    job = await server.prepare(lambda: _job(server, request, ids.engine), context.is_bulky, compiles)
    return _events(server, job, ids.shown, model) if request.stream else await _whole(server, job, ids.shown, model)


async def count_tokens(server: ServerState, request: CountTokensRequest, context: RequestContext) -> TokenCount:
    """Return how many tokens a conversation has, the header of the answer to come included."""
    server.model_name(request.model)
    _check_fields(request)
    return await server.prepare(lambda: _count(server, request), context.is_bulky)


def _count(server: ServerState, request: CountTokensRequest) -> TokenCount:
    text = render_conversation(server, conversation_of(request, None))
    return TokenCount(len(server.require_tokenizer().encode(text, add_special_tokens=False)))


def _job(server: ServerState, request: MessagesRequest, engine_id: str) -> ConversationJob:
    mode = thinking_mode(request)
    if mode == "enabled" and server.formats.reasoning is None:
        raise InvalidRequestError(
            "thinking needs a model whose reasoning format is known: its chat template shows none; name one with "
            "--reasoning-parser, or leave thinking out",
            "thinking",
        )
    sampling = GenerationRequest(
        model=request.model,
        stop=request.stop_sequences or None,
        stream=request.stream,
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        seed=request.seed,
        priority=request.priority,
        cache_salt=request.cache_salt,
        vllm_xargs=request.vllm_xargs,
        thinking_token_budget=thinking_budget(request, request.max_tokens),
    )
    conversation = conversation_of(request, request.chat_template_kwargs)
    params = to_sampling_params(
        server,
        sampling,
        max_tokens=request.max_tokens,
        logprobs=None,
        overrides={"structured_outputs": from_output_config(request.output_config)},
    )
    return conversation_job(server, engine_id, conversation, sampling, params, shows_reasoning=mode != "disabled")


_UNBUILT: Unbuilt = {
    "mcp_servers": (([],), "this server connects to no others"),
    "context_management": (({},), "conversations are sent as they are"),
    "container": ((), "this server has no tools of its own"),
}


def _check_fields(request: CountTokensRequest) -> None:
    refuse_unbuilt(request, _UNBUILT)
    from_output_config(request.output_config)


# -- answers -----------------------------------------------------------------------------------------------------------


async def _whole(server: ServerState, job: ConversationJob, message_id: str, model: str) -> Message:
    (output,) = await server.runner.run_to_end(job.job)
    (completion,) = output.outputs
    reader = job.reader(server.tokenizer)
    content = ContentBlocks()
    content.take(reader.read(completion))
    content.finish()
    reason, sequence = _stop(completion, reader.num_calls)
    usage = MessageUsage(job.job.num_prompt_tokens, len(completion.token_ids))
    return Message(message_id, model, content.blocks, usage, reason, sequence)


async def _events(server: ServerState, job: ConversationJob, message_id: str, model: str) -> Events:
    """Yield the events of a stream; an error in its midst becomes one of them."""
    reader = job.reader(server.tokenizer)
    content = ContentBlocks()
    num_prompt_tokens, num_tokens = job.job.num_prompt_tokens, 0
    started = False
    try:
        async with aclosing(server.runner.stream(job.job)) as outputs:
            async for item in outputs:
                (completion,) = item.output.outputs
                if not started:
                    started = True
                    yield _encoded(MessageStart(Message(message_id, model, [], MessageUsage(num_prompt_tokens, 0))))
                num_tokens += len(completion.token_ids)
                for news in content.take(reader.read(completion)):
                    yield _encoded(news)
                if completion.finished():
                    stop = StopDelta(*_stop(completion, reader.num_calls))
                    usage = MessageUsage(num_prompt_tokens, num_tokens)
                    last = (*content.finish(), MessageDelta(stop, usage), MessageStop())
                    yield b"".join(_encoded(news) for news in last)
    except Exception as error:
        if not started:
            raise
        yield named_event("error", error_body(error))


def _encoded(data: StreamEvent) -> bytes:
    return named_event(data.type, data)


def _stop(completion: CompletionOutput, num_calls: int) -> tuple[str, str | None]:
    """Return Anthropic's reason for the end of an answer, and the stop sequence that was met."""
    check_not_aborted(completion)
    if completion.finish_reason == "length":
        return "max_tokens", None
    if isinstance(completion.stop_reason, str) and completion.finish_reason == "stop":
        return "stop_sequence", completion.stop_reason
    return "tool_use" if num_calls else "end_turn", None
