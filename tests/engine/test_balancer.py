"""Which replica a request goes to, and nothing else: no processes."""

from __future__ import annotations

from collections import Counter

import pytest

from octavo import SamplingParams
from octavo.engine.balancer import Balancer, ReplicaLoad
from octavo.types.request import EngineCoreRequest
from octavo.types.stats import SchedulerStats


def load(num_requests: int = 0, running: int = 0, waiting: int = 0, usage: float = 0.0, is_serving: bool = True):
    return ReplicaLoad(num_requests, SchedulerStats(running, waiting, usage), is_serving)


def request(prompt=(1, 2, 3), salt: str | None = None) -> EngineCoreRequest:
    return EngineCoreRequest("r", list(prompt), SamplingParams(), 0.0, 7, cache_salt=salt)


def test_equal_replicas_take_turns():
    balancer = Balancer(3)
    assert [balancer.choose([load()] * 3, request()) for _ in range(6)] == [0, 1, 2, 0, 1, 2]


def test_the_least_busy_replica_gets_the_request():
    balancer = Balancer(3)
    for _ in range(4):
        assert balancer.choose([load(3), load(1), load(2)], request()) == 1


def test_what_was_just_handed_over_counts_before_the_replica_has_said_so():
    """A burst between two steps must not all go to the replica that was idle at the last one."""
    balancer, counts = Balancer(2), [0, 0]
    for _ in range(10):
        counts[balancer.choose([load(counts[0]), load(counts[1])], request())] += 1
    assert counts == [5, 5]


def test_requests_of_other_front_ends_count_as_the_replica_tells_them():
    assert Balancer(2).choose([load(0, running=4, waiting=2), load(5)], request()) == 1


@pytest.mark.parametrize(("usage", "expected"), [(0.5, 0), (0.9, 1)])
def test_waiting_requests_weigh_more_where_the_cache_is_nearly_full(usage, expected):
    crowded = load(6, running=3, waiting=3, usage=usage)
    assert Balancer(2).choose([crowded, load(8)], request()) == expected


def test_replicas_that_do_not_serve_are_passed_over():
    loads = [load(0, is_serving=False), load(9), None]
    assert Balancer(3).choose(loads, request()) == 1


def test_if_none_serves_the_request_waits_at_one_that_will():
    assert Balancer(3).choose([None, load(2, is_serving=False), load(1, is_serving=False)], request()) == 2


def test_a_wish_is_honoured_as_long_as_that_replica_serves():
    balancer = Balancer(2)
    assert balancer.choose([load(9), load(0)], request(), rank=0) == 0
    assert balancer.choose([load(0, is_serving=False), load(5)], request(), rank=0) == 1
    assert balancer.choose([None, load(5)], request(), rank=0) == 1


# -- prefix affinity ---------------------------------------------------------------------------------------------------

SYSTEM = list(range(100, 300))


def test_prompts_with_the_same_beginning_go_to_the_same_replica():
    balancer = Balancer(4, prefix_affinity=True)
    idle = [load()] * 4
    chosen = {topic: balancer.choose(idle, request([topic, *SYSTEM])) for topic in range(4)}
    assert sorted(chosen.values()) == [0, 1, 2, 3]
    for topic, rank in chosen.items():
        assert balancer.choose(idle, request([topic, *SYSTEM, 7, 8])) == rank


def test_the_longest_known_beginning_decides():
    balancer = Balancer(2, prefix_affinity=True)
    first = balancer.choose([load(), load()], request([*SYSTEM, *[1] * 64]))
    second = balancer.choose([load(9), load(9)], request([*SYSTEM, *[2] * 64]), rank=1 - first)
    assert second == 1 - first
    assert balancer.choose([load(), load()], request([*SYSTEM, *[1] * 64, 5])) == first
    assert balancer.choose([load(), load()], request([*SYSTEM, *[2] * 64, 5])) == second


def test_an_overloaded_replica_is_spared_and_the_other_learns_the_beginning():
    balancer = Balancer(2, prefix_affinity=True)
    assert balancer.choose([load(), load()], request(SYSTEM)) == 0
    assert balancer.choose([load(4), load()], request(SYSTEM)) == 0
    assert balancer.choose([load(5), load()], request(SYSTEM)) == 1
    assert balancer.choose([load(3), load(2)], request(SYSTEM)) == 1  # both have it now


def test_prompts_that_share_nothing_or_may_not_are_balanced():
    balancer = Balancer(2, prefix_affinity=True)
    ranks = [balancer.choose([load(), load()], request(SYSTEM, salt)) for salt in ("a", "b", "c", "d")]
    assert Counter(ranks) == {0: 2, 1: 2}
    ranks = [balancer.choose([load(), load()], request([5] * 63)) for _ in range(4)]  # shorter than what is told apart
    assert Counter(ranks) == {0: 2, 1: 2}


def test_a_replaced_replica_has_forgotten_all_beginnings():
    balancer = Balancer(2, prefix_affinity=True)
    assert balancer.choose([load(), load(1)], request(SYSTEM)) == 0
    balancer.forget(0)
    assert balancer.choose([load(1), load()], request(SYSTEM)) == 1


def test_a_holder_that_does_not_serve_is_passed_over():
    balancer = Balancer(2, prefix_affinity=True)
    assert balancer.choose([load(), load(1)], request(SYSTEM)) == 0
    assert balancer.choose([load(is_serving=False), load(1)], request(SYSTEM)) == 1


def test_the_memory_of_beginnings_is_bounded(monkeypatch):
    monkeypatch.setattr("octavo.engine.balancer._MAX_PREFIXES", 6)
    balancer = Balancer(2, prefix_affinity=True)
    for topic in range(50):
        balancer.choose([load(), load()], request([topic] * 200))
    assert len(balancer._prefixes._ranks) == 6
