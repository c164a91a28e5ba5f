"""Whatever is guessed, results are bit for bit those without guesses: tokens, texts, log-probabilities, ends.

Workloads with every sampling feature, on engines that chunk, preempt and share blocks, with guesses that are mostly
right, mostly wrong, or reach beyond the end.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from octavo import LLM, SamplingParams, StructuredOutputsParams
from tests.distributed.thread_executor import ThreadExecutor
from tests.engine.processes import comparable
from tests.invariance.workloads import random_workload
from tests.speculative.oracle import Oracle, guessing, sequences_of
from tests.tiny_models import VOCAB_SIZE, gemma3_config, llama_config, write_tiny_model

CONFIGS = {"llama": llama_config, "gemma3": gemma3_config}
ROOMY = {"max_num_batched_tokens": 512, "max_num_seqs": 32, "kv_cache_memory_bytes": 2**24}
NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 1, "prompt_lookup_max": 3}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {name: write_tiny_model(tmp_path_factory.mktemp(name), config()) for name, config in CONFIGS.items()}


def count(llm: LLM, name: str) -> int:
    return {metric.name.rpartition(":")[2]: metric for metric in llm.get_metrics()}[name].value


def run(llm: LLM, prompts: list[list[int]], params: Any, **options: Any) -> list[Any]:
    return llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False, **options)


@pytest.mark.native_ops
@pytest.mark.parametrize(("seed", "share_right"), [*zip(range(16), itertools.cycle([0.9, 0.5, 1.0]), strict=False)])
def test_any_request_in_any_engine(folders, seed, share_right):
    check_workload(folders, seed, share_right)


@pytest.mark.native_ops
@pytest.mark.parametrize(("seed", "share_right"), [(seed, (0.9, 0.5, 1.0)[seed % 3]) for seed in range(20, 26)])
def test_any_request_in_a_pipeline_whose_last_stage_guesses(folders, seed, share_right):
    check_workload(folders, seed, share_right, pipeline_parallel_size=2, distributed_executor_backend=ThreadExecutor)


def check_workload(folders: Any, seed: int, share_right: float, **arrangement: Any) -> None:
    folder = str(folders[sorted(folders)[seed % 2]])
    workload = random_workload(seed)
    plain = run(LLM(folder, **ROOMY, **workload.arithmetic), workload.prompts, workload.params)
    oracle = Oracle(sequences_of(plain), VOCAB_SIZE, share_right, seed)
    with guessing(oracle):
        llm = LLM(folder, speculative_config=NGRAM, **workload.engine, **workload.arithmetic, **arrangement)
        rounds = [run(llm, workload.prompts, workload.params, priority=workload.priorities) for _ in range(2)]
    for cache, guessed in zip(("cold", "warm"), rounds, strict=True):
        for params, expected, got in zip(workload.params, plain, guessed, strict=True):
            assert comparable(got) == comparable(expected), f"{cache} cache: {params}"
    assert count(llm, "spec_decode_num_draft_tokens") > count(llm, "spec_decode_num_drafts") > 0
    assert count(llm, "spec_decode_num_accepted_tokens") > 0


def test_guesses_save_steps_and_are_counted_by_position(folders):
    prompt, params = [list(range(3, 20))], SamplingParams(temperature=0.8, seed=5, max_tokens=60, ignore_eos=True)
    plain = run(LLM(str(folders["llama"]), **ROOMY), prompt, params)
    with guessing(Oracle(sequences_of(plain), VOCAB_SIZE, 1.0, 0)):
        llm = LLM(str(folders["llama"]), speculative_config=NGRAM, **ROOMY)
        assert sequences_of(run(llm, prompt, params)) == sequences_of(plain)
    num_steps = count(llm, "spec_decode_num_drafts")
    assert num_steps < 30, "60 tokens took as many steps as without guesses"
    by_position = next(m.values for m in llm.get_metrics() if m.name.endswith("tokens_per_pos"))
    assert len(by_position) == 5 and by_position == sorted(by_position, reverse=True)
    accepted = count(llm, "spec_decode_num_accepted_tokens")
    assert sum(by_position) == accepted <= count(llm, "spec_decode_num_draft_tokens")
    assert accepted >= 59 - num_steps - 1


@pytest.mark.native_ops
@pytest.mark.parametrize(
    ("share_right", "arrangement"),
    [(1.0, {}), (0.7, {}), (0.8, {"pipeline_parallel_size": 2, "distributed_executor_backend": ThreadExecutor})],
)
def test_grammars_bind_guesses_too(folders, share_right, arrangement):
    wishes = [
        StructuredOutputsParams(regex="(ab|cd){3,9}x?"),
        StructuredOutputsParams(choice=["red", "green", "blue"]),
        StructuredOutputsParams(json={"type": "array", "items": {"enum": [1, 22, 333]}, "minItems": 4, "maxItems": 9}),
        None,
    ]
    params = [
        SamplingParams(temperature=t, seed=s, max_tokens=40, structured_outputs=wish, logprobs=2)
        for s, wish in enumerate(wishes)
        for t in (0.0, 1.0)
    ]
    prompts = [[7, 8, 9, seed] for seed in range(3, 3 + len(params))]
    plain = run(LLM(str(folders["llama"]), **ROOMY), prompts, params)
    with guessing(Oracle(sequences_of(plain), VOCAB_SIZE, share_right, 1)):
        options = {**ROOMY, "max_num_batched_tokens": 32, **arrangement}
        llm = LLM(str(folders["llama"]), speculative_config=NGRAM, **options)
        guessed = run(llm, prompts, params)
    assert [comparable(output) for output in guessed] == [comparable(output) for output in plain]
    assert count(llm, "spec_decode_num_accepted_tokens") > 20


@pytest.mark.native_ops
@pytest.mark.parametrize("config", [NGRAM, {"method": "suffix"}], ids=lambda config: config["method"])
def test_the_proposers_themselves(folders, config):
    """Repetitive prompts, with and without chance; the second round meets what the first has left behind."""
    prompts = [[5, 6, 7, 8, 9] * 6, [11, 12, 13] * 4, list(range(20, 60)), [4]]
    params = [
        SamplingParams(temperature=t, seed=1, max_tokens=70, ignore_eos=True, logprobs=1, n=n, repetition_penalty=0.9)
        for t, n in ((0.0, 1), (0.3, 2), (0.0, 1), (1.0, 1))
    ]
    plain = run(LLM(str(folders["llama"]), **ROOMY), prompts, params)
    llm = LLM(str(folders["llama"]), speculative_config=config, **ROOMY)
    for _ in range(2):
        guessed = run(llm, prompts, params)
        assert [comparable(output) for output in guessed] == [comparable(output) for output in plain]
    assert count(llm, "spec_decode_num_accepted_tokens") > 20
