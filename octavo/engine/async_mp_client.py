"""The client of AsyncLLM, the only front end of its cores; an event loop attends to them. No threads, no polling."""

from __future__ import annotations

import asyncio
import functools
import time
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from octavo.engine.async_client import Services
from octavo.engine.core_child import EngineChild
from octavo.engine.process_start import ProcessHandle
from octavo.engine.replicas import merged
from octavo.errors import EngineDeadError
from octavo.types.messages import EngineCoreOutputs
from octavo.types.request import EngineCoreRequest


class AsyncMPClient:
    """Has the cores. See AsyncCoreClient for the methods.

    on_outputs: called with what each step brought; on_death: called once, when no core will come any more
    on_attended: called whenever something may have changed
    """

    def __init__(
        self,
        handle: ProcessHandle,
        on_outputs: Callable[[EngineCoreOutputs], None],
        on_death: Callable[[EngineDeadError], None],
    ) -> None:
        self._replicas = handle.replicas
        for rank, supervisor in enumerate(handle.replicas.supervisors):
            supervisor.before_close = functools.partial(self._unwatch, rank)
        self._on_outputs = on_outputs
        self._on_death = on_death
        self.on_attended: Callable[[], None] = lambda: None
        self.services: Services = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watched: dict[int, EngineChild] = {}  # by rank
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0  # when it ends, in time.monotonic()
        self._is_death_told = False
        self._finalizer = weakref.finalize(self, handle.close)  # also when the interpreter ends

    @property
    def is_ready(self) -> bool:
        return self._replicas.is_ready

    @property
    def dead_error(self) -> EngineDeadError | None:
        return self._replicas.dead_error

    @property
    def process_ids(self) -> list[int | None]:
        children = [supervisor.child for supervisor in self._replicas.supervisors]
        return [None if child is None else child.process_id for child in children]

    @property
    def process_id(self) -> int | None:
        """The process of the first replica."""
        return self.process_ids[0]

    @property
    def are_serving(self) -> list[bool]:
        return [supervisor.is_serving for supervisor in self._replicas.supervisors]

    def attach(self) -> bool:
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return False
        if self._loop is not None and not self._loop.is_closed():
            raise RuntimeError("this engine belongs to another event loop; use it from there, or close that loop first")
        self._loop = loop
        self._watched, self._timer = {}, None
        self._attend()
        return True

    def add_request(self, request: EngineCoreRequest, rank: int | None = None) -> int:
        rank = self._replicas.add_request(request, rank)
        self._set_timer()
        return rank

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        self._replicas.abort_requests(request_ids)

    def load_vocabulary(self, packed: bytes) -> None:
        self._replicas.call("load_vocabulary", (packed,))
        self._set_timer()

    async def call(self, method: str, *args: Any) -> Any:
        return merged(method, await self.call_each(method, *args))

    async def call_each(self, method: str, *args: Any, serving_only: bool = False) -> list[Any]:
        return await self.start_call(method, args, serving_only)

    def start_call(self, method: str, args: Sequence[Any], serving_only: bool) -> Awaitable[list[Any]]:
        """Call now, before anything that is sent later; the answers of `call_each` are what can be waited for."""
        self.attach()
        futures = self._replicas.call(method, tuple(args), serving_only)
        self._set_timer()
        return asyncio.gather(*map(asyncio.wrap_future, futures))

    async def call_front_ends(self, method: str, *args: Any, standing: str = "") -> list[Any]:
        return [msgspec.to_builtins(await self.services[method](*args))]

    def shutdown(self) -> None:
        """End the process; idempotent. Call it in the loop's thread, or when the loop has ended."""
        for rank in list(self._watched):
            self._unwatch(rank)
        if self._timer is not None:
            self._timer.cancel()
        self._finalizer()

    def _attend(self) -> None:
        """Take in what has happened, hand it on, and wait for more."""
        replicas = self._replicas
        replicas.receive()
        for rank, supervisor in enumerate(replicas.supervisors):
            if supervisor.child is not None and rank not in self._watched:
                self._watch(rank, supervisor.child)
        self._set_timer()
        while replicas.outputs:
            self._on_outputs(replicas.outputs.popleft())
        if not self._is_death_told and (error := replicas.dead_error) is not None:
            self._is_death_told = True
            self._on_death(error)
        self.on_attended()

    def _watch(self, rank: int, child: EngineChild) -> None:
        """Wait for what this process says, and for its end."""
        if self._loop is not None:
            self._watched[rank] = child
            self._loop.add_reader(child.output_fd, self._attend)
            self._loop.add_reader(child.lifeline_fd, self._attend)
            # the first is edge-triggered: what came before it was watched must be looked for
            self._loop.call_soon(self._attend)

    def _set_timer(self) -> None:
        """Attend to the core in time even if nothing happens: to start the next one, or to see that this one hangs."""
        at = self._replicas.attend_at
        if at is None or self._loop is None or (self._timer is not None and self._timer_at <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_later(max(at - time.monotonic(), 0), self._take_timer)

    def _unwatch(self, rank: int) -> None:
        child = self._watched.pop(rank, None)
        if child is not None and self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(child.output_fd)
            self._loop.remove_reader(child.lifeline_fd)

    def _take_timer(self) -> None:
        self._timer = None
        self._attend()
