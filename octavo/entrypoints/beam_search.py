"""Beam search in front of the engine: each step asks for one token of every beam, with the most likely alternatives."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from octavo.entrypoints.progress import Progress, UseTqdm
from octavo.errors import InvalidRequestError, RequestFailedError
from octavo.types.adapters import LoRARequest
from octavo.types.outputs import LogprobsOnePosition, RequestOutput, SampleLogprobs
from octavo.types.prompts import PromptType, TokensPrompt
from octavo.types.sampling_params import BeamSearchParams, SamplingParams

if TYPE_CHECKING:
    from octavo.entrypoints.llm import LLM
    from octavo.tokenizers.tokenizer import Tokenizer


@dataclass(slots=True)
class BeamSearchSequence:
    """One beam. tokens and text include the prompt; cum_logprob is the sum over the generated tokens."""

    tokens: list[int]
    logprobs: SampleLogprobs
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: object | None = None


@dataclass(slots=True)
class BeamSearchOutput:
    """The best sequences of one prompt, best first."""

    sequences: list[BeamSearchSequence]


@dataclass(slots=True)
class BeamSearch:
    """The search for one prompt. completed holds the best beams once `finish_search` was called."""

    num_prompt_tokens: int
    beams: list[BeamSearchSequence]
    completed: list[BeamSearchSequence] = field(default_factory=list)


def run_beam_search(
    llm: LLM,
    prompts: Sequence[PromptType],
    params: BeamSearchParams,
    lora_request: LoRARequest | None,
    use_tqdm: UseTqdm,
    concurrency_limit: int | None,
) -> list[BeamSearchOutput]:
    """Search for every prompt, at most `concurrency_limit` at a time; see LLM.beam_search."""
    if not isinstance(params, BeamSearchParams):
        raise InvalidRequestError(f"params must be BeamSearchParams, got {type(params).__name__}", "params")
    if params.structured_outputs is not None:
        raise InvalidRequestError(
            "beam_search cannot follow structured_outputs: every step of a beam would begin the grammar again; use "
            "generate with n > 1",
            "structured_outputs",
        )
    check_beam_width(params, llm.model_config.max_logprobs)
    if concurrency_limit is not None and concurrency_limit < 1:
        raise InvalidRequestError(f"concurrency_limit must be at least 1, got {concurrency_limit}", "concurrency_limit")
    searches = [
        BeamSearch(len(token_ids), [BeamSearchSequence(token_ids, [])])
        for token_ids in _checked_token_ids(llm, prompts, params)
    ]
    outputs: list[BeamSearchOutput] = []
    limit = concurrency_limit or max(len(searches), 1)
    with Progress(len(searches), use_tqdm) as progress:
        for start in range(0, len(searches), limit):
            for search in _search(llm, searches[start : start + limit], params, lora_request):
                progress.advance(search.num_prompt_tokens, len(search.completed[0].logprobs))
                outputs.append(BeamSearchOutput(search.completed))
    return outputs


def check_beam_width(params: BeamSearchParams, max_logprobs: int) -> None:
    """Raise unless the engine reports enough candidates per token for so many beams."""
    if max_logprobs != -1 and 2 * params.beam_width > max_logprobs:
        raise InvalidRequestError(
            f"beam_width={params.beam_width} needs {2 * params.beam_width} logprobs, but max_logprobs={max_logprobs}; "
            "start the engine with a larger max_logprobs",
            "beam_width",
        )


def _checked_token_ids(llm: LLM, prompts: Sequence[PromptType], params: BeamSearchParams) -> list[list[int]]:
    """Return every prompt's token ids, once all prompts have passed the engine's checks."""
    processor = llm.llm_engine.input_processor
    step_params = one_step_params(params)
    requests = [processor.process("beam", prompt, step_params) for prompt in prompts]
    return [processed.request.prompt_token_ids for processed in requests]


def one_step_params(params: BeamSearchParams) -> SamplingParams:
    """Return how one step of one beam is generated: one token, with the candidates to go on with."""
    return SamplingParams(
        logprobs=2 * params.beam_width, max_tokens=1, temperature=params.temperature, ignore_eos=True, detokenize=False
    )


def _search(
    llm: LLM, searches: list[BeamSearch], params: BeamSearchParams, lora_request: LoRARequest | None
) -> list[BeamSearch]:
    """Run the searches together; afterwards `completed` of each holds its best beams."""
    eos_token_ids = frozenset(() if params.ignore_eos else llm.model_config.eos_token_ids)
    max_sequence_len = llm.llm_engine.input_processor.max_sequence_len
    step_params = one_step_params(params)
    for _ in range(params.max_tokens):
        live = [(search, beam) for search in searches for beam in search.beams if len(beam.tokens) < max_sequence_len]
        if not live:
            break
        prompts = [TokensPrompt(prompt_token_ids=beam.tokens) for _, beam in live]
        results = llm.generate(prompts, step_params, use_tqdm=False, lora_request=lora_request)
        candidates: dict[int, list[BeamSearchSequence]] = {id(search): [] for search, _ in live}
        for (search, beam), result in zip(live, results, strict=True):
            candidates[id(search)].extend(extend_beam(beam, result))
        for search in searches:
            if id(search) in candidates:
                select_beams(search, candidates[id(search)], params, eos_token_ids)
    tokenizer = llm.llm_engine.tokenizer
    for search in searches:
        finish_search(search, params, eos_token_ids, tokenizer)
    return searches


def extend_beam(beam: BeamSearchSequence, result: RequestOutput) -> Iterator[BeamSearchSequence]:
    """Yield the beam extended by each of the candidates for its next token."""
    completion = result.outputs[0]
    if completion.finish_reason == "error":
        raise RequestFailedError(f"a step of the beam search failed: {completion.stop_reason}")
    position: LogprobsOnePosition = completion.logprobs[0] if completion.logprobs else {}
    for token_id, candidate in position.items():
        yield BeamSearchSequence(
            tokens=[*beam.tokens, token_id],
            logprobs=[*beam.logprobs, position],
            cum_logprob=beam.cum_logprob + candidate.logprob,
        )


def select_beams(
    search: BeamSearch,
    candidates: Sequence[BeamSearchSequence],
    params: BeamSearchParams,
    eos_token_ids: Collection[int],
) -> None:
    """Move ended candidates aside, and keep the best beam_width of the others as beams."""
    going_on: list[BeamSearchSequence] = []
    for candidate in candidates:
        if candidate.tokens[-1] in eos_token_ids:
            candidate.finish_reason, candidate.stop_reason = "stop", candidate.tokens[-1]
            search.completed.append(candidate)
        else:
            going_on.append(candidate)
    search.beams = _best(going_on, params, eos_token_ids)


def finish_search(
    search: BeamSearch, params: BeamSearchParams, eos_token_ids: Collection[int], tokenizer: Tokenizer | None
) -> None:
    """End a search: its beams compete with what has ended before, and get their text."""
    for beam in search.beams:
        beam.finish_reason = "length"
    search.completed = _best([*search.completed, *search.beams], params, eos_token_ids)
    for sequence in search.completed if tokenizer is not None else ():
        ended = sequence.finish_reason == "stop" and not params.include_stop_str_in_output
        shown = sequence.tokens[:-1] if ended else sequence.tokens
        sequence.text = tokenizer.decode(shown, skip_special_tokens=params.skip_special_tokens)  # type: ignore[union-attr]


def _best(
    sequences: Sequence[BeamSearchSequence], params: BeamSearchParams, eos_token_ids: Collection[int]
) -> list[BeamSearchSequence]:
    """Return the best beam_width sequences by score, best first; equal scores keep their order."""
    ranked = sorted(
        sequences, key=lambda sequence: _score(sequence, params.length_penalty, eos_token_ids), reverse=True
    )
    return ranked[: params.beam_width]


def _score(sequence: BeamSearchSequence, length_penalty: float, eos_token_ids: Collection[int]) -> float:
    """Return the sum of log-probabilities over length ** length_penalty; prompt included, end token not, as in vLLM."""
    length = len(sequence.tokens) - (sequence.tokens[-1] in eos_token_ids)
    return float(sequence.cum_logprob / max(length, 1) ** length_penalty)
