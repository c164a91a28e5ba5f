"""/v1/completions: prompts as text or token ids in, continuations out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import cast

from msgspec import UNSET, UnsetType

from octavo.entrypoints.beam_search import one_step_params
from octavo.entrypoints.openai.beams import beam_params, check_without_beams
from octavo.entrypoints.openai.generation import Job, check_job, with_prompt_logprobs
from octavo.entrypoints.openai.http import DONE, Events, event
from octavo.entrypoints.openai.logprobs import CompletionLogprobsWriter, TokenNames, joined
from octavo.entrypoints.openai.protocol.common import Usage
from octavo.entrypoints.openai.protocol.completions import (
    CompletionChoice,
    CompletionChunk,
    CompletionLogprobs,
    CompletionRequest,
    CompletionResponse,
)
from octavo.entrypoints.openai.sampling import (
    check_best_of,
    check_num_sequences,
    to_sampling_params,
    tokenization_kwargs,
)
from octavo.entrypoints.openai.state import RequestContext, ServerState, new_request_ids
from octavo.entrypoints.openai.structured import may_compile
from octavo.entrypoints.openai.unbuilt_fields import refuse_unbuilt
from octavo.entrypoints.openai.usage import StreamUsage, UsageCounter, check_stream, total_usage
from octavo.errors import InvalidRequestError
from octavo.tokenizers.tokenizer import Tokenizer
from octavo.types.outputs import CompletionOutput, RequestOutput
from octavo.types.prompts import TokensPrompt
from octavo.types.sampling_checks import wrong
from octavo.types.sampling_params import BeamSearchParams, SamplingParams

DEFAULT_MAX_TOKENS = 16


async def create_completion(
    server: ServerState, request: CompletionRequest, context: RequestContext
) -> CompletionResponse | Events:
    """Answer a completion request; raises before anything runs if it is wrong."""
    model = server.model_name(request.model)
    refuse_unbuilt(request)
    check_best_of(request)
    check_without_beams(request)
    check_stream(request)
    server.runner.admission.check()
    ids = new_request_ids("cmpl", context.request_id, request.request_id)
    plan = await server.prepare(lambda: _plan(server, request, ids.engine), context.is_bulky, may_compile(request))
    answer = _Answer(server, request, plan, ids.shown, model)
    return answer.events() if request.stream else await answer.whole()


@dataclass(frozen=True)
class _Plan:
    """What runs, and how its outputs are shown. echoes: per prompt, or None without echo."""

    job: Job
    num_choices: int  # per prompt
    beams: BeamSearchParams | None
    echoes: list[_Echo] | None
    scores_only: bool  # max_tokens=0: one token is generated, and nobody sees it


@dataclass(frozen=True)
class _Echo:
    """A prompt as it is shown. first_token: the first token's text where it is not its usual one."""

    text: str
    first_token: str | None


def _plan(server: ServerState, request: CompletionRequest, engine_id: str) -> _Plan:
    """Check a request and tokenise its prompts."""
    prompts = split_prompts(request.prompt, server.args.max_prompts_per_request)
    max_tokens = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    scores_only = max_tokens == 0 and bool(request.echo)
    if max_tokens == 0 and not request.echo:
        raise wrong("max_tokens", "at least 1 (0 only with echo=true)", 0)
    beams = None
    if request.use_beam_search:
        beams = beam_params(request, max_tokens, server.engine.model_config.max_logprobs)
    params = one_step_params(beams) if beams else _params(server, request, 1 if scores_only else max_tokens)
    num_choices = beams.beam_width if beams else params.n
    check_num_sequences(len(prompts), num_choices, server.args.max_sequences_per_request)
    salted = [_with_salt(prompt, request.cache_salt) for prompt in prompts]
    kwargs = tokenization_kwargs(request, add_special_tokens=True)
    lora = server.lora_request(request.model)
    job = check_job(server.engine, engine_id, salted, params, request.priority, kwargs, lora)
    echoes = None
    if request.echo:
        is_cut = request.truncate_prompt_tokens is not None
        echoes = [_echo(server.require_tokenizer(), prompt, is_cut) for prompt in job.prompts]
    return _Plan(job, num_choices, beams, echoes, scores_only)


def _params(server: ServerState, request: CompletionRequest, max_tokens: int) -> SamplingParams:
    overrides: dict[str, object] = {}
    if request.echo and request.logprobs is not None:
        overrides["prompt_logprobs"] = max(request.logprobs, request.prompt_logprobs or 0)
    if max_tokens == 1 and request.max_tokens == 0:
        overrides["min_tokens"] = 0
    return to_sampling_params(server, request, max_tokens=max_tokens, logprobs=request.logprobs, overrides=overrides)


