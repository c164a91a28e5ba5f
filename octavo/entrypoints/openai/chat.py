"""/v1/chat/completions: conversations in, answers out."""

from __future__ import annotations

import time
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

from msgspec import UNSET, UnsetType

from octavo.entrypoints.beam_search import one_step_params
from octavo.entrypoints.openai.beams import beam_params, check_without_beams
from octavo.entrypoints.openai.conversations import Conversation, answering_role, final_text, render_conversation
from octavo.entrypoints.openai.generation import Job, check_job
from octavo.entrypoints.openai.http import DONE, Events, event
from octavo.entrypoints.openai.logprobs import chat_logprobs
from octavo.entrypoints.openai.protocol.chat import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatCompletionResponse,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
)
from octavo.entrypoints.openai.protocol.common import Usage
from octavo.entrypoints.openai.sampling import (
    check_best_of,
    check_num_sequences,
    to_sampling_params,
    tokenization_kwargs,
)
from octavo.entrypoints.openai.state import RequestContext, ServerState, new_request_ids
from octavo.entrypoints.openai.unbuilt_fields import refuse_unbuilt
from octavo.entrypoints.openai.usage import StreamUsage, UsageCounter, check_stream_options, total_usage
from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.types.outputs import CompletionOutput
from octavo.types.sampling_params import BeamSearchParams


async def create_chat_completion(
    server: ServerState, request: ChatCompletionRequest, context: RequestContext
) -> ChatCompletionResponse | Events:
    """Answer a chat request; raises before anything runs if it is wrong."""
    model = server.model_name(request.model)
    refuse_unbuilt(request)
    check_best_of(request)
    check_without_beams(request)
    check_stream_options(request)
    _check_tools(request)
    server.runner.admission.check()
    ids = new_request_ids("chatcmpl", context.request_id, request.request_id)
    plan = await server.prepare(lambda: _plan(server, request, ids.engine), context.is_bulky)
    answer = _Answer(server, request, plan, ids.shown, model)
    return answer.events() if request.stream else await answer.whole()


@dataclass(frozen=True)
class _Plan:
    """What runs, and how its outputs are shown. num_top: candidates per token, None without logprobs."""

    job: Job
    num_choices: int
    beams: BeamSearchParams | None
    role: str
    prefix: str  # echo: text before the answer
    num_top: int | None


def _plan(server: ServerState, request: ChatCompletionRequest, engine_id: str) -> _Plan:
    """Check a request, render its conversation and tokenise the prompt."""
    num_top = _num_top_logprobs(request)
    max_tokens = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    if request.stream and request.prompt_logprobs is not None:
        raise InvalidRequestError("prompt_logprobs cannot be streamed; use stream=false", "prompt_logprobs")
    beams = None
    if request.use_beam_search:
        limit = server.max_model_len if max_tokens is None else max_tokens
        beams = beam_params(request, limit, server.engine.model_config.max_logprobs)
        params = one_step_params(beams)
    else:
        params = to_sampling_params(
            request,
            server.engine.model_config.default_sampling_params,
            max_tokens=max_tokens,
            logprobs=num_top if request.logprob_token_ids is None else None,
            max_stop_strings=server.args.max_stop_strings,
        )
    num_choices = beams.beam_width if beams else params.n
    check_num_sequences(1, num_choices, server.args.max_sequences_per_request)
    conversation = _conversation(server, request)
    text = render_conversation(server, conversation)
    # the template writes the special tokens itself: adding the tokenizer's would give two beginnings
    kwargs = tokenization_kwargs(request, add_special_tokens=False)
    prompt: dict[str, Any] = {"prompt": text}
    if request.cache_salt is not None:
        prompt["cache_salt"] = request.cache_salt
    job = check_job(server.engine, engine_id, [prompt], params, request.priority, kwargs)
    prefix = final_text(conversation) if request.echo else ""
    return _Plan(job, num_choices, beams, answering_role(server, conversation), prefix, num_top)


def _conversation(server: ServerState, request: ChatCompletionRequest) -> Conversation:
    arguments = dict(request.chat_template_kwargs or {})
    if request.reasoning_effort is not None:
        arguments.setdefault("reasoning_effort", request.reasoning_effort)
    return Conversation(
        request.messages,
        request.add_generation_prompt,
        request.continue_final_message,
        request.chat_template,
        arguments,
        request.documents,
        None if server.args.exclude_tools_when_tool_choice_none else request.tools,
    )


def _num_top_logprobs(request: ChatCompletionRequest) -> int | None:
    if request.logprobs:
        return request.top_logprobs or 0
    for name in ("top_logprobs", "logprob_token_ids"):
        if getattr(request, name):
            raise InvalidRequestError(f"{name} needs logprobs=true", name)
    return None


def _check_tools(request: ChatCompletionRequest) -> None:
    """Accept tools that may not be called; a template may still describe them."""
    if request.tools is not None and not request.tools:
        raise InvalidRequestError("tools must not be an empty list; leave it out", "tools")
    if request.tools and request.tool_choice != "none":
        raise UnsupportedError(
            'tools are not supported with a tool_choice other than "none": tool calls are not built; leave them out'
        )
    if not request.tools and request.tool_choice not in (None, "none"):
        raise InvalidRequestError("tool_choice needs tools", "tool_choice")


