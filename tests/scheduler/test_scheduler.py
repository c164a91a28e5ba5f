"""Steps: who gets how many tokens."""

from __future__ import annotations

import pytest

from octavo.errors import ConfigError, InvalidRequestError
from octavo.scheduler.admission import MAX_PASSED_OVER
from octavo.scheduler.request import RequestStatus
from octavo.types.messages import EngineCoreEventType, PackedLogprobs
from octavo.types.request import FinishReason
from octavo.types.sampling_params import SamplingParams
from octavo.types.step import ModelRunnerOutput
from tests.scheduler.helpers import (
    answer,
    assert_all_free,
    check_invariants,
    full,
    make_request,
    make_scheduler,
    run_to_end,
    sliding,
    step,
)


def counts(output):
    return output.num_scheduled_tokens


def test_prompt_then_one_token_a_step():
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 10, max_tokens=3))
    outputs = [step(scheduler) for _ in range(3)]
    assert [counts(output) for output, _ in outputs] == [{"a": 10}, {"a": 1}, {"a": 1}]
    assert [messages["a"].new_token_ids for _, messages in outputs] == [[7]] * 3
    assert outputs[2][1]["a"].finish_reason is FinishReason.LENGTH
    assert_all_free(scheduler)


def test_new_request_is_sent_whole_and_afterwards_only_changes():
    scheduler = make_scheduler()
    request = make_request("a", 7, max_tokens=3, seed=5, eos_token_id=2, stop_token_ids=[3])
    scheduler.add_request(request)
    (new,) = step(scheduler)[0].scheduled_new_requests
    assert (new.token_ids[:7], new.num_prompt_tokens, new.num_computed_tokens) == (request.all_token_ids[:7], 7, 0)
    assert (new.seed, new.eos_token_id, new.stop_token_ids, new.block_ids) == (5, 2, [3], ([1, 2],))
    output, _ = step(scheduler)
    assert not output.scheduled_new_requests
    cached = output.scheduled_cached_requests
    assert (cached.request_ids, cached.num_computed_tokens, cached.new_block_ids) == (["a"], [7], [None])
    assert step(scheduler)[0].scheduled_cached_requests.new_block_ids == [([3],)]


def test_running_requests_go_first_and_prompts_share_what_is_left():
    scheduler = make_scheduler(budget=10)
    scheduler.add_request(make_request("a", 5))
    step(scheduler)
    scheduler.add_request(make_request("b", 6))
    scheduler.add_request(make_request("c", 20))
    assert counts(step(scheduler)[0]) == {"a": 1, "b": 6, "c": 3}
    assert counts(step(scheduler)[0]) == {"a": 1, "b": 1, "c": 8}
    assert counts(step(scheduler)[0]) == {"a": 1, "b": 1, "c": 8}
    assert counts(step(scheduler)[0]) == {"b": 1, "c": 1}


def test_unfinished_prompt_gives_no_output():
    scheduler = make_scheduler(budget=4)
    scheduler.add_request(make_request("a", 9))
    assert step(scheduler)[1] == {}
    assert step(scheduler)[1] == {}
    assert step(scheduler)[1]["a"].new_token_ids == [7]


def test_max_num_seqs_bounds_running_requests():
    scheduler = make_scheduler(max_num_seqs=2)
    for name in "abc":
        scheduler.add_request(make_request(name, 4, max_tokens=2))
    assert set(counts(step(scheduler)[0])) == {"a", "b"}
    assert (len(scheduler.running), len(scheduler.waiting)) == (2, 1)
    assert set(counts(step(scheduler)[0])) == {"a", "b"}
    assert set(counts(step(scheduler)[0])) == {"c"}


def test_without_chunking_a_prompt_is_never_split():
    scheduler = make_scheduler(budget=30, max_model_len=30, enable_chunked_prefill=False)
    for name in "abc":
        scheduler.add_request(make_request(name, 14, max_tokens=2))
    assert counts(step(scheduler)[0]) == {"a": 14, "b": 14}
    assert counts(step(scheduler)[0]) == {"a": 1, "b": 1, "c": 14}


def test_without_chunking_a_budget_below_the_model_length_is_refused():
    with pytest.raises(ConfigError, match="max_num_batched_tokens=30"):
        make_scheduler(budget=30, max_model_len=32, enable_chunked_prefill=False)