def split_prompts(prompt: object, max_prompts: int, name: str = "prompt") -> Sequence[object]:
    """Return the prompts of a field: a text, token ids, or a list of either; raises InvalidRequestError."""
    if prompt is None:
        raise InvalidRequestError(f"{name} is required", name)
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list):
        raise wrong(name, "text, token ids, or a list of either", prompt)
    if not prompt:
        raise InvalidRequestError(f"{name} is an empty list; expected at least one token id or prompt", name)
    if type(prompt[0]) in (int, float, bool):
        return [_token_ids(prompt, name)]
    if len(prompt) > max_prompts:
        raise InvalidRequestError(f"{name} has {len(prompt)} prompts; at most {max_prompts} are allowed", name)
    kind = type(prompt[0])
    if kind not in (str, list) or not all(type(item) is kind for item in prompt):
        raise InvalidRequestError(
            f"{name} must be text, token ids, or a list of either; got a list of several kinds", name
        )
    return prompt if kind is str else [_token_ids(item, name) for item in prompt]


def _token_ids(values: list[object], name: str) -> list[int]:
    if not set(map(type, values)) <= {int}:
        bad = next(value for value in values if type(value) is not int)
        raise wrong(name, "made of integers when it is a list of token ids", bad)
    return cast("list[int]", values)


def _with_salt(prompt: object, cache_salt: str | None) -> object:
    if cache_salt is None:
        return prompt
    return {"prompt" if isinstance(prompt, str) else "prompt_token_ids": prompt, "cache_salt": cache_salt}


def _echo(tokenizer: Tokenizer, prompt: TokensPrompt, is_cut: bool) -> _Echo:
    """Return the prompt's text as the user gave it, and what the first token must read for all tokens to join to it."""
    token_ids = prompt["prompt_token_ids"]
    text = prompt.get("prompt")
    if text is None or is_cut:
        return _Echo(tokenizer.decode(token_ids), None)
    usual = tokenizer.decode(token_ids)
    surplus = len(usual) - len(text)
    if surplus <= 0 or not usual.endswith(text):
        return _Echo(text, None)
    first = tokenizer.token_bytes(token_ids[0]).decode("utf-8", "ignore")
    # the tokenizer put something before the text: a beginning mark, or the space that SentencePiece begins with
    return _Echo(text, first[surplus:] if surplus <= len(first) else None)


