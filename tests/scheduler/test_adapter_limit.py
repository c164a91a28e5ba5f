"""No more than max_loras adapters run; who waits keeps the place, and is not overtaken for ever."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from octavo.scheduler.adapter_limit import AdapterCounts, AdapterLimit


def request(identity: str | None) -> Any:
    adapter = None if identity is None else SimpleNamespace(identity=identity)
    return SimpleNamespace(adapter=adapter, num_overtaken=0)


def join(limit: AdapterLimit, *requests: Any) -> list[bool]:
    joined = []
    for one in requests:
        joined.append(limit.may_join(one))
        if joined[-1]:
            limit.joined(one)
    return joined


def test_a_step_has_at_most_so_many_adapters():
    limit = AdapterLimit(2, [request("a"), request(None)])
    assert join(limit, *map(request, ("b", "c", None, "a", "b", "c"))) == [True, False, True, True, True, False]


def test_a_request_that_waits_for_room_is_overtaken_only_so_often():
    waiting, joined = request("b"), 0
    for _ in range(100):
        limit = AdapterLimit(1, [request("a")])
        assert join(limit, waiting) == [False]
        joined += join(limit, request("a")) == [True]
        assert join(limit, request(None)) == [True]
    assert joined == 32
    assert join(AdapterLimit(1, []), waiting) == [True]


def test_names_of_who_runs_and_waits_are_counted_and_not_searched_for():
    """Nothing walks the waiting requests, of which there may be thousands in every step."""
    counts = AdapterCounts()
    requests = [SimpleNamespace(adapter=SimpleNamespace(name=name, identity=f"same as {name}")) for name in "bab"]
    requests.append(SimpleNamespace(adapter=None))
    for request in requests:
        counts.came(request)
    assert counts.names(requests[:1]) == (["b"], ["a", "b"])
    assert counts.names(requests) == (["a", "b"], [])
    for request in requests[:2]:
        counts.went(request)
    assert counts.names([]) == ([], ["b"]) and counts.identities() == {"same as b"}
    counts.went(requests[2])
    assert counts.names([]) == ([], []) and counts.identities() == set()
