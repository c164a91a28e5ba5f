"""Reported faults about log-probabilities: bytes, ranks, prompt log-probabilities, what they are taken from."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from octavo import LLM, SamplingParams
from tests.cases.conftest import run

pytestmark = pytest.mark.model

PROMPT = "The quick brown fox jumps over the lazy dog. The quick brown fox"


def forced(llm, text: str) -> list:
    """Return the log-probabilities of exactly this text as an answer, one entry a token."""
    tokenizer = llm.get_tokenizer()
    prefix = tokenizer.encode("Say: ")
    ids = tokenizer.encode(text, add_special_tokens=False)
    output = run(llm, {"prompt_token_ids": prefix + ids}, max_tokens=1, temperature=0, prompt_logprobs=0)
    assert output.prompt_logprobs is not None
    positions = output.prompt_logprobs[len(prefix) :]
    return [position[token_id] for position, token_id in zip(positions, ids, strict=True)]


@pytest.mark.parametrize("text", ["好的漢字", "🐎🏇🦄", "naïve Žluťoučký"])
def test_tokens_in_logprobs_are_readable_and_join_to_the_text(smol, text):
    """B016, B018: tokens were shown in the byte-level alphabet, and partial characters as U+FFFD."""
    tokens = [one.decoded_token for one in forced(smol, text)]
    assert "".join(tokens) == text
    assert all("\ufffd" not in token for token in tokens)


def test_true_bytes_of_each_token_are_known(smol):
    """B018: all four parts of an emoji were reported as the bytes of U+FFFD."""
    tokenizer = smol.get_tokenizer()
    ids = tokenizer.encode("🐎", add_special_tokens=False)
    assert len(ids) > 1
    assert b"".join(tokenizer.token_bytes(token_id) for token_id in ids) == "🐎".encode()
    assert all(tokenizer.token_bytes(token_id) != b"\xef\xbf\xbd" for token_id in ids)


@pytest.mark.parametrize(("wanted", "count"), [(0, {1}), (3, {3, 4}), (True, {1, 2})])
def test_the_sampled_token_is_always_there(smol, wanted, count):
    """B019: logprobs without a number of candidates were refused; 0 means the sampled token alone."""
    completion = run(smol, PROMPT, temperature=1, seed=5, max_tokens=6, logprobs=wanted).outputs[0]
    assert completion.logprobs is not None and len(completion.logprobs) == len(completion.token_ids) == 6
    for position, token_id in zip(completion.logprobs, completion.token_ids, strict=True):
        assert len(position) in count and token_id in position
    total = sum(
        position[token_id].logprob for position, token_id in zip(completion.logprobs, completion.token_ids, strict=True)
    )
    assert completion.cumulative_logprob == pytest.approx(total)


def test_ranks_count_from_one_and_order_the_candidates(smol):
    """B016: rank 1 is the likeliest."""
    completion = run(smol, PROMPT, temperature=2, seed=1, max_tokens=8, logprobs=5).outputs[0]
    for position, token_id in zip(completion.logprobs, completion.token_ids, strict=True):
        by_rank = sorted(position.values(), key=lambda one: one.rank)
        assert [one.logprob for one in by_rank] == sorted((one.logprob for one in by_rank), reverse=True)
        assert [one.rank for one in by_rank[:5]] == [1, 2, 3, 4, 5]
        assert position[token_id].rank >= 1


def test_tokens_of_the_prompt_join_to_the_prompt(smol):
    """B021: the prompt's token texts accumulated."""
    text = "\n1. Carol\n\n2. naïve 🐎 x"
    ids = smol.get_tokenizer().encode(text)
    output = run(smol, {"prompt_token_ids": ids}, max_tokens=1, prompt_logprobs=1)
    assert output.prompt_logprobs[0] is None
    rest = [
        position[token_id].decoded_token for position, token_id in zip(output.prompt_logprobs[1:], ids[1:], strict=True)
    ]
    assert smol.get_tokenizer().decode(ids[:1]) + "".join(rest) == text


