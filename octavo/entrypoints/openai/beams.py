"""use_beam_search: the search of `LLM.beam_search`, driven by an endpoint, with outputs like any other request's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from octavo.engine.logprobs import TokenTexts
from octavo.entrypoints.beam_search import (
    BeamSearch,
    BeamSearchSequence,
    check_beam_width,
    extend_beam,
    finish_search,
    one_step_params,
    select_beams,
)
from octavo.entrypoints.openai.generation import Job, run_to_end
from octavo.entrypoints.openai.protocol.common import GenerationRequest
from octavo.entrypoints.openai.structured import structured_outputs_of
from octavo.errors import InvalidRequestError
from octavo.tokenizers.tokenizer import Tokenizer
from octavo.types.outputs import CompletionOutput, Logprob, LogprobsOnePosition, RequestOutput, SampleLogprobs
from octavo.types.prompts import TokensPrompt
from octavo.types.sampling_params import BeamSearchParams

if TYPE_CHECKING:
    from octavo.engine.async_llm import AsyncLLM

# Fields that shape single tokens' choice, or need the prompt's logprobs: a search has no place for them.
_EXCLUDED = (
    *("stream", "stop", "stop_token_ids", "logit_bias", "min_tokens", "allowed_token_ids", "bad_words", "seed"),
    *("top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "prompt_logprobs"),
    *("logprob_token_ids", "repetition_detection", "thinking_token_budget", "vllm_xargs", "echo"),
)


def beam_params(request: GenerationRequest, max_tokens: int, max_logprobs: int) -> BeamSearchParams:
    """Return the parameters of a request's search, n beams wide; raises InvalidRequestError.

    max_tokens: as the endpoint understands the request; max_logprobs: the engine's
    """
    for name in _EXCLUDED:
        if getattr(request, name):
            raise InvalidRequestError(f"{name} cannot be combined with use_beam_search; leave one of them out", name)
    if structured_outputs_of(request) is not None:
        field = "structured_outputs" if request.structured_outputs else "response_format"
        raise InvalidRequestError(f"{field} cannot be combined with use_beam_search; leave one of them out", field)
    params = BeamSearchParams(
        beam_width=1 if request.n is None else request.n,
        max_tokens=max_tokens,
        ignore_eos=bool(request.ignore_eos),
        temperature=request.temperature or 0.0,
        length_penalty=1.0 if request.length_penalty is None else request.length_penalty,
        include_stop_str_in_output=bool(request.include_stop_str_in_output),
        skip_special_tokens=request.skip_special_tokens is not False,
    )
    check_beam_width(params, max_logprobs)
    return params


def check_without_beams(request: GenerationRequest) -> None:
    """Raise for a field that only a beam search has a use for."""
    if request.length_penalty not in (None, 1.0) and not request.use_beam_search:
        raise InvalidRequestError("length_penalty needs use_beam_search=true", "length_penalty")


async def run_beams(
    engine: AsyncLLM, job: Job, params: BeamSearchParams, num_logprobs: int | None
) -> list[RequestOutput]:
    """Search for every prompt of a job; return one output per prompt, its completions best first.

    num_logprobs: candidates per token in the outputs, or None for no logprobs
    """
    searches = (_search(engine, job, index, params) for index in range(len(job.prompts)))
    finished = await asyncio.gather(*searches)
    return [
        _output(engine.tokenizer, prompt, search.completed, params, num_logprobs)
        for prompt, search in zip(job.prompts, finished, strict=True)
    ]


async def _search(engine: AsyncLLM, job: Job, index: int, params: BeamSearchParams) -> BeamSearch:
    prompt_ids = job.prompts[index]["prompt_token_ids"]
    eos_token_ids = frozenset(() if params.ignore_eos else engine.model_config.eos_token_ids)
    search = BeamSearch(len(prompt_ids), [BeamSearchSequence(prompt_ids, [])])
    step_params = one_step_params(params)
    for step in range(params.max_tokens):
        live = [beam for beam in search.beams if len(beam.tokens) < engine.input_processor.max_sequence_len]
        if not live:
            break
        prompts = [_beam_prompt(job.prompts[index], beam.tokens) for beam in live]
        step_job = Job(f"{job.request_id}-{index}-{step}", prompts, step_params, job.priority, job.lora_request)
        results = await run_to_end(engine, step_job)
        candidates = [one for beam, result in zip(live, results, strict=True) for one in extend_beam(beam, result)]
        select_beams(search, candidates, params, eos_token_ids)
    finish_search(search, params, eos_token_ids, None)
    return search


def _beam_prompt(prompt: TokensPrompt, token_ids: list[int]) -> TokensPrompt:
    extended = TokensPrompt(prompt_token_ids=token_ids)
    if "cache_salt" in prompt:
        extended["cache_salt"] = prompt["cache_salt"]
    return extended


def _output(
    tokenizer: Tokenizer | None,
    prompt: TokensPrompt,
    sequences: Sequence[BeamSearchSequence],
    params: BeamSearchParams,
    num_logprobs: int | None,
) -> RequestOutput:
    prompt_ids = prompt["prompt_token_ids"]
    completions = []
    for index, sequence in enumerate(sequences):
        token_ids = sequence.tokens[len(prompt_ids) :]
        ended = sequence.finish_reason == "stop" and not params.include_stop_str_in_output
        text = _decoded(tokenizer, prompt_ids, token_ids[:-1] if ended else token_ids, params.skip_special_tokens)
        logprobs = None
        if num_logprobs is not None:
            logprobs = _named(tokenizer, prompt_ids, token_ids, sequence.logprobs, num_logprobs)
        completions.append(
            CompletionOutput(
                index, text, token_ids, sequence.cum_logprob, logprobs, sequence.finish_reason, sequence.stop_reason
            )
        )
    return RequestOutput(
        request_id="",
        prompt=prompt.get("prompt"),
        prompt_token_ids=prompt_ids,
        prompt_logprobs=None,
        outputs=completions,
        finished=True,
    )


def _decoded(tokenizer: Tokenizer | None, prompt_ids: list[int], token_ids: list[int], skip_special: bool) -> str:
    if tokenizer is None:
        return ""
    detokenizer = tokenizer.detokenizer(prompt_ids, skip_special_tokens=skip_special)
    return detokenizer.push(token_ids) + detokenizer.finish()


def _named(
    tokenizer: Tokenizer | None,
    prompt_ids: list[int],
    token_ids: list[int],
    positions: SampleLogprobs,
    num_logprobs: int,
) -> SampleLogprobs:
    """Return the logprobs of a beam: its own token first, the likeliest ones after it, with the texts they add."""
    texts = TokenTexts(tokenizer) if tokenizer is not None else None
    pending = texts.pending_after(prompt_ids) if texts else b""
    named: SampleLogprobs = []
    for token_id, candidates in zip(token_ids, positions, strict=True):
        wanted = [i for i, one in candidates.items() if i != token_id and (one.rank or 0) <= num_logprobs]
        position: LogprobsOnePosition = {}
        for i in (token_id, *wanted):
            text = texts.after(pending, i)[0] if texts else None
            position[i] = Logprob(candidates[i].logprob, candidates[i].rank, text)
        if texts is not None:
            _, pending = texts.after(pending, token_id)
        named.append(position)
    return named
