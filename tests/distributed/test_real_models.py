"""Real models over real worker processes: tokens and log-probabilities of one process, to the last bit."""

from __future__ import annotations

from typing import Any

import pytest

from octavo import LLM, SamplingParams

pytestmark = [pytest.mark.model, pytest.mark.native_ops]

PROMPTS = ("Hello, my name is", "def fibonacci(n):", "The capital of France is", "1 2 3 4 5")
PARAMS = [
    SamplingParams(temperature=t, seed=7, max_tokens=24, logprobs=2, ignore_eos=True) for t in (0.0, 0.0, 1.0, 1.0)
]


def generate(model: str, **options: Any) -> list[tuple[list[int], list[float]]]:
    llm = LLM(model, kv_cache_memory_bytes=2**26, max_model_len=256, max_num_seqs=4, **options)
    results = []
    for output in llm.generate(list(PROMPTS), PARAMS, use_tqdm=False):
        completion = output.outputs[0]
        assert completion.logprobs is not None
        values = [entry.logprob for position in completion.logprobs for entry in position.values()]
        results.append((list(completion.token_ids), values))
    return results


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        ("smollm2-135m-instruct", {"tensor_parallel_size": 2}),  # 9 heads: 3 and 6
        ("smollm2-135m-instruct", {"pipeline_parallel_size": 3}),
        ("gemma-3-270m", {"tensor_parallel_size": 2}),  # one key/value head for both, Q4_K, Q5_0, Q6_K and Q8_0
        ("gemma-3-270m", {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}),  # sliding windows over two stages
    ],
    ids=str,
)
def test_workers_give_the_results_of_one_process(model: str, sizes: dict[str, int], monkeypatch) -> None:
    monkeypatch.setenv("OCTAVO_NUM_THREADS", "1")  # of each
    assert generate(model, **sizes) == generate(model)
