"""/v1/chat/completions: conversations in, answers out."""

from __future__ import annotations

from octavo.entrypoints.beam_search import one_step_params
from octavo.entrypoints.openai.beams import beam_params, check_without_beams
from octavo.entrypoints.openai.chat_answer import ChatAnswer, ChatPlan
from octavo.entrypoints.openai.conversation_job import conversation_job
from octavo.entrypoints.openai.conversations import Conversation, answering_role, final_text, template_arguments
from octavo.entrypoints.openai.http import Events
from octavo.entrypoints.openai.protocol.chat import ChatCompletionRequest, ChatCompletionResponse
from octavo.entrypoints.openai.sampling import check_best_of, check_num_sequences, to_sampling_params
from octavo.entrypoints.openai.state import RequestContext, ServerState, new_request_ids
from octavo.entrypoints.openai.structured import may_compile
from octavo.entrypoints.openai.unbuilt_fields import refuse_unbuilt
from octavo.entrypoints.openai.usage import check_stream
from octavo.entrypoints.tool_requests import ToolWish, chat_tools
from octavo.errors import InvalidRequestError
from octavo.types.sampling_checks import as_int
from octavo.types.sampling_params import BeamSearchParams, SamplingParams


async def create_chat_completion(
    server: ServerState, request: ChatCompletionRequest, context: RequestContext
) -> ChatCompletionResponse | Events:
    """Answer a chat request; raises before anything runs if it is wrong."""
    model = server.model_name(request.model)
    refuse_unbuilt(request)
    check_best_of(request)
    check_without_beams(request)
    check_stream(request)
    wish = chat_tools(request.tools, request.tool_choice, request.parallel_tool_calls)
    server.runner.admission.check()
    ids = new_request_ids("chatcmpl", context.request_id, request.request_id)
    compiles = wish.needs_grammar or may_compile(request)
    plan = await server.prepare(lambda: _plan(server, request, wish, ids.engine), context.is_bulky, compiles)
    answer = ChatAnswer(server, request, plan, ids.shown, model)
    return answer.events() if request.stream else await answer.whole()


def _plan(server: ServerState, request: ChatCompletionRequest, wish: ToolWish, engine_id: str) -> ChatPlan:
    """Check a request, render its conversation and tokenise the prompt."""
    num_top = _num_top_logprobs(request)
    beams, params = _params(server, request, num_top)
    num_choices = beams.beam_width if beams else params.n
    check_num_sequences(1, num_choices, server.args.max_sequences_per_request)
    conversation = _conversation(request, wish)
    job = conversation_job(
        server, engine_id, conversation, request, params, shows_reasoning=request.include_reasoning is not False
    )
    if beams is not None and params.structured_outputs is not None:
        raise InvalidRequestError(
            "use_beam_search cannot force a call or enforce a strict function; use tool_choice none, or functions that "
            "are not strict",
            "tool_choice",
        )
    prefix = final_text(conversation) if request.echo else ""
    return ChatPlan(job, num_choices, beams, answering_role(server, conversation), prefix, num_top)


def _params(
    server: ServerState, request: ChatCompletionRequest, num_top: int | None
) -> tuple[BeamSearchParams | None, SamplingParams]:
    """Return the beams, if any, and how their steps, or the answers, are sampled."""
    max_tokens = request.max_tokens
    if request.max_completion_tokens is not None:
        max_tokens = as_int("max_completion_tokens", request.max_completion_tokens, 1)
    if request.use_beam_search:
        limit = server.max_model_len if max_tokens is None else max_tokens
        beams = beam_params(request, limit, server.engine.model_config.max_logprobs)
        return beams, one_step_params(beams)
    params = to_sampling_params(
        server, request, max_tokens=max_tokens, logprobs=num_top if request.logprob_token_ids is None else None
    )
    return None, params


def _conversation(request: ChatCompletionRequest, wish: ToolWish) -> Conversation:
    return Conversation(
        request.messages,
        request.add_generation_prompt,
        request.continue_final_message,
        request.chat_template,
        template_arguments(request.chat_template_kwargs, request.reasoning_effort),
        request.documents,
        wish,
    )


def _num_top_logprobs(request: ChatCompletionRequest) -> int | None:
    if request.logprobs:
        return request.top_logprobs or 0
    for name in ("top_logprobs", "logprob_token_ids"):
        if getattr(request, name):
            raise InvalidRequestError(f"{name} needs logprobs=true", name)
    return None
