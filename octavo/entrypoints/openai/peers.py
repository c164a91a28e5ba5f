"""The same server in all server processes of an engine, this one included: what one is told, all can be asked to do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.engine.async_llm import AsyncLLM

_MARK = "is_server"


class Peers:
    """Services by name. Further servers of one process have peers of their own: none but themselves."""

    def __init__(self, engine: AsyncLLM) -> None:
        self._client = engine.engine_core
        number = sum(name.startswith(_MARK) for name in self._client.services)
        self._suffix = f" {number}" if number else ""
        self.offer(**{_MARK: _yes})

    def offer(self, **services: Callable[..., Awaitable[Any]]) -> None:
        """Answer calls of these names; results are plain data."""
        self._client.services.update({name + self._suffix: service for name, service in services.items()})

    async def call(self, name: str, *args: Any, standing: str = "") -> list[Any]:
        """Return everybody's answer. standing: see AsyncCoreClient.call_front_ends"""
        return await self._client.call_front_ends(name + self._suffix, *args, standing=standing)


async def _yes() -> bool:
    return True
