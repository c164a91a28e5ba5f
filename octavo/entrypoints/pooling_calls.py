"""The methods of LLM that pooling models have, as functions of it: embeddings, classes, scores, rewards.

`prompts` as in `LLM.generate`; results in order. Options of all:
truncate_prompt_tokens: keep at most so many tokens, special ones included; -1: as many as the model takes
prompt_name: the name of one of the model's own prompts (sentence-transformers) to put before each text
tokenization_kwargs: both of these and more, see docs/pooling.md
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from octavo.engine.prompts import as_prompts
from octavo.entrypoints.progress import UseTqdm
from octavo.entrypoints.scoring import plan_scoring
from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.types.pooling import PoolingParams, PoolingTask
from octavo.types.pooling_outputs import (
    ClassificationRequestOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from octavo.types.prompts import PromptType

if TYPE_CHECKING:
    from octavo.entrypoints.llm import LLM

PoolingParamsInput = PoolingParams | Sequence[PoolingParams] | None
Prompts = PromptType | Sequence[PromptType]


def encode(
    llm: LLM,
    prompts: Prompts,
    pooling_params: PoolingParamsInput = None,
    *,
    pooling_task: PoolingTask | None = None,
    truncate_prompt_tokens: int | None = None,
    prompt_name: str | None = None,
    use_tqdm: UseTqdm = True,
    lora_request: object | None = None,
    tokenization_kwargs: Mapping[str, object] | None = None,
) -> list[PoolingRequestOutput[PoolingOutput]]:
    """Return what the model makes of each prompt, for the task or the model's own."""
    if lora_request is not None:
        raise UnsupportedError("lora_request: models for pooling take no adapters; leave it out")
    listed: list[PromptType] = as_prompts(prompts)
    every_params = _for_task(pooling_params, pooling_task, len(listed))
    kwargs = dict(tokenization_kwargs or {})
    if truncate_prompt_tokens is not None:
        kwargs["truncate_prompt_tokens"] = truncate_prompt_tokens
    if prompt_name is not None:
        kwargs["prompt_name"] = prompt_name
    return llm.run_pooling(listed, every_params, kwargs, use_tqdm)


def embed(
    llm: LLM, prompts: Prompts, *, pooling_params: PoolingParamsInput = None, **options: Any
) -> list[EmbeddingRequestOutput]:
    """Return an embedding for each prompt. options: those of `encode`"""
    outputs = encode(llm, prompts, pooling_params, pooling_task="embed", **options)
    return [EmbeddingRequestOutput.from_base(output) for output in outputs]


def classify(
    llm: LLM, prompts: Prompts, *, pooling_params: PoolingParamsInput = None, **options: Any
) -> list[ClassificationRequestOutput]:
    """Return each label's probability for each prompt. options: those of `encode`"""
    outputs = encode(llm, prompts, pooling_params, pooling_task="classify", **options)
    return [ClassificationRequestOutput.from_base(output) for output in outputs]


def reward(
    llm: LLM, prompts: Prompts, /, *, pooling_params: PoolingParamsInput = None, **options: Any
) -> list[PoolingRequestOutput[PoolingOutput]]:
    """Return a reward for each token of each prompt, or for each step. options: those of `encode`"""
    return encode(llm, prompts, pooling_params, pooling_task="token_classify", **options)


def score(
    llm: LLM,
    data_1: str | Sequence[str],
    data_2: str | Sequence[str],
    /,
    *,
    pooling_params: PoolingParams | None = None,
    chat_template: str | None = None,
    instruction: str | None = None,
    truncate_prompt_tokens: int | None = None,
    use_tqdm: UseTqdm = True,
    lora_request: object | None = None,
    tokenization_kwargs: Mapping[str, object] | None = None,
) -> list[ScoringRequestOutput]:
    """Return how well each text of data_2 goes with the one text of data_1, or with the one at its place.

    chat_template: renders a pair, as messages with the roles query and document (rerankers that are decoders);
        instruction: is given to it
    """
    config = llm.llm_engine.model_config.pooling
    if config is None:
        raise InvalidRequestError(
            "this model generates text and cannot score; start it with runner='pooling' (--runner pooling)"
        )
    first, second = (as_prompts(data) for data in (data_1, data_2))
    params = pooling_params or PoolingParams()
    plan = plan_scoring(config, first, second, params, llm.llm_engine.tokenizer, chat_template, instruction)
    outputs = encode(
        llm,
        plan.prompts,
        plan.params,
        truncate_prompt_tokens=truncate_prompt_tokens,
        use_tqdm=use_tqdm,
        lora_request=lora_request,
        tokenization_kwargs=tokenization_kwargs,
    )
    scores = plan.scores(outputs)
    return [_scored([outputs[index] for index in pair], score) for pair, score in zip(plan.pairs, scores, strict=True)]


def _for_task(params: PoolingParamsInput, task: PoolingTask | None, num_prompts: int) -> list[PoolingParams]:
    """Return one PoolingParams for each prompt, with the task."""
    listed = list(params) if isinstance(params, Sequence) else [params or PoolingParams()] * num_prompts
    if len(listed) != num_prompts:
        raise InvalidRequestError(
            f"pooling_params must be one or as many as prompts ({num_prompts}), got {len(listed)}"
        )
    for one in listed:
        if not isinstance(one, PoolingParams):
            raise InvalidRequestError(f"pooling_params must be PoolingParams, got {type(one).__name__}")
        if task is not None and one.task not in (None, task):
            raise InvalidRequestError(f"pooling_params ask for task={one.task!r}, and the call is for {task!r}", "task")
    return [msgspec.structs.replace(one, task=task or one.task) for one in listed]


def _scored(outputs: Sequence[PoolingRequestOutput[PoolingOutput]], score: float) -> ScoringRequestOutput:
    token_ids = [token_id for output in outputs for token_id in output.prompt_token_ids]
    num_cached = sum(output.num_cached_tokens for output in outputs)
    return ScoringRequestOutput(outputs[0].request_id, ScoringOutput(score), token_ids, num_cached, True)
