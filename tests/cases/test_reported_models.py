"""Reported faults about models, seen from the outside: sliding windows under chunks and a warm cache."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from octavo import LLM, SamplingParams

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def oracle(tiny_sliding_folder):
    """Return the log-softmax of Transformers' logits after each token of a sequence."""
    model = AutoModelForCausalLM.from_pretrained(tiny_sliding_folder, dtype=torch.float32)

    def logprobs(token_ids: list[int]) -> np.ndarray:
        with torch.no_grad():
            return torch.log_softmax(model(torch.tensor([token_ids])).logits[0], dim=-1).numpy()

    return logprobs


@pytest.mark.parametrize("chunk", [7, 16, 512])
@pytest.mark.parametrize("block_size", [8, 16])
def test_past_the_window_everything_equals_transformers(tiny_sliding_folder, oracle, chunk, block_size):
    """B101: garbage after the window (20 tokens here, no multiple of a block) in chunks or with a warm cache."""
    llm = LLM(
        str(tiny_sliding_folder),
        max_model_len=128,
        kv_cache_memory_bytes=2**24,
        max_num_batched_tokens=chunk,
        max_num_seqs=4,
        block_size=block_size,
    )
    (shared,) = [random.Random(1).choices(range(3, 320), k=80)]
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=1)
    for length in (15, 19, 20, 21, 32, 33, 47, 64, 80):
        for cache in ("cold", "warm"):
            (output,) = llm.generate([shared[:length]], params, use_tqdm=False)
            completion = output.outputs[0]
            expected = oracle([*shared[:length], *completion.token_ids])
            for index, token_id in enumerate(completion.token_ids):
                row = expected[length - 1 + index]
                got = completion.logprobs[index][token_id].logprob
                assert got == pytest.approx(row[token_id], abs=1e-4), (length, cache, index)
                assert row[token_id] >= row.max() - 1e-4, (length, cache, index)  # the likeliest, or a tie
        assert output.num_cached_tokens == (length - 1) // block_size * block_size