# -- fairness ----------------------------------------------------------------------------------------------------------


def first_token_steps(scheduler, max_steps=300):
    """Run to the end; return the step in which each request got its first token."""
    first = {}
    for number in range(max_steps):
        for request_id in step(scheduler)[1]:
            first.setdefault(request_id, number)
        if not scheduler.has_unfinished_requests():
            return first
    raise AssertionError("requests starve")


def test_short_prompt_does_not_wait_for_a_long_one():
    """B112: the short prompt waited for the whole prefill of the long one."""
    scheduler = make_scheduler(600, budget=32, max_model_len=2100, long_prefill_token_threshold=16)
    scheduler.add_request(make_request("long", 2000))
    step(scheduler)
    scheduler.add_request(make_request("short", 5))
    first = first_token_steps(scheduler)
    assert first["short"] == 0
    assert first["long"] > 50


def test_short_prompts_pass_further_long_ones():
    """A second long prompt must not block the way while the first is computed."""
    scheduler = make_scheduler(600, budget=32, max_model_len=500, long_prefill_token_threshold=16)
    for name, length in (("long1", 400), ("long2", 400), ("short1", 5), ("short2", 5)):
        scheduler.add_request(make_request(name, length))
    first = first_token_steps(scheduler)
    assert first["short1"] == first["short2"] == 0
    assert first["long1"] < first["long2"]


def test_long_prompt_alone_gets_the_whole_budget():
    scheduler = make_scheduler(budget=32, long_prefill_token_threshold=8)
    scheduler.add_request(make_request("a", 64))
    assert [counts(step(scheduler)[0]) for _ in range(2)] == [{"a": 32}, {"a": 32}]


def test_number_of_partly_computed_prompts_is_bounded():
    scheduler = make_scheduler(budget=8, long_prefill_token_threshold=4, max_num_partial_prefills=1)
    scheduler.add_request(make_request("a", 12))
    scheduler.add_request(make_request("b", 12))
    scheduler.add_request(make_request("c", 3))
    assert counts(step(scheduler)[0]) == {"a": 4, "c": 3}
    assert counts(step(scheduler)[0]) == {"a": 4, "c": 1}
    assert counts(step(scheduler)[0]) == {"a": 4, "b": 3, "c": 1}


def test_passed_over_requests_keep_their_places():
    scheduler = make_scheduler(600, budget=32, max_model_len=500, long_prefill_token_threshold=16)
    for name in ("long1", "long2", "long3"):
        scheduler.add_request(make_request(name, 100))
    step(scheduler)
    assert [request.request_id for request in scheduler.waiting] == ["long2", "long3"]


def test_priority_decides_the_order_and_ties_are_harmless():
    """B031: equal priority and arrival made the queue compare requests and crash."""
    scheduler = make_scheduler(max_num_seqs=1, policy="priority")
    for name, priority in (("b", 1), ("a", 1), ("c", 0)):
        scheduler.add_request(make_request(name, 4, max_tokens=1, priority=priority))
    order = [next(iter(counts(output))) for output in run_to_end(scheduler)]
    assert order == ["c", "a", "b"]


# -- limits ------------------------------------------------------------------------------------------------------------


def test_prompt_one_below_the_limit_gives_one_token():
    """B048."""
    scheduler = make_scheduler(max_model_len=16)
    scheduler.add_request(make_request("a", 15, max_tokens=None))
    _, messages = step(scheduler)
    assert (messages["a"].new_token_ids, messages["a"].finish_reason) == ([7], FinishReason.LENGTH)


@pytest.mark.parametrize("length", [0, 16, 17])
def test_prompt_that_can_never_run_is_refused(length):
    scheduler = make_scheduler(max_model_len=16)
    with pytest.raises(InvalidRequestError, match=f"{length} tokens; expected 1 to 15"):
        scheduler.add_request(make_request("a", length))
    assert not scheduler.has_unfinished_requests()


