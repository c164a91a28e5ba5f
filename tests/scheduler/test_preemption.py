"""Preemption: who gives way, who comes back when, and that nothing thrashes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo.scheduler.request import RequestStatus
from octavo.types.messages import EngineCoreEventType
from octavo.types.step import ModelRunnerOutput
from tests.scheduler.fake_executor import FakeExecutor, solo_run
from tests.scheduler.helpers import (
    answer,
    assert_all_free,
    check_invariants,
    full,
    kv_config,
    make_request,
    make_scheduler,
    run_to_end,
    step,
)


def crowded(**fields):
    """Two requests that fill a pool of 8 blocks: a with 17 tokens, b with 12."""
    scheduler = make_scheduler(9, prefix_caching=False, **fields)
    scheduler.add_request(make_request("a", 16, max_tokens=8, priority=1))
    scheduler.add_request(make_request("b", 11, max_tokens=8, priority=0, arrival_time=1.0))
    step(scheduler)
    return scheduler


def run_until_preemption(scheduler):
    for _ in range(20):
        output, _ = step(scheduler)
        if output.preempted_request_ids:
            return output
    raise AssertionError("nothing was preempted")


def test_last_come_gives_way_and_waits_at_the_head():
    scheduler = crowded()
    scheduler.add_request(make_request("later", 8))
    output = run_until_preemption(scheduler)
    assert output.preempted_request_ids == ["b"]
    assert [request.request_id for request in scheduler.waiting] == ["b", "later"]
    assert not output.scheduled_new_requests, "nobody is admitted in the step of a preemption"
    assert scheduler.requests["b"].num_computed_tokens == 0
    assert scheduler.make_stats().num_preemptions == 1


def test_worst_priority_gives_way_though_it_came_first():
    """B082: preempting a request that the same step had already scheduled crashed."""
    scheduler = crowded(policy="priority")
    output = run_until_preemption(scheduler)
    assert output.preempted_request_ids == ["a"]
    assert list(output.num_scheduled_tokens) == ["b"], "what a was given in this step is taken back"
    assert output.total_num_scheduled_tokens == 1


def test_what_a_resumed_request_finds_of_its_own_does_not_count_as_cached():
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 16))
    assert step(scheduler)[1]["a"].num_cached_tokens == 0
    scheduler._preempt(0, None)
    output, messages = step(scheduler)
    assert output.num_scheduled_tokens == {"a": 1}, "all 16 tokens of the prompt are still in the cache"
    assert messages["a"].num_cached_tokens == 0


def test_who_stands_behind_a_request_that_gives_way_itself_still_runs():
    """The step ended at the victim, and better requests behind it lost their turn."""
    scheduler = make_scheduler(6, prefix_caching=False, policy="priority")
    scheduler.add_request(make_request("a", 8, priority=1))
    scheduler.add_request(make_request("b", 9, priority=0))
    step(scheduler)
    scheduler.running.sort(key=lambda request: request.request_id)
    output, _ = step(scheduler)  # a needs a third block, and all five are taken
    assert output.preempted_request_ids == ["a"]
    assert output.num_scheduled_tokens == {"b": 1}


def test_tokens_of_a_victim_go_to_the_others_of_the_same_step():
    scheduler = make_scheduler(6, prefix_caching=False, policy="priority")
    for name, length, priority in (("a", 5, 2), ("b", 4, 0), ("c", 5, 1)):
        scheduler.add_request(make_request(name, length, priority=priority))
    step(scheduler)
    scheduler.running.sort(key=lambda request: request.request_id)
    scheduler.config = replace(scheduler.config, max_num_batched_tokens=2)
    output, _ = step(scheduler)  # a is scheduled first, then b needs its block
    assert output.preempted_request_ids == ["a"]
    assert output.num_scheduled_tokens == {"b": 1, "c": 1}


def test_blocks_that_a_victim_was_to_fill_in_this_step_are_not_found():
    """They were never computed: a hit on them would read what the blocks held before."""
    scheduler = make_scheduler(6, budget=10, policy="priority")
    scheduler.add_request(make_request("b", 4, max_tokens=2, priority=0))
    scheduler.add_request(make_request("a", 14, max_tokens=1, priority=1))
    assert step(scheduler)[0].num_scheduled_tokens == {"b": 4, "a": 6}
    scheduler.running.reverse()
    output, _ = step(scheduler)  # a is given 8 tokens, then b needs a block
    assert output.preempted_request_ids == ["a"]
    resumed, _ = step(scheduler)
    assert resumed.scheduled_new_requests[0].num_computed_tokens == 4


def test_preempted_request_is_sent_whole_and_keeps_its_output():
    scheduler = crowded()
    run_until_preemption(scheduler)
    resumed = None
    outputs = {"a": 0, "b": 0}
    while scheduler.has_unfinished_requests():
        output, messages = step(scheduler)
        for name, message in messages.items():
            outputs[name] += len(message.new_token_ids)
            if any(event.type is EngineCoreEventType.PREEMPTED for event in message.events):
                assert name == "b"
        if output.scheduled_new_requests:
            (resumed,) = output.scheduled_new_requests
            assert len(resumed.token_ids) > 11
            assert resumed.num_computed_tokens == 0
            assert resumed.num_prompt_tokens == 11
    assert resumed is not None
    assert resumed.request_id == "b"
    assert_all_free(scheduler)


def test_preempted_prefix_blocks_are_found_again():
    scheduler = make_scheduler(9)
    scheduler.add_request(make_request("a", 16, max_tokens=2))
    scheduler.add_request(make_request("b", 11, max_tokens=8))
    step(scheduler)
    scheduler._preempt(1, None)
    scheduler.finish_requests(["a"], RequestStatus.FINISHED_ABORTED)
    output, _ = step(scheduler)
    assert output.num_scheduled_tokens == {"b": 4}
    assert output.scheduled_new_requests[0].num_computed_tokens == 8
    assert scheduler.make_stats().prefix_cache.hits == 0, "a second prefill is not a user's hit"


def run_workload(num_blocks, lengths, max_tokens, budget=16, **fields):
    """Run requests on the checking executor; return (tokens by request, steps, preemptions)."""
    scheduler = make_scheduler(num_blocks, budget=budget, max_model_len=400, **fields)
    executor = FakeExecutor(kv_config(num_blocks, full()).groups, num_blocks, {})
    for i, length in enumerate(lengths):
        scheduler.add_request(make_request(f"r{i}", [(i + j) % 13 for j in range(length)], max_tokens, seed=i))
    tokens: dict[str, list[int]] = {}
    num_steps = 0
    while scheduler.has_unfinished_requests():
        output = scheduler.schedule()
        for message in scheduler.update_from_output(output, executor.execute(output)).outputs:
            tokens.setdefault(message.request_id, []).extend(message.new_token_ids)
        check_invariants(scheduler)
        num_steps += 1
        assert num_steps < 5000, "requests starve"
    assert_all_free(scheduler)
    return tokens, num_steps, scheduler.make_stats().num_preemptions


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("reserve_full_sequence", [True, False])
def test_preempted_output_is_complete(prefix_caching, reserve_full_sequence):
    """B079: a preempted request must give what it would have given with ample memory."""
    lengths = [9, 14, 23, 8, 17, 30, 11, 5]
    fields = {"prefix_caching": prefix_caching, "reserve_full_sequence": reserve_full_sequence}
    tight, _, num_preemptions = run_workload(24, lengths, 24, **fields)
    ample, _, none = run_workload(400, lengths, 24, **fields)
    assert num_preemptions > 0
    assert none == 0
    assert tight == ample
    for i, length in enumerate(lengths):
        assert tight[f"r{i}"] == solo_run([(i + j) % 13 for j in range(length)], i, None, 24, 400)[0]


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("reserve_full_sequence", [True, False])
def test_long_prompt_does_not_thrash(prefix_caching, reserve_full_sequence):
    """B081: a long prompt that lost its blocks must not resume, chunk by chunk, into the same shortage each step."""
    lengths = [20, 20, 20, 200]
    fields = {"prefix_caching": prefix_caching, "reserve_full_sequence": reserve_full_sequence}
    tight = run_workload(66, lengths, 60, **fields)
    ample = run_workload(400, lengths, 60, **fields)
    assert tight[0] == ample[0]
    assert tight[2] <= 4
    assert tight[1] <= 2 * ample[1]


def test_resumed_request_has_room_to_go_on():
    """Preemptions stay far below one per request and block."""
    _, _, num_preemptions = run_workload(40, [16] * 12, 64, budget=64, max_num_seqs=12)
    assert 0 < num_preemptions <= 24


def test_prompts_in_progress_are_promised_their_blocks():
    """Two prompts that fit alone but not together must not both start and push each other out."""
    scheduler = make_scheduler(
        21, budget=8, max_model_len=80, long_prefill_token_threshold=4, max_long_partial_prefills=2
    )
    scheduler.add_request(make_request("a", 48, max_tokens=1))
    scheduler.add_request(make_request("b", 48, max_tokens=1))
    run_to_end(scheduler)
    assert scheduler.make_stats().num_preemptions == 0


def test_watermark_keeps_blocks_free_only_while_something_runs():
    scheduler = make_scheduler(11, watermark=0.3)
    scheduler.add_request(make_request("a", 36, max_tokens=2))
    scheduler.add_request(make_request("b", 3, max_tokens=1))
    assert list(step(scheduler)[0].num_scheduled_tokens) == ["a"]
    assert list(step(scheduler)[0].num_scheduled_tokens) == ["a"]
    assert list(step(scheduler)[0].num_scheduled_tokens) == ["b"]


def test_large_request_at_the_head_is_not_overtaken_for_ever():
    scheduler = make_scheduler(21, max_model_len=80)
    scheduler.add_request(make_request("first", 40, max_tokens=3))
    scheduler.add_request(make_request("large", 60, max_tokens=1))
    scheduler.add_request(make_request("small", 4, max_tokens=1))
    order = [name for output in run_to_end(scheduler) for name in output.num_scheduled_tokens]
    assert order.index("large") < order.index("small")


def test_token_that_arrives_after_its_request_was_preempted_is_kept():
    """With several batches in flight the request waits for it, and goes on from there."""
    scheduler = make_scheduler(prefix_caching=False)
    scheduler.add_request(make_request("a", 8, max_tokens=3))
    first = scheduler.schedule()
    results = answer(scheduler, first)
    scheduler.reset_prefix_cache(reset_running_requests=True)
    second = scheduler.schedule()
    assert second.preempted_request_ids == ["a"]
    assert not second.num_scheduled_tokens, "its token is still on the way"
    assert scheduler.update_from_output(first, results).outputs[0].new_token_ids == [7]
    scheduler.update_from_output(second, answer(scheduler, second))
    third, _ = step(scheduler)
    assert third.num_scheduled_tokens == {"a": 9}
    run_to_end(scheduler)
    assert_all_free(scheduler)


def test_rejected_drafts_of_a_preempted_request_change_nothing():
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 4, max_tokens=9))
    output = scheduler.schedule()
    scheduler.update_from_output(
        output, ModelRunnerOutput(sampled_token_ids={"a": [7]}, draft_token_ids={"a": [1, 2, 3]})
    )
    output = scheduler.schedule()
    assert output.scheduled_spec_tokens == {"a": [1, 2, 3]}
    scheduler.reset_prefix_cache(reset_running_requests=True)
    scheduler.update_from_output(
        output, ModelRunnerOutput(sampled_token_ids={"a": [1, 8]}, draft_token_ids={"a": [1, 2, 3]})
    )
    check_invariants(scheduler)
    assert step(scheduler)[0].num_scheduled_tokens == {"a": 7}
