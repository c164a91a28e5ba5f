"""Waiting queues."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.scheduler.queue import FCFSQueue, PriorityQueue, priority_key
from tests.scheduler.helpers import make_request


def names(queue):
    return [request.request_id for request in queue]


def test_put_back_restores_the_head_in_order():
    queue = FCFSQueue()
    for name in "abcd":
        queue.add(make_request(name, 1))
    taken = [queue.pop(), queue.pop()]
    queue.put_back(taken)
    assert names(queue) == list("abcd")


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=12), st.randoms())
@settings(max_examples=100, deadline=None)
def test_priority_queue_pops_in_key_order(keys, chance):
    queue = PriorityQueue()
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
    queue = FCFSQueue()
    requests = [make_request(name, 1) for name in "abc"]
    for request in requests:
        queue.add(request)
    queue.remove([requests[1]])
    assert names(queue) == ["a", "c"]
    assert len(queue) == 2