def test_live_ids_are_unique_and_free_again_after_the_end():
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 4, max_tokens=1))
    with pytest.raises(InvalidRequestError, match="in use"):
        scheduler.add_request(make_request("a", 4))
    step(scheduler)
    scheduler.add_request(make_request("a", range(5), max_tokens=1))
    output, messages = step(scheduler)
    assert output.finished_request_ids == ["a"]
    assert counts(output) == {"a": 5}
    assert messages["a"].finish_reason is FinishReason.LENGTH


def test_sequence_ends_where_the_cache_ends():
    """A pool smaller than the model length must not leave the last request waiting for blocks for ever."""
    scheduler = make_scheduler(num_blocks=5, max_model_len=200)
    assert scheduler.max_model_len == 16
    scheduler.add_request(make_request("a", 5, max_tokens=None))
    run_to_end(scheduler)
    with pytest.raises(InvalidRequestError):
        scheduler.add_request(make_request("b", 16))
    assert_all_free(scheduler)


def test_recovered_request_counts_its_earlier_output():
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 6, max_tokens=4, output_token_ids=[8, 9]))
    output, messages = step(scheduler)
    assert counts(output) == {"a": 8}
    assert output.scheduled_new_requests[0].num_prompt_tokens == 6
    assert messages["a"].new_token_ids == [7]
    assert step(scheduler)[1]["a"].finish_reason is FinishReason.LENGTH


# -- prefix cache ------------------------------------------------------------------------------------------------------


def test_cached_tokens_are_reported_and_not_computed():
    """B089: the last token is always computed, so a prompt of whole blocks hits one block less than its length."""
    scheduler = make_scheduler()
    prompt = list(range(33))
    seen = []
    for name, length in (("a", 33), ("b", 32), ("c", 33)):
        scheduler.add_request(make_request(name, prompt[:length], max_tokens=1))
        output, messages = step(scheduler)
        seen.append((counts(output)[name], messages[name].num_cached_tokens))
    assert seen == [(33, 0), (4, 28), (1, 32)]
    stats = scheduler.make_stats().prefix_cache
    assert (stats.queries, stats.hits) == (98, 60)


def test_children_share_their_prompt_within_one_step():
    scheduler = make_scheduler()
    for child in range(3):
        scheduler.add_request(make_request(f"{child}", range(21), seed=child))
    output, _ = step(scheduler)
    assert counts(output) == {"0": 21, "1": 1, "2": 1}
    tables = [new.block_ids[0] for new in output.scheduled_new_requests]
    assert tables[0][:5] == tables[1][:5] == tables[2][:5]
    assert len({table[5] for table in tables}) == 3


def test_prompt_logprobs_recompute_a_cached_prompt():
    """B024: with a warm cache the positions of the cached part were missing."""
    scheduler = make_scheduler()
    for name in "ab":
        params = SamplingParams(max_tokens=1, prompt_logprobs=1)
        scheduler.add_request(make_request(name, range(33), params=params))
        assert counts(step(scheduler)[0]) == {name: 33}


def test_reset_needs_idle_blocks_or_preempts():
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", range(9), max_tokens=3))
    step(scheduler)
    assert not scheduler.reset_prefix_cache()
    assert scheduler.reset_prefix_cache(reset_running_requests=True)
    output, _ = step(scheduler)
    assert output.preempted_request_ids == ["a"]
    assert counts(output) == {"a": 10}
    run_to_end(scheduler)
    assert scheduler.reset_prefix_cache()


# -- ends --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_long", [MAX_PASSED_OVER - 1, MAX_PASSED_OVER])
def test_a_step_passes_over_a_bounded_number_of_prompts(num_long):
    """Each costs a look into the prefix cache, and thousands may be waiting."""
    fields = {"long_prefill_token_threshold": 8, "max_num_partial_prefills": 1}
    scheduler = make_scheduler(500, budget=16, max_num_seqs=100, **fields)
    for index in range(1 + num_long):
        scheduler.add_request(make_request(f"long{index}", 100))
    scheduler.add_request(make_request("short", 2))
    expected = {"long0": 8} if num_long == MAX_PASSED_OVER else {"long0": 8, "short": 2}
    assert scheduler.schedule().num_scheduled_tokens == expected


