"""Texts of a request for embeddings, classes or scores: checked all together, then run all at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.engine.input_processor import ProcessedRequest
from octavo.entrypoints.openai.completions import split_prompts
from octavo.entrypoints.openai.conversations import Conversation, render_conversation
from octavo.entrypoints.openai.engine_headers import data_parallel_rank, trace_headers
from octavo.entrypoints.openai.protocol.common import PromptTokensDetails, Usage
from octavo.entrypoints.openai.protocol.pooling import InputRequest, PoolingRequestBase
from octavo.entrypoints.openai.state import RequestContext, ServerState, new_request_ids
from octavo.errors import InvalidRequestError
from octavo.log import get_logger
from octavo.types.pooling import PoolingParams
from octavo.types.pooling_outputs import PoolingOutput, PoolingRequestOutput

logger = get_logger("octavo.requests")

Outputs = list[PoolingRequestOutput[PoolingOutput]]


@dataclass(frozen=True)
class PoolingJob:
    """Checked texts, which run as request_id-0, request_id-1 and so on."""

    request_id: str
    requests: list[ProcessedRequest]

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(processed.request.prompt_token_ids) for processed in self.requests)


def check_pooling_job(
    server: ServerState,
    request_id: str,
    prompts: Sequence[object],
    params: PoolingParams,
    request: PoolingRequestBase,
    add_special_tokens: bool = True,
) -> PoolingJob:
    """Tokenise and check all prompts before any runs. Takes time: not for the event loop.

    add_special_tokens: the endpoint's default. Raises InvalidRequestError or UnsupportedError.
    """
    kwargs = tokenization_kwargs(request, add_special_tokens)
    checked: list[ProcessedRequest] = []
    for index, prompt in enumerate(prompts):
        try:
            processed = server.engine.input_processor.process(
                f"{request_id}-{index}",
                _with_salt(prompt, request.cache_salt),
                params,
                priority=request.priority or 0,
                tokenization_kwargs=kwargs,
            )
        except InvalidRequestError as error:
            if len(prompts) == 1:
                raise
            raise InvalidRequestError(f"input {index} of {len(prompts)}: {error}", error.parameter) from None
        checked.append(processed)
    return PoolingJob(request_id, checked)


async def run_pooling_job(server: ServerState, job: PoolingJob) -> Outputs:
    """Return the output of every prompt, in order; being cancelled aborts what still runs.

    Raises HTTPError 503 when too much waits, RequestFailedError and EngineDeadError.
    """
    engine = server.engine
    if server.args.enable_log_requests:
        logger.info("%s: %d inputs of %d tokens together", job.request_id, len(job.requests), job.num_prompt_tokens)
    with server.runner.admission.enter(len(job.requests), job.num_prompt_tokens):
        headers, rank = trace_headers(), data_parallel_rank()
        try:
            collectors = [await engine.add_processed(processed, headers, rank) for processed in job.requests]
            return [await engine.pooled(collector) for collector in collectors]
        except BaseException:
            await engine.abort([processed.external_id for processed in job.requests])
            raise


async def pool_inputs(
    server: ServerState, request: InputRequest, context: RequestContext, params: PoolingParams, id_prefix: str
) -> tuple[str, Outputs]:
    """Run a request's inputs, or its conversation; return the response's id and the outputs."""
    server.runner.admission.check()
    ids = new_request_ids(id_prefix, context.request_id, request.request_id)
    job = await server.prepare(lambda: _check_inputs(server, request, params, ids.engine), context.is_bulky)
    return ids.shown, await run_pooling_job(server, job)


def _check_inputs(server: ServerState, request: InputRequest, params: PoolingParams, engine_id: str) -> PoolingJob:
    if (request.input is None) == (request.messages is None):
        raise InvalidRequestError("give exactly one of input and messages", "input")
    if request.messages is None:
        prompts = split_prompts(request.input, max_inputs(server), "input")
        return check_pooling_job(server, engine_id, prompts, params, request)
    conversation = Conversation(
        request.messages,
        bool(request.add_generation_prompt),
        request.continue_final_message,
        request.chat_template,
        request.chat_template_kwargs,
    )
    text = render_conversation(server, conversation)
    # the template writes the special tokens itself
    return check_pooling_job(server, engine_id, [text], params, request, add_special_tokens=False)


def max_inputs(server: ServerState) -> int:
    """Return how many texts a request may have: twice as many as prompts to continue, which is OpenAI's 2048."""
    return 2 * server.args.max_prompts_per_request


def tokenization_kwargs(request: PoolingRequestBase, add_special_tokens: bool) -> dict[str, Any]:
    """Return how a request wants its texts tokenised."""
    wish = request.add_special_tokens
    kwargs: dict[str, Any] = {"add_special_tokens": add_special_tokens if wish is None else wish}
    for name in ("truncate_prompt_tokens", "truncation_side", "prompt_name", "instruction"):
        if getattr(request, name) is not None:
            kwargs[name] = getattr(request, name)
    return kwargs


def wants_activation(request: PoolingRequestBase) -> bool | None:
    """Return use_activation, under its present or an older name."""
    names = ("use_activation", "normalize", "softmax", "activation")
    return next((value for value in (getattr(request, name) for name in names) if value is not None), None)


def pooling_usage(server: ServerState, outputs: Outputs) -> Usage:
    """Return the count of what was read."""
    num_tokens = sum(len(output.prompt_token_ids) for output in outputs)
    usage = Usage(num_tokens, 0, num_tokens)
    if server.args.enable_prompt_tokens_details:
        usage.prompt_tokens_details = PromptTokensDetails(sum(output.num_cached_tokens for output in outputs))
    return usage


def _with_salt(prompt: object, cache_salt: str | None) -> object:
    if cache_salt is None:
        return prompt
    if isinstance(prompt, Mapping):
        return {**prompt, "cache_salt": cache_salt}
    return {"prompt" if isinstance(prompt, str) else "prompt_token_ids": prompt, "cache_salt": cache_salt}
