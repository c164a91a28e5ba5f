"""The runner against the scheduler's messages: grammar masks, rows that come back, failing rows."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from octavo.config import EngineArgs
from octavo.engine.resolve import resolve
from octavo.kv_cache.planning import plan_kv_cache
from octavo.ops.select import select_ops
from octavo.types.sampling_params import SamplingParams
from octavo.types.step import CachedRequestData, GrammarOutput, NewRequestData, SchedulerOutput
from octavo.worker.model_runner import ModelRunner
from tests.tiny_models import VOCAB_SIZE, llama_config, write_tiny_model

NUM_WORDS = -(-VOCAB_SIZE // 32)


@pytest.fixture
def runner(tmp_path_factory):
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny"), llama_config())
    resolved = resolve(EngineArgs(model=str(folder), max_num_seqs=2, max_model_len=64))
    runner = ModelRunner(resolved.config, select_ops())
    runner.load_model(resolved.checkpoint)
    plan = plan_kv_cache(runner.kv_cache_specs(), 2**20, resolved.config.cache, 64, 64)
    runner.initialize_kv_cache(plan, 64)
    return runner


def new_request(request_id: str, token_ids: list[int], blocks: list[int], **params) -> NewRequestData:
    return NewRequestData(
        request_id=request_id,
        token_ids=token_ids,
        num_prompt_tokens=len(token_ids),
        sampling_params=SamplingParams(temperature=0, **params),
        seed=0,
        eos_token_id=None,
        stop_token_ids=[],
        block_ids=(blocks,),
        num_computed_tokens=0,
    )


def run(runner, new=(), cached=None, grammar=None, **changes):
    """Run one step: whole prompts of `new`, one token of each of `cached` (request id -> tokens computed)."""
    cached = cached or {}
    counts = {request.request_id: len(request.token_ids) for request in new} | dict.fromkeys(cached, 1)
    columns = CachedRequestData(list(cached), [None] * len(cached), list(cached.values()))
    step = SchedulerOutput(list(new), columns, counts, sum(counts.values()), **changes)
    output = runner.execute_model(step)
    return output if output is not None else runner.sample_tokens(grammar)


def test_a_grammar_mask_binds_its_own_request_and_no_other(runner):
    free = run(runner, [new_request("a", [5, 6], [1]), new_request("b", [7, 8], [2])]).sampled_token_ids
    forced = (free["a"][0] + 1) % VOCAB_SIZE
    mask = np.zeros(NUM_WORDS, np.uint32)
    mask[forced // 32] = 1 << (forced % 32)
    output = run(
        runner,
        [new_request("b2", [7, 8], [2]), new_request("a2", [5, 6], [1])],
        grammar=GrammarOutput(["a2"], mask.tobytes()),
        finished_request_ids=["a", "b"],
    )
    assert output.sampled_token_ids == {"a2": [forced], "b2": free["b"]}


def test_a_preempted_request_that_returns_with_its_output_goes_on_as_if_nothing_had_been(runner):
    first = run(runner, [new_request("a", [5, 6, 7], [1])]).sampled_token_ids["a"][0]
    second = run(runner, cached={"a": 3}).sampled_token_ids["a"][0]
    returned = new_request("a", [5, 6, 7, first], [3])
    returned.num_prompt_tokens = 3
    assert run(runner, [returned], preempted_request_ids=["a"]).sampled_token_ids["a"] == [second]


def test_rows_given_up_and_taken_in_one_step_do_not_mix(runner):
    alone = run(runner, [new_request("x", [9, 10, 11], [1])]).sampled_token_ids["x"]
    run(runner, [new_request("y", [1, 2], [2])])  # both rows are taken now
    output = run(runner, [new_request("z", [9, 10, 11], [3])], finished_request_ids=["x"])
    assert output.sampled_token_ids["z"] == alone


def test_nan_logits_end_their_own_request_only(runner):
    expected = run(runner, [new_request("a", [5, 6], [1])]).sampled_token_ids["a"]
    bound = runner._bound

    def poisoned(hidden, slots):
        logits = bound.logits(hidden, slots)
        logits[0] = np.nan
        return logits

    runner._bound = dataclasses.replace(bound, logits=poisoned)
    output = run(runner, [new_request("bad", [7], [2]), new_request("good", [5, 6], [3])], finished_request_ids=["a"])
    assert output.sampled_token_ids == {"good": expected}
    assert set(output.failures) == {"bad"} and "NaN" in output.failures["bad"]


@pytest.mark.native_ops
def test_prompt_logprobs_are_the_same_in_one_piece_and_in_pieces(runner):
    tokens = list(range(3, 40))
    whole = run(runner, [new_request("whole", tokens, [1, 2, 3], prompt_logprobs=2)]).prompt_logprobs["whole"]
    step = SchedulerOutput(
        [new_request("pieces", tokens, [4, 5, 6], prompt_logprobs=2)],
        num_scheduled_tokens={"pieces": 5},
        total_num_scheduled_tokens=5,
    )
    runner.execute_model(step)
    assert runner.sample_tokens(None).prompt_logprobs == {}
    step = SchedulerOutput(
        scheduled_cached_requests=CachedRequestData(["pieces"], [None], [5]),
        num_scheduled_tokens={"pieces": 32},
        total_num_scheduled_tokens=32,
    )
    runner.execute_model(step)
    assert runner.sample_tokens(None).prompt_logprobs == {"pieces": whole}
    assert whole.num_positions == len(tokens) - 1
