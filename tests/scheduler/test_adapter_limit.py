"""No more than max_loras adapters run; who waits keeps the place, and is not overtaken for ever."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from octavo.scheduler.adapter_limit import AdapterLimit


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