def test_abort_frees_everything_wherever_the_request_is():
    scheduler = make_scheduler(max_num_seqs=1)
    scheduler.add_request(make_request("running", 9))
    scheduler.add_request(make_request("waiting", 9))
    step(scheduler)
    scheduler.finish_requests(["running", "waiting", "unknown", "running"], RequestStatus.FINISHED_ABORTED)
    check_invariants(scheduler)
    assert_all_free(scheduler)
    assert not scheduler.has_unfinished_requests()
    assert scheduler.schedule().finished_request_ids == ["running"], "the worker must hear of it"


def test_result_of_a_request_aborted_meanwhile_is_dropped():
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 4))
    scheduler.add_request(make_request("b", 4))
    output = scheduler.schedule()
    results = answer(scheduler, output)
    scheduler.finish_requests(["a"], RequestStatus.FINISHED_ABORTED)
    messages = scheduler.update_from_output(output, results)
    assert [message.request_id for message in messages.outputs] == ["b"]
    assert step(scheduler)[0].finished_request_ids == ["a"]


def test_late_result_does_not_reach_a_new_request_of_the_same_id():
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 4))
    old = scheduler.schedule()
    results = answer(scheduler, old)
    scheduler.finish_requests(["a"], RequestStatus.FINISHED_ABORTED)
    scheduler.add_request(make_request("a", 6))
    new = scheduler.schedule()
    assert scheduler.update_from_output(old, results).outputs == []
    assert scheduler.requests["a"].num_output_tokens == 0
    assert scheduler.update_from_output(new, answer(scheduler, new)).outputs[0].new_token_ids == [7]


def test_failed_request_ends_alone_and_its_keys_are_not_reused():
    scheduler = make_scheduler()
    scheduler.add_request(make_request("bad", range(9)))
    scheduler.add_request(make_request("good", range(50, 59)))
    output = scheduler.schedule()
    results = answer(scheduler, output)
    del results.sampled_token_ids["bad"]
    results.failures["bad"] = "logits are NaN"
    messages = {m.request_id: m for m in scheduler.update_from_output(output, results).outputs}
    assert (messages["bad"].finish_reason, messages["bad"].stop_reason) == (FinishReason.ERROR, "logits are NaN")
    assert messages["good"].new_token_ids == [7]
    scheduler.add_request(make_request("again", range(9)))
    assert counts(step(scheduler)[0]) == {"good": 1, "again": 9}


def test_keys_of_a_failed_step_are_not_reused_even_if_the_request_was_aborted_meanwhile():
    """The step never ran: blocks that it was to fill hold garbage."""
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", range(9)))
    output = scheduler.schedule()
    scheduler.finish_requests(["a"], RequestStatus.FINISHED_ABORTED)
    scheduler.update_from_output(output, ModelRunnerOutput(failures={"a": "out of memory"}))
    scheduler.add_request(make_request("b", range(9)))
    assert counts(step(scheduler)[0]) == {"b": 9}


def test_missing_token_is_an_error_and_not_a_hang():
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 4))
    messages = scheduler.update_from_output(scheduler.schedule(), ModelRunnerOutput())
    assert messages.outputs[0].finish_reason is FinishReason.ERROR
    assert_all_free(scheduler)


def test_events_tell_of_queueing_and_scheduling_once():
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 4))
    first = step(scheduler)[1]["a"].events
    assert [event.type for event in first] == [EngineCoreEventType.QUEUED, EngineCoreEventType.SCHEDULED]
    assert step(scheduler)[1]["a"].events == []


def test_prompt_logprobs_are_passed_on_once():
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 3, params=SamplingParams(max_tokens=3, prompt_logprobs=0)))
    packed = PackedLogprobs(2, 1, b"x" * 8, b"y" * 8, b"z" * 8)
    for expected in (packed, None):
        output = scheduler.schedule()
        results = answer(scheduler, output)
        results.prompt_logprobs["a"] = packed
        (message,) = scheduler.update_from_output(output, results).outputs
        assert message.prompt_logprobs == expected


