"""Reported faults about drawing a token: greedy, top_k, penalties, seeds, ties, NaN."""

from __future__ import annotations

import math

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from octavo import LLM, SamplingParams
from octavo.sampling.custom_processors import AdapterLogitsProcessor
from tests.cases.conftest import run, tokens
from tests.tiny_models import llama_config, write_tiny_model

PROMPTS = [
    "The capital of France is",
    "Once upon a time",
    "1, 2, 3, 4,",
    "def fibonacci(n):",
    "Water boils at",
    "Dear Sir or Madam,",
    "The three primary colours are",
    "In 1969,",
    "A haiku about the sea:\n",
    "My favourite food is",
]

pytestmark = pytest.mark.model


def test_top_k_one_is_the_greedy_path(smol):
    """B035: top_k=1 at temperature 1 gave other tokens than temperature 0."""
    greedy = smol.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=12), use_tqdm=False)
    top_one = smol.generate(PROMPTS, SamplingParams(temperature=1, top_k=1, seed=3, max_tokens=12), use_tqdm=False)
    assert [one.outputs[0].token_ids for one in greedy] == [one.outputs[0].token_ids for one in top_one]


def processed_logits(llm, prompt: list[int], **penalties) -> dict[int, float]:
    """Return the logits of the first step after penalties, from an engine with logprobs_mode=processed_logits."""
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=-1, **penalties)
    (position,) = llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)[0].outputs[0].logprobs
    return {token_id: one.logprob for token_id, one in position.items()}


def test_which_tokens_each_penalty_counts(tiny):
    """B041: the prompt counted for presence and not for repetition."""
    llm = tiny(logprobs_mode="processed_logits", max_logprobs=-1)
    prompt = [7, 7, 7, 9]
    plain = processed_logits(llm, prompt)
    assert processed_logits(llm, prompt, presence_penalty=1.5) == plain  # nothing was generated yet
    assert processed_logits(llm, prompt, frequency_penalty=1.5) == plain
    repeated = processed_logits(llm, prompt, repetition_penalty=1.3)
    for token_id, logit in plain.items():
        if token_id in prompt:
            expected = logit / np.float32(1.3) if logit > 0 else logit * np.float32(1.3)
            assert repeated[token_id] == pytest.approx(expected, rel=1e-6)
        else:
            assert repeated[token_id] == logit


def test_presence_and_frequency_count_the_answer(tiny):
    """B041: once a token was generated, presence takes its amount once and frequency once per occurrence."""
    llm = tiny(logprobs_mode="processed_logits", max_logprobs=-1)
    forced = dict(temperature=0, max_tokens=4, logprobs=-1, logit_bias={7: 100}, ignore_eos=True)
    plain = run(llm, [5, 6], **forced).outputs[0].logprobs
    for penalty, amounts in (("presence_penalty", [0, 1, 1, 1]), ("frequency_penalty", [0, 1, 2, 3])):
        penalised = run(llm, [5, 6], **forced, **{penalty: 1.25}).outputs[0].logprobs
        for before, after, amount in zip(plain, penalised, amounts, strict=True):
            assert after[7].logprob == pytest.approx(before[7].logprob - 1.25 * amount, abs=1e-4)
            assert after[8].logprob == pytest.approx(before[8].logprob, abs=1e-4)


@pytest.mark.native_ops
def test_a_seed_fixes_the_answer_whatever_runs_beside_it(smol):
    """A generator shared by the batch made seeded answers depend on the neighbours."""
    params = SamplingParams(temperature=1, seed=42, max_tokens=16)
    alone = tokens(smol, PROMPTS[1], temperature=1, seed=42, max_tokens=16)
    others = [SamplingParams(temperature=1.5, seed=seed, max_tokens=16) for seed in range(len(PROMPTS))]
    crowd = smol.generate([PROMPTS[1], *PROMPTS], [params, *others], use_tqdm=False)
    assert list(crowd[0].outputs[0].token_ids) == alone
    assert tokens(smol, PROMPTS[1], temperature=1, seed=43, max_tokens=16) != alone


def test_requests_without_a_seed_differ(smol):
    """One seed for all of them would give n equal answers."""
    params = SamplingParams(temperature=1, max_tokens=12)
    outputs = smol.generate([PROMPTS[1]] * 4, params, use_tqdm=False)
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 4


def test_the_lower_id_wins_a_tie_alone_and_in_a_batch(tmp_path):
    """Gap: equal logits at temperature 0."""
    folder = write_tiny_model(tmp_path, llama_config(tie_word_embeddings=False))
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"][41] = weights["lm_head.weight"][40]
    save_file(weights, folder / "model.safetensors")
    llm = LLM(str(folder), max_model_len=64, kv_cache_memory_bytes=2**23)
    params = SamplingParams(temperature=0, max_tokens=4, allowed_token_ids=[41, 40], logprobs=1)
    alone = llm.generate([[5, 6]], params, use_tqdm=False)
    crowd = llm.generate([[5, 6], [7], [8, 9, 10], [5, 6]], params, use_tqdm=False)
    for output in [*alone, *crowd]:
        assert list(output.outputs[0].token_ids) == [40, 40, 40, 40]
    # the raw log-probabilities rank the equal ones by id too
    (position, *_) = (
        llm.generate([[5, 6]], SamplingParams(temperature=0, max_tokens=1, logprob_token_ids=[40, 41]), use_tqdm=False)[
            0
        ]
        .outputs[0]
        .logprobs
    )
    assert position[40].logprob == position[41].logprob


class NaNOnRequest(AdapterLogitsProcessor):
    """Breaks the logits of requests that ask for it."""

    def new_req_logits_processor(self, params: SamplingParams):
        if not (params.extra_args or {}).get("break"):
            return None

        def spoil(output_ids, logits):
            logits[:] = math.nan
            return logits

        return spoil


def test_a_request_whose_logits_are_nan_ends_with_an_error_and_its_neighbours_go_on(tiny):
    """NaN logits: the engine died, or emitted token 0 for ever."""
    llm = tiny(logits_processors=[NaNOnRequest])
    good = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    bad = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, extra_args={"break": True})
    alone = tokens(llm, [5, 6, 7], temperature=0, max_tokens=8, ignore_eos=True)
    outputs = llm.generate([[5, 6, 7]] * 3, [good, bad, good], use_tqdm=False)
    assert [output.outputs[0].finish_reason for output in outputs] == ["length", "error", "length"]
    assert "NaN" in str(outputs[1].outputs[0].stop_reason)
    assert list(outputs[0].outputs[0].token_ids) == list(outputs[2].outputs[0].token_ids) == alone
    assert tokens(llm, [5, 6, 7], temperature=0, max_tokens=8, ignore_eos=True) == alone  # its row is clean again
