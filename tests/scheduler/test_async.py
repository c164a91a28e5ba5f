"""Asynchronous scheduling: a step for tokens that are not known yet, and what must not run ahead."""

from __future__ import annotations

from octavo.types.grammar import GrammarSpec
from octavo.types.step import ModelRunnerOutput, SchedulerOutput
from tests.scheduler.helpers import answer, assert_all_free, check_invariants, make_request, make_scheduler
from tests.scheduler.test_hooks import FakeGrammar


def tokens_of(step: SchedulerOutput, token_id: int = 7) -> ModelRunnerOutput:
    return ModelRunnerOutput({request_id: [token_id] for request_id in step.num_scheduled_tokens})


def test_a_step_is_scheduled_for_a_token_that_the_step_before_will_bring() -> None:
    scheduler = make_scheduler(async_scheduling=True)
    scheduler.add_request(make_request("a", 5))
    first = scheduler.schedule()
    assert not scheduler.awaits_results()
    second = scheduler.schedule()
    assert second.num_scheduled_tokens == {"a": 1}
    assert second.scheduled_cached_requests.num_computed_tokens == [5]
    assert scheduler.awaits_results(), "one token ahead, no more"
    for step, token_id in ((first, 41), (second, 42)):
        (output,) = scheduler.update_from_output(step, tokens_of(step, token_id)).outputs
        assert output.new_token_ids == [token_id]
    assert scheduler.requests["a"].all_token_ids[5:] == [41, 42]


def test_nothing_is_scheduled_behind_a_token_that_is_the_last_anyway() -> None:
    scheduler = make_scheduler(async_scheduling=True)
    scheduler.add_request(make_request("long", 3, max_tokens=9))
    scheduler.add_request(make_request("short", 3, max_tokens=1))
    first, second = scheduler.schedule(), scheduler.schedule()
    assert list(second.num_scheduled_tokens) == ["long"]
    scheduler.update_from_output(first, tokens_of(first))
    assert list(scheduler.requests) == ["long"]
    third = scheduler.schedule()
    assert third.finished_request_ids == ["short"] and list(third.num_scheduled_tokens) == ["long"]


def test_a_token_computed_after_an_end_is_dropped_and_its_blocks_are_free() -> None:
    scheduler = make_scheduler(async_scheduling=True)
    scheduler.add_request(make_request("a", 5, max_tokens=9, eos_token_id=2))
    first, second = scheduler.schedule(), scheduler.schedule()
    (end,) = scheduler.update_from_output(first, tokens_of(first, 2)).outputs
    assert (end.new_token_ids, str(end.finish_reason)) == ([2], "stop")
    assert_all_free(scheduler)
    assert scheduler.schedule().finished_request_ids == ["a"]
    assert scheduler.update_from_output(second, tokens_of(second)).outputs == []


def test_a_grammar_sees_a_token_before_the_next_is_scheduled_and_nobody_overtakes_it() -> None:
    grammar = FakeGrammar()
    grammar.ready = {"json"}
    scheduler = make_scheduler(async_scheduling=True, hooks={"grammar": grammar})
    scheduler.add_request(make_request("plain", 5))
    scheduler.add_request(make_request("json", 5, grammar=GrammarSpec("guidance", "lark", "start: /a+/")))
    step = scheduler.schedule()
    assert step.structured_request_ids == ["json"] and scheduler.awaits_results()
    scheduler.update_from_output(step, answer(scheduler, step, 8))
    assert grammar.accepted == [("json", 8)] and not scheduler.awaits_results()
    assert sorted(scheduler.schedule().num_scheduled_tokens) == ["json", "plain"]


def test_others_run_ahead_while_a_grammar_ponders_a_token() -> None:
    grammar = FakeGrammar()
    grammar.ready, grammar.pondering = {"json"}, {"json"}
    scheduler = make_scheduler(async_scheduling=True, hooks={"grammar": grammar})
    scheduler.add_request(make_request("plain", 5))
    scheduler.add_request(make_request("json", 5, grammar=GrammarSpec("guidance", "lark", "start: /a+/")))
    step = scheduler.schedule()
    scheduler.update_from_output(step, answer(scheduler, step, 8))
    assert list(scheduler.schedule().num_scheduled_tokens) == ["plain"] and not scheduler.awaits_results()
    assert list(scheduler.schedule().num_scheduled_tokens) == ["plain"]


def test_what_follows_a_step_that_failed_runs_again() -> None:
    """A newcomer that shares a prefix with it would read keys that were never computed."""
    prompt = list(range(100, 120))
    scheduler = make_scheduler(async_scheduling=True)
    scheduler.add_request(make_request("first", prompt))
    failed = scheduler.schedule()
    scheduler.add_request(make_request("second", [*prompt, 5]))
    behind = scheduler.schedule()
    (new,) = behind.scheduled_new_requests
    assert new.num_computed_tokens == 20, "it shares the first one's blocks"
    (end,) = scheduler.update_from_output(failed, ModelRunnerOutput(failures={"first": "broken"})).outputs
    assert str(end.finish_reason) == "error"
    scheduler.discard(behind)
    check_invariants(scheduler)
    again = scheduler.schedule()
    assert again.preempted_request_ids == ["second"]
    (new,) = again.scheduled_new_requests
    assert (new.request_id, new.num_computed_tokens, new.token_ids) == ("second", 0, [*prompt, 5])


def test_what_is_dropped_waits_in_the_order_in_which_it_came() -> None:
    scheduler = make_scheduler(async_scheduling=True)
    scheduler.add_request(make_request("failing", 5))
    failed = scheduler.schedule()
    for request_id in "abc":
        scheduler.add_request(make_request(request_id, 5))
    behind = scheduler.schedule()
    scheduler.update_from_output(failed, ModelRunnerOutput(failures={"failing": "broken"}))
    scheduler.discard(behind)
    assert list(scheduler.schedule().num_scheduled_tokens) == ["a", "b", "c"]
