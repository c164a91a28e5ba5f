"""Waiting requests in order of admission, by policy."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator
from itertools import count

from octavo.config.configs import SchedulingPolicy
from octavo.scheduler.request import Request

QueueKey = tuple[int, float, str]


def priority_key(request: Request) -> QueueKey:
    """Order by priority (smaller first), then arrival; ids are unique and settle ties."""
    return request.priority, request.arrival_time, request.request_id


def arrival_key(request: Request) -> QueueKey:
    """Order by the numbers that the queue gave."""
    return request.queue_number, 0.0, ""


class WaitingQueue:
    """First come, first served, and preempted requests before all others; or smallest priority key first.

    Requests that are set aside are counted and keep their places, but cost a step nothing until they are brought back.
    """

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._key = priority_key if policy == "priority" else arrival_key
        self._heap: list[tuple[QueueKey, Request]] = []
        self._aside: dict[str, Request] = {}
        self._last_numbers = count(1)
        self._first_numbers = count(-1, -1)

    def add(self, request: Request) -> None:
        """Queue a new request."""
        request.queue_number = next(self._last_numbers)
        self.put_back([request])

    def add_preempted(self, request: Request) -> None:
        """Queue a request that ran: at the head, or where its priority puts it."""
        request.queue_number = next(self._first_numbers)
        self.put_back([request])

    def put_back(self, requests: Iterable[Request]) -> None:
        """Return requests to the places that they came from."""
        for request in requests:
            heapq.heappush(self._heap, (self._key(request), request))

    def set_aside(self, request: Request) -> None:
        """Keep a request that was popped out of the way."""
        self._aside[request.request_id] = request

    def bring_back(self, request_ids: Iterable[str]) -> None:
        """Return those of these requests that were set aside to their places."""
        self.put_back(self._aside.pop(request_id) for request_id in request_ids if request_id in self._aside)

    def peek(self) -> Request | None:
        """Return the first request that is not set aside; None if there is none."""
        return self._heap[0][1] if self._heap else None

    def pop(self) -> Request:
        """Take out the one that `peek` returns."""
        return heapq.heappop(self._heap)[1]

    def remove(self, requests: Collection[Request]) -> None:
        """Drop these requests, wherever they wait."""
        leaving = {id(request) for request in requests if self._aside.pop(request.request_id, None) is None}
        if leaving:
            self._heap = [entry for entry in self._heap if id(entry[1]) not in leaving]
            heapq.heapify(self._heap)

    @property
    def num_ready(self) -> int:
        """How many are not set aside."""
        return len(self._heap)

    def __len__(self) -> int:
        return len(self._heap) + len(self._aside)

    def __iter__(self) -> Iterator[Request]:
        """In order, with those set aside."""
        return iter(sorted([*(request for _, request in self._heap), *self._aside.values()], key=self._key))
