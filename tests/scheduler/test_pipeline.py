"""Several steps in flight: even batches, no request in two steps that sample, and tokens told to stages that do not."""

from __future__ import annotations

import random
from collections import deque

from octavo.scheduler.request import RequestStatus
from octavo.types.step import ModelRunnerOutput
from tests.scheduler.helpers import answer, make_request, make_scheduler


def test_each_batch_in_flight_gets_an_even_share_of_the_requests() -> None:
    scheduler = make_scheduler(num_batches_in_flight=2)
    for name in "abcde":
        scheduler.add_request(make_request(name, 5))
    steps = [scheduler.schedule() for _ in range(2)]
    assert [list(step.num_scheduled_tokens) for step in steps] == [["a", "b", "c"], ["d", "e"]]
    for _ in range(3):  # they stay apart
        step = steps.pop(0)
        before = list(step.num_scheduled_tokens)
        scheduler.update_from_output(step, answer(scheduler, step))
        steps.append(scheduler.schedule())
        assert list(steps[-1].num_scheduled_tokens) == before


def test_many_that_wait_for_memory_do_not_make_one_batch_take_all_that_run() -> None:
    scheduler = make_scheduler(num_blocks=9, num_batches_in_flight=2, prefix_caching=False)
    for index in range(50):
        scheduler.add_request(make_request(str(index), 6, max_tokens=2))  # two blocks each
    in_flight = [scheduler.schedule() for _ in range(2)]
    assert sum(len(step.num_scheduled_tokens) for step in in_flight) == 4
    while any(step.scheduled_new_requests for step in in_flight):
        step = in_flight.pop(0)
        scheduler.update_from_output(step, answer(scheduler, step))
        in_flight.append(scheduler.schedule())
        if len(in_flight[-1].scheduled_cached_requests.request_ids) == 2:
            return  # of four
    raise AssertionError("the batches never divide what runs")


def test_pieces_of_one_prompt_may_be_in_flight_at_the_same_time() -> None:
    scheduler = make_scheduler(num_batches_in_flight=3, budget=4)
    scheduler.add_request(make_request("a", 10))
    steps = [scheduler.schedule() for _ in range(3)]
    assert [step.num_scheduled_tokens for step in steps] == [{"a": 4}, {"a": 4}, {"a": 2}]
    assert scheduler.awaits_results()
    for step in steps[:2]:
        scheduler.update_from_output(step, ModelRunnerOutput())
    assert scheduler.awaits_results()
    scheduler.update_from_output(steps[2], answer(scheduler, steps[2]))
    assert not scheduler.awaits_results() and scheduler.schedule().num_scheduled_tokens == {"a": 1}


def test_stages_that_do_not_sample_are_told_the_tokens() -> None:
    scheduler = make_scheduler(num_batches_in_flight=2, budget=4)
    scheduler.add_request(make_request("a", 6, max_tokens=3))
    first, second = scheduler.schedule(), scheduler.schedule()
    assert second.scheduled_cached_requests.new_token_ids == [[]]  # of the prompt, which they know
    scheduler.update_from_output(first, ModelRunnerOutput())
    scheduler.update_from_output(second, answer(scheduler, second, 41))
    third = scheduler.schedule()
    assert third.scheduled_cached_requests.new_token_ids == [[41]]
    assert third.scheduled_cached_requests.num_computed_tokens == [6]
    alone = make_scheduler()
    alone.add_request(make_request("a", 6))
    step = alone.schedule()
    alone.update_from_output(step, answer(alone, step))
    assert alone.schedule().scheduled_cached_requests.new_token_ids == []  # one stage has sampled them itself


def test_preemptions_and_aborts_in_flight_lose_and_double_no_token() -> None:
    rng = random.Random(3)
    for num_batches in (2, 3):
        scheduler = make_scheduler(num_blocks=14, num_batches_in_flight=num_batches, budget=8, max_model_len=40)
        requests = [make_request(str(i), rng.randrange(2, 12), max_tokens=rng.randrange(1, 12)) for i in range(12)]
        for request in requests:
            scheduler.add_request(request)
        in_flight: deque = deque()
        sampling: set[str] = set()
        num_preempted = 0
        while scheduler.has_unfinished_requests():
            while len(in_flight) < num_batches and not (in_flight and scheduler.awaits_results()):
                step = scheduler.schedule()
                num_preempted += len(step.preempted_request_ids)
                samples = set()
                for request_id in step.num_scheduled_tokens:
                    assert request_id not in sampling, "its next token is still out"
                    request = scheduler.requests[request_id]
                    if request.num_computed_tokens >= request.num_tokens:
                        samples.add(request_id)
                sampling |= samples
                in_flight.append((step, samples))
            step, samples = in_flight.popleft()
            sampling -= samples
            if rng.random() < 0.05:
                scheduler.finish_requests([str(rng.randrange(12))], RequestStatus.FINISHED_ABORTED)
            result = ModelRunnerOutput()
            result.sampled_token_ids = {request_id: [7] for request_id in samples}
            scheduler.update_from_output(step, result)
        assert num_preempted > 0
        for request in requests:
            if request.status is RequestStatus.FINISHED_LENGTH_CAPPED:
                assert request.num_output_tokens == request.sampling_params.max_tokens
        assert scheduler.make_stats().kv_cache_usage == 0
