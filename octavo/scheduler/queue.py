"""Waiting requests in order of admission, by policy."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from octavo.config.configs import SchedulingPolicy
from octavo.scheduler.request import Request


class RequestQueue(Protocol):
    """The waiting queue."""

    def add(self, request: Request) -> None:
        """Queue a new request."""

    def put_back(self, requests: Sequence[Request]) -> None:
        """Return requests, given in queue order, to the places that they came from: the head."""

    def peek(self) -> Request: ...
    def pop(self) -> Request: ...
    def remove(self, requests: Collection[Request]) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Request]: ...


class FCFSQueue:
    """First come, first served."""

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()

    def add(self, request: Request) -> None:
        self._requests.append(request)

    def put_back(self, requests: Sequence[Request]) -> None:
        self._requests.extendleft(reversed(requests))

    def peek(self) -> Request:
        return self._requests[0]

    def pop(self) -> Request:
        return self._requests.popleft()

    def remove(self, requests: Collection[Request]) -> None:
        leaving = set(map(id, requests))
        self._requests = deque(request for request in self._requests if id(request) not in leaving)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)


PriorityKey = tuple[int, float, str]


def priority_key(request: Request) -> PriorityKey:
    """Order by priority (smaller first), then arrival; ids are unique and settle ties."""
    return request.priority, request.arrival_time, request.request_id


class PriorityQueue:
    """Smallest (priority, arrival time) first. A preempted request returns to where its key puts it."""

    def __init__(self) -> None:
        self._heap: list[tuple[PriorityKey, Request]] = []

    def add(self, request: Request) -> None:
        heapq.heappush(self._heap, (priority_key(request), request))

    def put_back(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.add(request)

    def peek(self) -> Request:
        return self._heap[0][1]

    def pop(self) -> Request:
        return heapq.heappop(self._heap)[1]

    def remove(self, requests: Collection[Request]) -> None:
        leaving = set(map(id, requests))
        self._heap = [entry for entry in self._heap if id(entry[1]) not in leaving]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return (request for _, request in sorted(self._heap))


def make_queue(policy: SchedulingPolicy) -> RequestQueue:
    return PriorityQueue() if policy == "priority" else FCFSQueue()