def test_prompt_logprobs_are_the_log_softmax_of_the_models_logits(tiny_folder):
    """B022: only the generated token's log-probability came back; values are compared with Transformers."""
    llm = LLM(
        str(tiny_folder), max_model_len=256, kv_cache_memory_bytes=2**24, max_num_batched_tokens=16, max_num_seqs=4
    )
    ids = [5, 77, 200, 31, 9, 150, 77, 3, 250, 18, 44, 7, 90, 91, 92, 10, 11, 12, 300, 299]
    output = run(llm, {"prompt_token_ids": ids}, max_tokens=1, prompt_logprobs=2)
    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    with torch.no_grad():
        expected = torch.log_softmax(model(torch.tensor([ids])).logits[0], dim=-1).numpy()
    assert len(output.prompt_logprobs) == len(ids) and output.prompt_logprobs[0] is None
    for position, (token_id, row) in enumerate(zip(ids[1:], expected, strict=False), start=1):
        entry = output.prompt_logprobs[position]
        assert entry[token_id].logprob == pytest.approx(row[token_id], abs=1e-4)
        assert entry[token_id].rank == 1 + int((row > row[token_id]).sum())
        best = max(entry.values(), key=lambda one: one.logprob)
        assert best.logprob == pytest.approx(row.max(), abs=1e-4)


@pytest.mark.parametrize("num_tokens", [15, 16, 17, 33, 48])
def test_prompt_logprobs_are_the_same_with_a_warm_prefix_cache(smol, num_tokens):
    """B024: the sizes did not match and the engine died."""
    ids = (smol.get_tokenizer().encode(PROMPT) * 4)[:num_tokens]
    prompt = {"prompt_token_ids": ids, "cache_salt": f"b024-{num_tokens}"}
    cold = run(smol, prompt, temperature=0, max_tokens=2, prompt_logprobs=1)
    run(smol, prompt, temperature=0, max_tokens=2)  # without prompt logprobs: this one may take cached blocks
    warm = run(smol, prompt, temperature=0, max_tokens=2, prompt_logprobs=1)
    assert len(cold.prompt_logprobs) == num_tokens
    assert warm.prompt_logprobs == cold.prompt_logprobs
    assert list(warm.outputs[0].token_ids) == list(cold.outputs[0].token_ids)


def test_raw_logprobs_do_not_depend_on_sampling_parameters(smol):
    """B026: top_p=0.1 left one candidate with log-probability 0."""
    settings = [
        {"temperature": 0},
        {"temperature": 1, "seed": 1},
        {"temperature": 2, "seed": 1},
        {"temperature": 1, "top_p": 0.1, "seed": 1},
        {"temperature": 1, "top_k": 1},
        {"temperature": 0, "repetition_penalty": 1.5, "logit_bias": {5: 50}},
    ]
    seen = []
    for setting in settings:
        (position,) = run(smol, PROMPT, max_tokens=1, logprobs=3, **setting).outputs[0].logprobs
        seen.append({token_id: one for token_id, one in position.items() if one.rank <= 3})
    assert len(seen[0]) == 3 and all(one == seen[0] for one in seen)
    assert max(one.logprob for one in seen[0].values()) < 0


def test_processed_logprobs_are_offered_as_a_mode(tiny):
    """B026: what is documented as processed is processed."""
    llm = tiny(logprobs_mode="processed_logprobs")
    params = SamplingParams(temperature=1, seed=1, top_k=2, max_tokens=1, logprobs=2)
    (position,) = llm.generate({"prompt_token_ids": [5, 6, 7]}, params, use_tqdm=False)[0].outputs[0].logprobs
    assert np.exp([one.logprob for one in position.values()]).sum() == pytest.approx(1, abs=1e-5)


def test_all_of_the_vocabulary_on_request(tiny):
    """logprobs=-1: a distribution, so it sums to one."""
    llm = tiny(max_logprobs=-1)
    params = SamplingParams(temperature=0, max_tokens=2, logprobs=-1)
    for position in llm.generate({"prompt_token_ids": [5, 6, 7]}, params, use_tqdm=False)[0].outputs[0].logprobs:
        assert len(position) == llm.model_config.vocab_size
        assert np.exp([one.logprob for one in position.values()]).sum() == pytest.approx(1, abs=1e-4)
