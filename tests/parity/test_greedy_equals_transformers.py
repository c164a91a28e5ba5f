"""Greedy tokens equal Transformers' with the same dequantised weights, however the work is cut.

By default a sample runs; OCTAVO_FULL_PARITY=1 runs 64 tokens of all 30 prompts at every chunk size and batch size,
with a cold and a warm prefix cache, and prints every position where float32 rounding decided between two ids.
"""

from __future__ import annotations

import os

import pytest

from octavo import LLM, SamplingParams
from octavo.loader.catalog import pull
from tests.parity.prompts import LONG, PROMPTS, SHORT
from tests.parity.reference import Continuation, TransformersReference

pytestmark = pytest.mark.model

FULL = os.environ.get("OCTAVO_FULL_PARITY") == "1"
MODELS = ["smollm2-135m-instruct", "gemma-3-270m"]
CHUNKS = [7, 16, 512]
BATCHES = [1, 5, 16]
NUM_TOKENS = 64 if FULL else 24
SAMPLE = PROMPTS if FULL else [*SHORT[:12:3], SHORT[13], LONG[0]]
# Two ids whose logits differ by less than this may change places between two correct float32 implementations.
TIE_MARGIN = 1e-3


@pytest.fixture(scope="module", params=MODELS)
def oracle(request):
    """Return (model name, prompts as ids, Transformers' continuations)."""
    llm = LLM(model=request.param, compute="exact", kv_cache_memory_bytes=2**27, max_model_len=2048)
    tokenizer = llm.get_tokenizer()
    prompts = [tokenizer.encode(prompt) for prompt in SAMPLE]
    reference = TransformersReference(pull(request.param))
    return request.param, prompts, [reference.continue_greedily(prompt, NUM_TOKENS) for prompt in prompts]


def check(expected: Continuation, token_ids: list[int], where: str) -> None:
    for position, (wanted, margin) in enumerate(zip(expected.token_ids, expected.margins, strict=True)):
        if token_ids[position] != wanted:
            assert margin < TIE_MARGIN, f"{where}: token {position} is {token_ids[position]}, not {wanted} ({margin=})"
            print(f"tie in float32: {where}, token {position}, {margin=:.2e}")
            return  # another token was as good, and what follows it is another text


@pytest.mark.parametrize("chunk", CHUNKS if FULL else [7, 512])
def test_greedy_tokens(oracle, chunk):
    model, prompts, expected = oracle
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    for batch in BATCHES if FULL else [1, 5]:
        llm = LLM(
            model=model,
            compute="exact",
            max_model_len=2048,
            max_num_seqs=batch,
            max_num_batched_tokens=max(chunk, batch),
            kv_cache_memory_bytes=2**29,
        )
        for cache in ("cold", "warm"):
            outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
            for index, (output, wanted) in enumerate(zip(outputs, expected, strict=True)):
                where = f"{model}, prompt {index}, {chunk=}, {batch=}, {cache} cache"
                check(wanted, list(output.outputs[0].token_ids), where)
            warm = [output.num_cached_tokens or 0 for output in outputs if len(output.prompt_token_ids) > 32]
            assert cache == "cold" or all(warm), "the second run must hit the prefix cache"


def test_the_sample_reaches_past_the_sliding_window(oracle):
    _, prompts, _ = oracle
    assert max(map(len, prompts)) > 512
