"""A request's result is bit-identical alone in a fresh engine and in a crowd that chunks, preempts and shares blocks.

By default 24 workloads run on two tiny models (full attention; sliding and full layers);
OCTAVO_FULL_INVARIANCE=1 runs 200.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from octavo import LLM, RequestOutput, SamplingParams
from tests.invariance.workloads import random_workload
from tests.tiny_models import gemma3_config, llama_config, write_tiny_model

NUM_WORKLOADS = 200 if os.environ.get("OCTAVO_FULL_INVARIANCE") == "1" else 24
CONFIGS = {"llama": llama_config, "gemma3": gemma3_config}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {name: write_tiny_model(tmp_path_factory.mktemp(name), config()) for name, config in CONFIGS.items()}


def comparable(output: RequestOutput) -> list[tuple]:
    """Everything that a user sees of a result, exactly."""
    seen: list[tuple] = [("prompt_logprobs", output.prompt_logprobs)]
    for completion in output.outputs:
        seen.append(
            (
                completion.index,
                completion.text,
                tuple(completion.token_ids),
                completion.cumulative_logprob,
                completion.logprobs,
                completion.finish_reason,
                completion.stop_reason,
            )
        )
    return seen


def solo(folder, prompt: list[int], params: SamplingParams, arithmetic: dict[str, Any]) -> RequestOutput:
    options = {"max_num_seqs": params.n, "max_num_batched_tokens": 512, "kv_cache_memory_bytes": 2**24}
    llm = LLM(model=str(folder), **options, **arithmetic)
    return llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)[0]


def check_crowd(folder, seed: int, **weights: str) -> None:
    workload = random_workload(seed)
    arithmetic = {**workload.arithmetic, **weights}
    llm = LLM(model=str(folder), **workload.engine, **arithmetic)
    prompts = [{"prompt_token_ids": prompt} for prompt in workload.prompts]
    crowd = llm.generate(prompts, workload.params, priority=workload.priorities, use_tqdm=False)
    again = llm.generate(prompts, workload.params, priority=workload.priorities, use_tqdm=False)
    for prompt, params, first, second in zip(workload.prompts, workload.params, crowd, again, strict=True):
        alone = comparable(solo(folder, prompt, params, arithmetic))
        assert comparable(first) == alone, f"in a crowd, cold cache: {params}"
        assert comparable(second) == alone, f"in a crowd, warm cache: {params}"


@pytest.mark.native_ops
@pytest.mark.parametrize("seed", range(NUM_WORKLOADS))
def test_crowd_equals_solo(folders, seed):
    check_crowd(folders[sorted(folders)[seed % len(folders)]], seed)


@pytest.mark.native_ops
@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("seed", range(NUM_WORKLOADS // 6))
def test_crowd_equals_solo_with_quantised_weights(folders, seed, quantization):
    check_crowd(folders[sorted(folders)[seed % len(folders)]], seed, quantization=quantization)


def test_the_workloads_do_preempt(folders):
    """Without preemptions the test above would prove less than it says."""
    preemptions = 0
    for seed in range(0, 24, 2):
        workload = random_workload(seed)
        llm = LLM(model=str(folders["gemma3"]), **workload.engine)
        prompts = [{"prompt_token_ids": prompt} for prompt in workload.prompts]
        llm.generate(prompts, workload.params, priority=workload.priorities, use_tqdm=False)
        counters = {metric.name.rpartition(":")[2]: metric for metric in llm.get_metrics()}
        preemptions += counters["num_preemptions"].value
    assert preemptions > 5, preemptions
