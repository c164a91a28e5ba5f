"""Reported faults about scheduling and the KV cache: preemption, priorities, prefix hits, fairness, neighbours."""

from __future__ import annotations

import random

import pytest

from octavo import LLM, SamplingParams
from tests.cases.conftest import metric, run, stream, tokens

pytestmark = pytest.mark.model


def random_prompts(count: int, length: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(3, 320) for _ in range(length)] for _ in range(count)]


GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)


def answers(llm: LLM, prompts, params) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params, use_tqdm=False)]


def num_steps(llm: LLM, prompts, params) -> int:
    """Return how many steps the engine takes for these prompts."""
    engine = llm.llm_engine
    for index, prompt in enumerate(prompts):
        engine.add_request(f"steps-{index}", {"prompt_token_ids": prompt}, params)
    steps = 0
    while engine.has_unfinished_requests():
        engine.step()
        steps += 1
    return steps


def test_preempted_answers_are_whole_and_the_same(tiny):
    """B079: answers were incomplete after a preemption."""
    prompts = random_prompts(8, 20)
    ample = tiny()
    expected = answers(ample, prompts, GREEDY)
    assert metric(ample, "num_preemptions") == 0
    tight = tiny(num_gpu_blocks_override=24, block_size=8)
    assert answers(tight, prompts, GREEDY) == expected
    assert metric(tight, "num_preemptions") > 0


def test_preemptions_do_not_thrash(tiny):
    """B081: a long prompt was resumed and preempted in every step."""
    prompts = [*random_prompts(1, 120), *random_prompts(5, 20, seed=1)]
    ample = num_steps(tiny(max_num_batched_tokens=32, max_num_seqs=8), prompts, GREEDY)
    tight = tiny(max_num_batched_tokens=32, max_num_seqs=8, num_gpu_blocks_override=28, block_size=8)
    steps = num_steps(tight, prompts, GREEDY)
    assert metric(tight, "num_preemptions") < 3 * len(prompts)
    # the pool holds about one request at a time: the least that any schedule could need is each one's own tokens
    assert steps <= 2 * max(ample, len(prompts) * GREEDY.max_tokens)
    # nothing of the cache is lost on the way
    assert metric(tight, "kv_cache_usage_perc") == 0


def test_the_higher_priority_finishes_first_when_memory_is_short(tiny):
    """B082: an assertion failed when the victim had been scheduled in the same step."""
    for seed in range(4):
        llm = tiny(
            scheduling_policy="priority",
            num_gpu_blocks_override=20,
            block_size=8,
            max_num_batched_tokens=24,
            max_num_seqs=6,
        )
        prompts = random_prompts(6, 30, seed)
        priorities = random.Random(seed).sample(range(100), 6)
        expected = answers(tiny(), prompts, GREEDY)
        engine = llm.llm_engine
        for index, (prompt, priority) in enumerate(zip(prompts, priorities, strict=True)):
            engine.add_request(str(index), {"prompt_token_ids": prompt}, GREEDY, priority=priority)
        finished = []
        while engine.has_unfinished_requests():
            finished += [output for output in engine.step() if output.finished]
        assert {int(one.request_id): list(one.outputs[0].token_ids) for one in finished} == dict(enumerate(expected))
        assert int(finished[0].request_id) == priorities.index(min(priorities))
        assert int(finished[-1].request_id) == priorities.index(max(priorities))


@pytest.mark.native_ops
@pytest.mark.parametrize("folder", ["tiny_folder", "tiny_sliding_folder"])
def test_a_warm_cache_changes_nothing_for_any_length(folder, request):
    """B088: the path of a cache hit differed; lengths around the block size, same prompt and shared prefix."""
    path = str(request.getfixturevalue(folder))
    options = {"max_model_len": 128, "kv_cache_memory_bytes": 2**24, "block_size": 16}
    cached, uncached = LLM(path, **options), LLM(path, enable_prefix_caching=False, **options)
    (shared,) = random_prompts(1, 60)
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=1)
    for length in range(15, 50):
        prompts = [shared[:length], [*shared[: length - 3], 4, 5, 6]]
        for prompt in prompts:
            cold, warm = (llm.generate([prompt], params, use_tqdm=False)[0].outputs[0] for llm in (uncached, cached))
            assert list(cold.token_ids) == list(warm.token_ids), length
            assert cold.logprobs == warm.logprobs, length
    assert metric(cached, "prefix_cache_hits") > 0 and metric(uncached, "prefix_cache_hits") == 0


