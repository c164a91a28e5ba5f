"""Ranks that share the keys and values of a sequence: nearly the numbers of one process, and always the same ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import SmolLM3Config

from octavo import LLM, SamplingParams
from octavo.errors import ConfigError, UnsupportedError
from octavo.loader.catalog import pull
from octavo.ops.kv_layout import keys_of
from octavo.ops.select import native_facts
from octavo.outputs import RequestOutput
from tests.distributed.thread_executor import ThreadExecutor
from tests.engine.processes import comparable
from tests.invariance.workloads import random_workload
from tests.tiny_models import gemma3_config, llama_config, write_tiny_model

pytestmark = pytest.mark.skipif(native_facts() is None, reason="needs the native extension")

# Scores and values are added up in another order: with float32 weights and cache log-probabilities differ by less.
BOUND = 2e-5
PROMPTS = [list(range(5, 5 + length)) for length in (3, 50, 17, 90)]


def sharing(tp_size: int, dcp_size: int, interleave: int = 1) -> dict[str, Any]:
    return {
        "tensor_parallel_size": tp_size,
        "decode_context_parallel_size": dcp_size,
        "cp_kv_cache_interleave_size": interleave,
        "distributed_executor_backend": ThreadExecutor,
    }


def small_llm(folder: Path, **options: Any) -> LLM:
    return LLM(str(folder), **{"block_size": 8, "num_gpu_blocks_override": 60, "max_model_len": 256, **options})


def answers(llm: LLM, prompts: list[list[int]] = PROMPTS) -> list[RequestOutput]:
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, logprobs=0, prompt_logprobs=0)
    return llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)


def numbers(outputs: list[RequestOutput]) -> list[tuple[list[int], list[float]]]:
    """Return of each answer the tokens, and the log-probability of every token of prompt and answer."""
    found = []
    for output in outputs:
        completion = output.outputs[0]
        assert completion.logprobs is not None and output.prompt_logprobs is not None
        entries = [entry for entry in (*output.prompt_logprobs, *completion.logprobs) if entry is not None]
        found.append((list(completion.token_ids), [next(iter(entry.values())).logprob for entry in entries]))
    return found


def check_close(ours: list[RequestOutput], expected: list[RequestOutput], bound: float = BOUND) -> None:
    for (tokens, logprobs), (expected_tokens, expected_logprobs) in zip(numbers(ours), numbers(expected), strict=True):
        assert tokens == expected_tokens
        np.testing.assert_allclose(logprobs, expected_logprobs, rtol=0, atol=bound)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = llama_config(hidden_size=64, intermediate_size=96, num_key_value_heads=1, num_hidden_layers=3)
    return write_tiny_model(tmp_path_factory.mktemp("shared") / "model", config)


@pytest.mark.parametrize(("sizes", "interleave"), [((2, 2), 1), ((2, 2), 8), ((4, 2), 4), ((4, 4), 2), ((3, 3), 1)])
def test_ranks_that_share_tokens_compute_what_one_process_does(
    folder: Path, sizes: tuple[int, int], interleave: int
) -> None:
    ours = answers(small_llm(folder, **sharing(*sizes, interleave)))
    check_close(ours, answers(small_llm(folder)))


@pytest.mark.native_ops
@pytest.mark.parametrize("options", [{"enforce_eager": True}, {"pipeline_parallel_size": 2}])
def test_other_arrangements_of_it_give_the_same_bits(folder: Path, options: dict[str, Any]) -> None:
    ours = answers(small_llm(folder, **sharing(2, 2), **options))
    assert numbers(ours) == numbers(answers(small_llm(folder, **sharing(2, 2))))


@pytest.mark.parametrize(("dtype", "bound"), [("float16", 2e-3), ("int8", 5e-2)])
def test_a_cache_of_any_type_is_shared(folder: Path, dtype: str, bound: float) -> None:
    shared = answers(small_llm(folder, kv_cache_dtype=dtype, **sharing(2, 2)))
    whole = answers(small_llm(folder, kv_cache_dtype=dtype))
    check_close(shared, whole, bound)


@pytest.mark.native_ops
def test_results_do_not_depend_on_neighbours_chunks_cached_prefixes_or_preemption(folder: Path) -> None:
    whole = small_llm(folder, **sharing(2, 2))
    alone = [numbers(answers(whole, [prompt]))[0] for prompt in PROMPTS]
    assert numbers(answers(small_llm(folder, max_num_batched_tokens=16, **sharing(2, 2)))) == alone
    # few blocks: 16 tokens each, 4 sequences of up to 110 tokens
    tight = small_llm(folder, num_gpu_blocks_override=12, enable_prefix_caching=False, **sharing(2, 2))
    assert numbers(answers(tight)) == alone
    # the same prompts again, and longer: the first blocks are there
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    again = whole.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], params, use_tqdm=False)
    assert [list(output.outputs[0].token_ids) for output in again] == [tokens for tokens, _ in alone]
    assert [output.num_cached_tokens for output in again] == [0, 48, 16, 80]


@pytest.mark.native_ops
@pytest.mark.parametrize(
    ("seed", "sizes", "block_size"), [(0, (3, 3), 5), (1, (2, 2), 1), (8, (4, 2), 3), (10, (4, 4), 8), (11, (2, 2), 16)]
)
def test_any_request_in_any_engine(folder: Path, seed: int, sizes: tuple[int, int], block_size: int) -> None:
    """Every sampling feature, in an engine that chunks, preempts and shares blocks that are no power of two."""
    workload = random_workload(seed)
    pairs = zip(workload.prompts, workload.params, strict=True)
    longest = max(len(prompt) + (params.max_tokens or 0) for prompt, params in pairs)
    roomy = {"num_gpu_blocks_override": 400, "block_size": block_size}
    tight = {**workload.engine, **roomy, "num_gpu_blocks_override": longest // (block_size * sizes[1]) + 4}
    results = []
    for options in (roomy, tight, {**tight, "speculative_config": {"method": "suffix"}}):
        llm = small_llm(folder, **{**sharing(*sizes), **options, **workload.arithmetic})
        prompts = [{"prompt_token_ids": ids} for ids in workload.prompts]
        for _ in range(2):  # the second time from the prefix cache
            outputs = llm.generate(prompts, workload.params, use_tqdm=False)
            results.append([comparable(output) for output in outputs])
    assert all(result == results[0] for result in results)


def test_guesses_are_verified_over_shared_tokens(folder: Path) -> None:
    guessing = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}
    plain, guessed = (answers(small_llm(folder, **sharing(2, 2), **more)) for more in ({}, guessing))
    assert [tokens for tokens, _ in numbers(guessed)] == [tokens for tokens, _ in numbers(plain)]


class StoredTokens:
    """Mixed into every worker."""

    def stored_tokens(self) -> list[tuple[int, int]]:
        """Return of each layer how many tokens' keys a block has room for, and how many tokens' keys are there."""
        caches = self.model_runner._kv_caches.values()  # type: ignore[attr-defined]
        return [(cache.shape[3], int(keys_of(cache)[1:].any(axis=(1, 3)).sum())) for cache in caches]


def test_every_rank_keeps_its_tokens_only(folder: Path) -> None:
    extension = f"{StoredTokens.__module__}.{StoredTokens.__name__}"
    llm = small_llm(folder, worker_extension_cls=extension, **sharing(4, 4, 2))
    params = SamplingParams(temperature=0, max_tokens=1)
    llm.generate({"prompt_token_ids": list(range(5, 90))}, params, use_tqdm=False)
    # 85 tokens, dealt out two at a time: ten rounds of eight, then two, two and one
    assert llm.collective_rpc("stored_tokens") == [[(8, count)] * 3 for count in (22, 22, 21, 20)]


def test_layers_without_positions_are_shared_too(tmp_path: Path) -> None:
    config = SmolLM3Config(
        **llama_config(hidden_size=64, intermediate_size=96, num_key_value_heads=1, num_hidden_layers=3).to_dict(),
        no_rope_layers=[1, 0, 1],
    )
    folder = write_tiny_model(tmp_path / "model", config)
    check_close(answers(small_llm(folder, **sharing(2, 2))), answers(small_llm(folder)))


def test_what_cannot_be_shared_is_refused_with_the_way_out(folder: Path, tmp_path: Path) -> None:
    for sizes, reason in (((2, 4), "multiple of 4, got 2"), ((1, 2), "multiple of 2, got 1"), ((3, 2), "got 3")):
        with pytest.raises(ConfigError, match=rf"decode_context_parallel_size=.*{reason}"):
            small_llm(folder, **sharing(*sizes))
    with pytest.raises(ConfigError, match="cp_kv_cache_interleave_size=3 does not divide block_size=8"):
        small_llm(folder, **sharing(2, 2, 3))
    with pytest.raises(ConfigError, match="two names of one size"):
        small_llm(folder, dcp_kv_cache_interleave_size=2, **sharing(2, 2))
    with pytest.raises(UnsupportedError, match="prefill_context_parallel_size=2"):
        small_llm(folder, prefill_context_parallel_size=2)
    with pytest.raises(UnsupportedError, match="speculative decoding by draft_model"):
        drafts = {"method": "draft_model", "model": str(folder), "num_speculative_tokens": 2}
        small_llm(folder, speculative_config=drafts, **sharing(2, 2))
    gemma = write_tiny_model(tmp_path / "gemma", gemma3_config(num_key_value_heads=1))
    with pytest.raises(UnsupportedError, match=r"full attention in all layers, and .* has sliding"):
        small_llm(gemma, **sharing(2, 2))


@pytest.mark.native_ops
def test_a_real_model_says_nearly_the_same() -> None:
    """SmolLM2 rounds activations to 8 bits: a last bit may become another code, and tokens that are nearly as likely
    change places."""
    path = str(pull("smollm2-135m-instruct", lambda progress: None))
    prompts = ["The capital of France is", "word " * 60 + "and"]
    params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, logprobs=2)
    options = {"max_model_len": 256, "num_gpu_blocks_override": 40}
    expected = LLM(path, **options).generate(prompts, params, use_tqdm=False)
    llm = LLM(path, **options, **sharing(6, 2))
    texts = [expected, *(llm.generate(prompts, params, use_tqdm=False) for _ in range(2))]
    for whole, shared, again in zip(*texts, strict=True):
        assert shared.outputs[0].token_ids == again.outputs[0].token_ids
        assert shared.outputs[0].logprobs == again.outputs[0].logprobs
        ours, theirs = shared.outputs[0].logprobs, whole.outputs[0].logprobs
        assert ours is not None and theirs is not None
        for own, expected in zip(ours, theirs, strict=True):
            best, token = next(iter(expected)), next(iter(own))
            assert own[token].logprob == pytest.approx(
                expected[token].logprob if token in expected else np.nan, abs=0.3
            )
            if token != best:
                assert expected[best].logprob - expected[token].logprob < 0.3
                break