class _Answer:
    """Turns the outputs of one request into its response."""

    def __init__(
        self, server: ServerState, request: CompletionRequest, plan: _Plan, response_id: str, model: str
    ) -> None:
        self._server = server
        self._request = request
        self._plan = plan
        self._id = response_id
        self._model = model
        self._created = int(time.time())
        self._names: TokenNames = server.token_names(request.return_tokens_as_token_ids)
        tokenizer = server.tokenizer if request.skip_special_tokens is not False else None
        self._hidden = frozenset(tokenizer.all_special_ids if tokenizer is not None else ())
        self._shows_logprobs = request.logprobs is not None or request.logprob_token_ids is not None

    # -- whole -----------------------------------------------------------------------------------------------------

    async def whole(self) -> CompletionResponse:
        """Run to the end and return the response."""
        plan, runner = self._plan, self._server.runner
        if plan.beams is None:
            outputs = await runner.run_to_end(plan.job)
        else:
            outputs = await runner.run_beams(plan.job, plan.beams, self._request.logprobs)
        choices = [
            self._whole_choice(prompt_index, output, completion)
            for prompt_index, output in enumerate(outputs)
            for completion in output.outputs
        ]
        shows_details = self._server.args.enable_prompt_tokens_details
        usage = total_usage(outputs, shows_details, num_scored_only=int(self._plan.scores_only))
        return CompletionResponse(
            self._id, "text_completion", self._created, self._model, choices, usage, self._server.fingerprint
        )

    def _whole_choice(self, prompt_index: int, output: RequestOutput, completion: CompletionOutput) -> CompletionChoice:
        choice = self._choice(prompt_index, completion)
        writer = CompletionLogprobsWriter(self._names, self._hidden)
        logprobs = self._echo_into(choice, prompt_index, output, writer)
        self._fill(choice, completion, writer, logprobs)
        if self._request.return_token_ids:
            choice.prompt_token_ids = output.prompt_token_ids or []
        if self._request.prompt_logprobs is not None:
            choice.prompt_logprobs = cast("list[dict[str, object] | None]", output.prompt_logprobs)
        return choice

    # -- stream ----------------------------------------------------------------------------------------------------

    async def events(self) -> Events:
        """Yield the events of a streamed response."""
        job = self._plan.job
        options = StreamUsage(self._request.stream_options, self._server.args.enable_force_include_usage)
        counter = UsageCounter(job.num_prompt_tokens, self._server.args.enable_prompt_tokens_details)
        writers: dict[int, CompletionLogprobsWriter] = {}  # by choice
        shows_prompt_logprobs = self._plan.echoes is not None and self._request.logprobs is not None
        async with aclosing(self._server.runner.stream(job)) as outputs:
            async for item in with_prompt_logprobs(outputs) if shows_prompt_logprobs else outputs:
                for completion in item.output.outputs:
                    num_new = 0 if self._plan.scores_only else len(completion.token_ids)
                    counter.add(item.prompt_index, item.output, num_new)
                    choice = self._next_choice(item.prompt_index, item.output, completion, writers)
                    if choice is not None or options.in_every_chunk:
                        yield event(self._chunk(choice, options, counter))
        if options.at_end:
            yield event(self._chunk_of([], counter.usage()))
        yield DONE

    def _next_choice(
        self,
        prompt_index: int,
        output: RequestOutput,
        completion: CompletionOutput,
        writers: dict[int, CompletionLogprobsWriter],
    ) -> CompletionChoice | None:
        """Return what is new in a choice, or None if nothing can be shown yet."""
        choice = self._choice(prompt_index, completion)
        writer = writers.get(choice.index)
        logprobs: CompletionLogprobs | None = None
        if writer is None:
            writer = writers[choice.index] = CompletionLogprobsWriter(self._names, self._hidden)
            logprobs = self._echo_into(choice, prompt_index, output, writer)
            if self._request.return_token_ids:
                choice.prompt_token_ids = output.prompt_token_ids or []
        self._fill(choice, completion, writer, logprobs)
        shows_ids = bool(self._request.return_token_ids)
        if choice.text or choice.finish_reason or choice.logprobs is not None or shows_ids:
            return choice
        return None

    def _chunk(self, choice: CompletionChoice | None, options: StreamUsage, counter: UsageCounter) -> CompletionChunk:
        usage = counter.usage() if options.in_every_chunk else None if options.at_end else UNSET
        return self._chunk_of([choice] if choice is not None else [], usage)

    def _chunk_of(self, choices: list[CompletionChoice], usage: Usage | UnsetType | None) -> CompletionChunk:
        return CompletionChunk(
            self._id, "text_completion", self._created, self._model, choices, usage, self._server.fingerprint
        )

    # -- both ------------------------------------------------------------------------------------------------------

    def _choice(self, prompt_index: int, completion: CompletionOutput) -> CompletionChoice:
        return CompletionChoice(prompt_index * self._plan.num_choices + completion.index, "")

    def _echo_into(
        self, choice: CompletionChoice, prompt_index: int, output: RequestOutput, writer: CompletionLogprobsWriter
    ) -> CompletionLogprobs | None:
        """Put the prompt before a choice's text; return the prompt's logprobs if they are wanted."""
        if self._plan.echoes is None:
            return None
        echo = self._plan.echoes[prompt_index]
        choice.text = echo.text
        if not self._shows_logprobs or output.prompt_logprobs is None or output.prompt_token_ids is None:
            return None
        return writer.prompt(output.prompt_token_ids, output.prompt_logprobs, echo.first_token)

    def _fill(
        self,
        choice: CompletionChoice,
        completion: CompletionOutput,
        writer: CompletionLogprobsWriter,
        prompt_logprobs: CompletionLogprobs | None,
    ) -> None:
        """Put what was generated into a choice, after what is there already."""
        choice.logprobs = prompt_logprobs
        if self._plan.scores_only:
            choice.finish_reason = "length" if completion.finish_reason is not None else None
            choice.token_ids = [] if self._request.return_token_ids else UNSET
            return
        choice.text += completion.text
        choice.finish_reason = completion.finish_reason
        choice.stop_reason = completion.stop_reason
        if self._request.return_token_ids:
            choice.token_ids = list(completion.token_ids)
        if self._shows_logprobs and completion.logprobs:
            logprobs = writer.generated(completion.token_ids, completion.logprobs)
            choice.logprobs = logprobs if prompt_logprobs is None else joined(prompt_logprobs, logprobs)