class _Answer:
    """Turns the outputs of one request into its response."""

    def __init__(
        self, server: ServerState, request: ChatCompletionRequest, plan: _Plan, response_id: str, model: str
    ) -> None:
        self._server = server
        self._request = request
        self._plan = plan
        self._id = response_id
        self._model = model
        self._created = int(time.time())
        self._names = server.token_names(request.return_tokens_as_token_ids)

    # -- whole -----------------------------------------------------------------------------------------------------

    async def whole(self) -> ChatCompletionResponse:
        """Run to the end and return the response."""
        plan, runner = self._plan, self._server.runner
        if plan.beams is None:
            (output,) = await runner.run_to_end(plan.job)
        else:
            (output,) = await runner.run_beams(plan.job, plan.beams, plan.num_top)
        response = ChatCompletionResponse(
            self._id,
            "chat.completion",
            self._created,
            self._model,
            [self._whole_choice(completion) for completion in output.outputs],
            total_usage([output], self._server.args.enable_prompt_tokens_details),
            self._server.fingerprint,
        )
        if self._request.prompt_logprobs is not None:
            response.prompt_logprobs = cast("list[dict[str, Any] | None]", output.prompt_logprobs)
        if self._request.return_token_ids:
            response.prompt_token_ids = output.prompt_token_ids or []
        if self._request.return_prompt_text:
            response.prompt_text = output.prompt or ""
        return response

    def _whole_choice(self, completion: CompletionOutput) -> ChatChoice:
        return ChatChoice(
            completion.index,
            ChatMessage(self._plan.role, self._plan.prefix + completion.text),
            self._logprobs(completion),
            completion.finish_reason,
            completion.stop_reason,
            list(completion.token_ids) if self._request.return_token_ids else UNSET,
        )

    # -- stream ----------------------------------------------------------------------------------------------------

    async def events(self) -> Events:
        """Yield the events of a streamed response: per choice first its role, then its text."""
        job = self._plan.job
        options = StreamUsage(self._request.stream_options, self._server.args.enable_force_include_usage)
        counter = UsageCounter(job.num_prompt_tokens, self._server.args.enable_prompt_tokens_details)
        started = False
        async with aclosing(self._server.runner.stream(job)) as outputs:
            async for item in outputs:
                if not started:
                    started = True
                    yield self._first_events(options, counter)
                for completion in item.output.outputs:
                    counter.add(item.prompt_index, item.output, len(completion.token_ids))
                    choice = self._next_choice(completion)
                    if choice is not None or options.in_every_chunk:
                        yield event(self._chunk([choice] if choice is not None else [], options, counter))
        if options.at_end:
            yield event(self._chunk_of([], counter.usage()))
        yield DONE

    def _first_events(self, options: StreamUsage, counter: UsageCounter) -> bytes:
        """Return the events that open every choice: the role, and the echo."""
        pieces: list[bytes] = []
        for index in range(self._plan.num_choices):
            delta = ChatDelta(role=self._plan.role, content="")
            chunk = self._chunk([ChatChunkChoice(index, delta)], options, counter)
            if self._request.return_token_ids and index == 0:
                chunk.prompt_token_ids = self._plan.job.prompts[0]["prompt_token_ids"]
            pieces.append(event(chunk))
            if self._plan.prefix:
                echo = ChatChunkChoice(index, ChatDelta(content=self._plan.prefix))
                pieces.append(event(self._chunk([echo], options, counter)))
        return b"".join(pieces)

    def _next_choice(self, completion: CompletionOutput) -> ChatChunkChoice | None:
        """Return what is new in a choice, or None if nothing can be shown yet."""
        choice = ChatChunkChoice(
            completion.index,
            ChatDelta(content=completion.text or None),
            self._logprobs(completion),
            completion.finish_reason,
        )
        if completion.finish_reason is not None:
            choice.stop_reason = completion.stop_reason
        if self._request.return_token_ids:
            choice.token_ids = list(completion.token_ids)
            return choice
        has_news = completion.text or completion.finish_reason or choice.logprobs is not None
        return choice if has_news else None

    def _chunk(
        self, choices: list[ChatChunkChoice], options: StreamUsage, counter: UsageCounter
    ) -> ChatCompletionChunk:
        usage = counter.usage() if options.in_every_chunk else None if options.at_end else UNSET
        return self._chunk_of(choices, usage)

    def _chunk_of(self, choices: list[ChatChunkChoice], usage: Usage | UnsetType | None) -> ChatCompletionChunk:
        return ChatCompletionChunk(self._id, "chat.completion.chunk", self._created, self._model, choices, usage)

    # -- both ------------------------------------------------------------------------------------------------------

    def _logprobs(self, completion: CompletionOutput) -> ChatLogprobs | None:
        num_top = self._plan.num_top
        if num_top is None or not completion.logprobs:
            return None
        return chat_logprobs(self._names, completion.token_ids, completion.logprobs, num_top)
