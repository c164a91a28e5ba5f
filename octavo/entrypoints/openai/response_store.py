"""Stored responses: kept in memory, the least recently used forgotten first, and gone when the server ends."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.entrypoints.openai.protocol.responses import ResponseObject

MAX_RESPONSES = 1000
MAX_BYTES = 64 * 1024 * 1024

Messages = Sequence[Mapping[str, Any]]


@dataclass
class StoredResponse:
    """A response and what a next turn needs. size_bytes: about what is kept alive by it

    messages: the conversation without instructions, up to and with the input; task: of one in the background
    """

    response: ResponseObject
    messages: Messages
    size_bytes: int
    task: asyncio.Task[None] | None = None


class ResponseStore:
    """Finds responses by id. Lives on the event loop."""

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()
        self._size_bytes = 0

    def put(self, stored: StoredResponse) -> None:
        """Keep a response; others may be forgotten for it. Those that still run are kept."""
        self._stored[stored.response.id] = stored
        self._size_bytes += stored.size_bytes
        for response_id, other in list(self._stored.items()):
            if len(self._stored) <= self._max_responses and self._size_bytes <= self._max_bytes:
                break
            if other.task is None or other.task.done():
                self.discard(response_id)

    def get(self, response_id: str) -> StoredResponse | None:
        """Return a response, or None."""
        stored = self._stored.get(response_id)
        if stored is not None:
            self._stored.move_to_end(response_id)
        return stored

    def discard(self, response_id: str) -> None:
        """Forget a response; one that still runs is ended."""
        stored = self._stored.pop(response_id, None)
        if stored is not None:
            self._size_bytes -= stored.size_bytes
            if stored.task is not None:
                stored.task.cancel()