def test_steps_may_overlap():
    """Several batches in flight: a request waits for its token, others use the time."""
    scheduler = make_scheduler(budget=6)
    scheduler.add_request(make_request("a", 10, max_tokens=2))
    scheduler.add_request(make_request("b", 4, max_tokens=1))
    first, second = scheduler.schedule(), scheduler.schedule()
    assert (counts(first), counts(second)) == ({"a": 6}, {"a": 4, "b": 2})
    third, fourth = scheduler.schedule(), scheduler.schedule()
    assert (counts(third), counts(fourth)) == ({"b": 2}, {})
    scheduler.update_from_output(first, ModelRunnerOutput())
    scheduler.update_from_output(second, ModelRunnerOutput(sampled_token_ids={"a": [7]}))
    fifth = scheduler.schedule()
    assert counts(fifth) == {"a": 1}
    scheduler.update_from_output(third, ModelRunnerOutput(sampled_token_ids={"b": [8]}))
    scheduler.update_from_output(fourth, ModelRunnerOutput())
    scheduler.update_from_output(fifth, ModelRunnerOutput(sampled_token_ids={"a": [9]}))
    assert_all_free(scheduler)


# -- drafts ------------------------------------------------------------------------------------------------------------


def draft_step(scheduler, sampled, drafts=()):
    output = scheduler.schedule()
    results = ModelRunnerOutput(sampled_token_ids={"a": sampled}, draft_token_ids={"a": list(drafts)})
    messages = scheduler.update_from_output(output, results)
    check_invariants(scheduler)
    return output, messages.outputs[0]


def test_rejected_drafts_are_computed_again():
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 4, max_tokens=20))
    draft_step(scheduler, [10], drafts=[11, 12, 13])
    output, message = draft_step(scheduler, [11, 99])  # one accepted, two rejected
    assert counts(output) == {"a": 4}
    assert output.scheduled_spec_tokens == {"a": [11, 12, 13]}
    assert message.new_token_ids == [11, 99]
    output, _ = draft_step(scheduler, [100])
    assert output.scheduled_cached_requests.num_computed_tokens == [6]
    assert counts(output) == {"a": 1}


def test_drafts_past_the_end_are_cut_with_their_logprobs():
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 4, max_tokens=3))
    draft_step(scheduler, [10], drafts=[11, 12, 13])
    output = scheduler.schedule()
    packed = PackedLogprobs(4, 2, bytes(range(32)), bytes(range(32)), bytes(range(16)))
    results = ModelRunnerOutput(sampled_token_ids={"a": [11, 12, 13, 14]}, logprobs={"a": packed})
    (message,) = scheduler.update_from_output(output, results).outputs
    assert (message.new_token_ids, message.finish_reason) == ([11, 12], FinishReason.LENGTH)
    expected = PackedLogprobs(2, 2, bytes(range(16)), bytes(range(16)), bytes(range(8)))
    assert message.logprobs == expected


def test_stop_inside_accepted_drafts_cuts_there():
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 4, max_tokens=20, eos_token_id=12))
    draft_step(scheduler, [10], drafts=[11, 12, 13])
    _, message = draft_step(scheduler, [11, 12, 13, 14])
    assert (message.new_token_ids, message.finish_reason) == ([11, 12], FinishReason.STOP)
    assert_all_free(scheduler)


def test_drafts_stay_within_budget_and_model_length():
    scheduler = make_scheduler(budget=3, max_model_len=8)
    scheduler.add_request(make_request("a", 3, max_tokens=20))
    draft_step(scheduler, [10], drafts=[11, 12, 13])
    output, _ = draft_step(scheduler, [11, 12, 13], drafts=[14, 15])
    assert output.scheduled_spec_tokens == {"a": [11, 12]}
    output, message = draft_step(scheduler, [14])  # 7 of 8 tokens: no room for a draft
    assert counts(output) == {"a": 1}
    assert message.finish_reason is FinishReason.LENGTH


def test_lookahead_slots_are_allocated_ahead():
    scheduler = make_scheduler(num_lookahead_tokens=3)
    scheduler.add_request(make_request("a", 4))
    assert step(scheduler)[0].scheduled_new_requests[0].block_ids == ([1, 2],)


def test_sliding_layers_give_blocks_back_while_decoding():
    scheduler = make_scheduler(100, full(4), sliding(5, 4), budget=8)
    scheduler.add_request(make_request("a", 80, max_tokens=40))
    most = 0
    while scheduler.has_unfinished_requests():
        step(scheduler)
        most = max(most, 99 - scheduler.kv_cache.num_free_blocks)
    assert most <= 30 + 4
    assert_all_free(scheduler)
