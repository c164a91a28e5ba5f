"""The encoder cache: outputs for images and the like, computed within a budget, kept while prompts need them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from octavo.kv_cache.hashing import SequenceItem
from octavo.scheduler.request import Request


class EncoderCacheManager:
    """Tracks which encoder outputs the worker holds, counted in encoder tokens, keyed by content identity.

    An output that no request references stays until its room is needed: the oldest goes first.
    """

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self._num_tokens: dict[str, int] = {}  # identity -> size; everything the worker holds
        self._users: dict[str, dict[str, int]] = {}  # identity -> {request id: index of its item}
        self._unreferenced: OrderedDict[str, None] = OrderedDict()  # oldest first
        self._evicted: list[str] = []

    @property
    def num_free_tokens(self) -> int:
        return self.max_tokens - sum(self._num_tokens.values())

    def holds(self, identity: str) -> bool:
        return identity in self._num_tokens

    def acquire_for_chunk(self, request: Request, num_new: int) -> list[int]:
        """Reference what the request's next num_new tokens read; return the indices of the items to encode now.

        The chunk is one that `limit_chunk` allowed. Older outputs are evicted as needed.
        """
        to_encode = []
        for index, item in self._items_of_chunk(request, num_new):
            if item.identity not in self._num_tokens:
                while item.num_tokens > self.num_free_tokens:
                    oldest, _ = self._unreferenced.popitem(last=False)
                    del self._num_tokens[oldest], self._users[oldest]
                    self._evicted.append(oldest)
                self._num_tokens[item.identity] = item.num_tokens
                self._users[item.identity] = {}
                to_encode.append(index)
            self._unreferenced.pop(item.identity, None)
            self._users[item.identity][request.request_id] = index
        return to_encode

    def cancel(self, request: Request, index: int) -> tuple[str, int] | None:
        """Take back an item that was to be encoded in this step.

        Returns (request id, item index) of another request that counts on it and must now have it encoded, or None.
        """
        self._release(request, index)
        identity = request.items[index].identity
        for heir in self._users[identity].items():
            return heir
        del self._unreferenced[identity], self._num_tokens[identity], self._users[identity]
        return None

    def release_passed(self, request: Request) -> None:
        """Drop the references to items whose every token is in the KV cache."""
        for index, item in enumerate(request.items):
            if item.start + item.num_tokens <= request.num_computed_tokens:
                self._release(request, index)

    def release(self, request: Request) -> None:
        """Drop all references of a request."""
        for index in range(len(request.items)):
            self._release(request, index)

    def take_evicted(self) -> list[str]:
        """Return the identities whose outputs the worker must drop, since the last call."""
        evicted, self._evicted = self._evicted, []
        return evicted

    def limit_chunk(self, request: Request, num_new: int, budget: int) -> int:
        """Return how many of the request's next num_new tokens can run with at most `budget` tokens newly encoded.

        The chunk is cut just before the first item that fits neither the budget nor the cache.
        """
        planned: dict[str, int] = {}
        num_kept = 0  # unreferenced outputs that the chunk itself reads cannot make room
        for _, item in self._items_of_chunk(request, num_new):
            if item.identity in self._num_tokens:
                num_kept += item.num_tokens if item.identity in self._unreferenced else 0
            else:
                planned[item.identity] = item.num_tokens
            num_planned = sum(planned.values())
            if num_planned and (num_planned > budget or not self._can_add(num_planned + num_kept)):
                return max(item.start - request.num_computed_tokens, 0)
        return num_new

    def _items_of_chunk(self, request: Request, num_new: int) -> Iterator[tuple[int, SequenceItem]]:
        start = request.num_computed_tokens
        for index, item in enumerate(request.items):
            if item.start < start + num_new and item.start + item.num_tokens > start:
                yield index, item

    def _can_add(self, num_tokens: int) -> bool:
        reclaimable = sum(self._num_tokens[identity] for identity in self._unreferenced)
        return num_tokens <= self.num_free_tokens + reclaimable

    def _release(self, request: Request, index: int) -> None:
        identity = request.items[index].identity
        users = self._users.get(identity)
        if users is None or request.request_id not in users:
            return
        del users[request.request_id]
        if not users:
            self._unreferenced[identity] = None