@pytest.mark.parametrize(("length", "cached"), [(32, 16), (33, 32), (15, 0), (16, 0), (17, 16)])
def test_cached_tokens_are_counted_and_the_last_token_is_always_computed(tiny, length, cached):
    """B089: no hits were reported."""
    llm = tiny(block_size=16)
    (prompt,) = random_prompts(1, length)
    first, second = (run(llm, prompt, temperature=0, max_tokens=1) for _ in range(2))
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, cached)


def test_a_salt_keeps_caches_apart(tiny):
    """B085's kind: a cache entry must belong to everything that it was computed from."""
    llm = tiny(block_size=16)
    (prompt,) = random_prompts(1, 40)

    def hits(salt: str | None) -> int:
        extra = {} if salt is None else {"cache_salt": salt}
        return run(llm, {"prompt_token_ids": prompt, **extra}, temperature=0, max_tokens=1).num_cached_tokens

    assert [hits(salt) for salt in ("a", "a", "b", None, None)] == [0, 32, 0, 0, 32]


def test_a_short_prompt_does_not_wait_for_a_long_one(tiny):
    """B112: the short prompt's first token came after the whole long prefill."""
    llm = tiny(max_num_batched_tokens=32, max_num_seqs=4)
    engine = llm.llm_engine
    long_prompt, short_prompt = random_prompts(1, 200)[0], [5, 6, 7, 8, 9]
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    engine.add_request("long", {"prompt_token_ids": long_prompt}, params)
    engine.step()
    engine.add_request("short", {"prompt_token_ids": short_prompt}, params)
    order = []
    steps_to_short = 0
    while engine.has_unfinished_requests():
        outputs = engine.step()
        steps_to_short += "short" not in order
        order += [output.request_id for output in outputs if output.request_id not in order]
    assert order == ["short", "long"]
    assert steps_to_short <= 2


@pytest.mark.native_ops
@pytest.mark.parametrize("folder", ["tiny_folder", "tiny_sliding_folder"])
def test_a_request_is_the_same_alone_and_in_any_company(folder, request):
    """B113: tokens or log-probabilities changed with the batch, the chunks or the cache."""
    path = str(request.getfixturevalue(folder))
    rng = random.Random(7)
    prompts = random_prompts(8, 60, seed=2)
    params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, logprobs=2)
    options = {"max_model_len": 128, "kv_cache_memory_bytes": 2**24}
    solo = LLM(path, enable_prefix_caching=False, **options)
    expected = [solo.generate([prompt], params, use_tqdm=False)[0].outputs[0] for prompt in prompts]
    for budget, caching in [(9, True), (16, False), (33, True), (512, False)]:
        llm = LLM(path, max_num_batched_tokens=budget, max_num_seqs=8, enable_prefix_caching=caching, **options)
        for _ in range(3):
            chosen = rng.sample(range(8), rng.randint(1, 8))
            crowd = llm.generate([prompts[i] for i in chosen], params, use_tqdm=False)
            for i, output in zip(chosen, crowd, strict=True):
                assert list(output.outputs[0].token_ids) == list(expected[i].token_ids)
                assert output.outputs[0].logprobs == expected[i].logprobs  # to the last bit


@pytest.mark.native_ops
def test_real_model_in_a_crowd_equals_solo(smol):
    """B113: the same on SmolLM2, streamed."""
    prompts = ["The capital of France is", "1, 2, 3,", "Once upon a time, in a land", "def f(x):", "a"]
    params = [SamplingParams(temperature=0.8, seed=i, max_tokens=12 + i) for i in range(len(prompts))]
    alone = [tokens(smol, prompt, temperature=0.8, seed=i, max_tokens=12 + i) for i, prompt in enumerate(prompts)]
    crowd = stream(smol, prompts, params)
    assert [[t for output in outputs for t in output.outputs[0].token_ids] for outputs in crowd] == alone


def test_an_aborted_request_leaves_nothing_behind(tiny):
    """B047's kind: aborted requests are counted, their blocks are free, the others go on."""
    llm = tiny(block_size=8)
    engine = llm.llm_engine
    prompts = random_prompts(6, 30)
    expected = answers(tiny(), prompts, GREEDY)
    for index, prompt in enumerate(prompts):
        engine.add_request(str(index), {"prompt_token_ids": prompt}, GREEDY)
    for _ in range(3):
        engine.step()
    engine.abort_request([str(index) for index in range(5)])
    finished = []
    while engine.has_unfinished_requests():
        finished += [output for output in engine.step() if output.finished and output.request_id == "5"]
    assert [list(output.outputs[0].token_ids) for output in finished] == expected[5:]
    aborted = [m.value for m in llm.get_metrics() if m.labels.get("finished_reason") == "abort"]
    assert aborted == [5]
    assert metric(llm, "num_requests_running") == 0 and metric(llm, "kv_cache_usage_perc") == 0
