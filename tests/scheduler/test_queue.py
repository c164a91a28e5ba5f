"""The waiting queue."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.scheduler.queue import WaitingQueue, priority_key
from tests.scheduler.helpers import make_request


def names(queue):
    return [request.request_id for request in queue]


def filled(ids, policy="fcfs"):
    queue = WaitingQueue(policy)
    requests = {name: make_request(name, 1) for name in ids}
    for request in requests.values():
        queue.add(request)
    return queue, requests


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_put_back_restores_the_head_in_order(policy):
    queue, _ = filled("abcd", policy)
    taken = [queue.pop(), queue.pop()]
    queue.put_back(taken)
    assert names(queue) == list("abcd")


def test_preempted_requests_go_to_the_head():
    queue, _ = filled("abcd")
    for request in reversed([queue.pop(), queue.pop()]):
        queue.add_preempted(request)
    first = queue.pop()
    queue.put_back([first])
    assert names(queue) == list("abcd")


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=12), st.randoms())
@settings(max_examples=100, deadline=None)
def test_priority_queue_pops_in_key_order(keys, chance):
    queue = WaitingQueue("priority")
    requests = [
        make_request(f"r{i}", 1, priority=priority, arrival_time=float(arrival))
        for i, (priority, arrival) in enumerate(keys)
    ]
    for request in requests:
        queue.add(request)
    gone = [request for request in requests if chance.random() < 0.3]
    queue.remove(gone)
    left = sorted((request for request in requests if request not in gone), key=priority_key)
    assert list(queue) == left
    if left:
        queue.put_back([queue.pop()])
        assert queue.peek() is left[0]
    assert [queue.pop() for _ in range(len(queue))] == left


def test_removal_takes_only_what_is_named():
    queue, requests = filled("abcd")
    queue.set_aside(queue.pop())
    queue.remove([requests["a"], requests["c"]])
    queue.bring_back(["a"])
    assert names(queue) == ["b", "d"]
    assert len(queue) == 2


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_requests_set_aside_keep_their_places_and_are_not_met(policy):
    queue, requests = filled("abcd", policy)
    for _ in "abc":
        queue.set_aside(queue.pop())
    assert queue.peek() is requests["d"] and len(queue) == 4 and names(queue) == list("abcd")
    queue.bring_back(["b", "unknown"])
    assert queue.pop() is requests["b"] and queue.pop() is requests["d"] and queue.peek() is None
    queue.bring_back("ca")
    assert names(queue) == ["a", "c"]
