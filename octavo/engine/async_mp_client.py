"""The client of AsyncLLM: a core in a process of its own, attended to by an event loop. No threads, no polling."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from octavo.engine.core_child import CoreChild
from octavo.engine.process_start import ProcessHandle
from octavo.engine.supervisor import CoreState
from octavo.errors import EngineDeadError
from octavo.types.messages import EngineCoreOutputs
from octavo.types.request import EngineCoreRequest


class AsyncMPClient:
    """Delivers to handlers, in the event loop that first used it.

    on_outputs: called with what each step brought; on_death: called once, when no core will come any more
    """

    def __init__(
        self,
        handle: ProcessHandle,
        on_outputs: Callable[[EngineCoreOutputs], None],
        on_death: Callable[[EngineDeadError], None],
    ) -> None:
        self._supervisor = handle.supervisor
        handle.supervisor.before_close = self._unwatch
        self._on_outputs = on_outputs
        self._on_death = on_death
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watched: CoreChild | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0  # when it ends, in time.monotonic()
        self._is_death_told = False
        self._finalizer = weakref.finalize(self, handle.close)  # also when the interpreter ends

    @property
    def is_ready(self) -> bool:
        """Whether a core takes requests now."""
        return self._supervisor.state is CoreState.READY

    @property
    def dead_error(self) -> EngineDeadError | None:
        """Why no core will come any more; None while there is one, or will be."""
        return self._supervisor.dead_error

    @property
    def process_id(self) -> int | None:
        """The process of the present core; None between two."""
        child = self._supervisor.child
        return None if child is None else child.process_id

    def attach(self) -> bool:
        """Let the running event loop attend to the core; return whether another did before, or none."""
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return False
        if self._loop is not None and not self._loop.is_closed():
            raise RuntimeError("this engine belongs to another event loop; use it from there, or close that loop first")
        self._loop = loop
        self._watched = self._timer = None
        self._attend()
        return True

    def add_request(self, request: EngineCoreRequest) -> None:
        """Hand over a request; while a core is replaced it waits. Raises EngineDeadError when none will come."""
        self._supervisor.add_request(request)
        self._set_timer()

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """End requests; unknown ids are ignored."""
        self._supervisor.abort_requests(request_ids)

    def load_vocabulary(self, packed: bytes) -> None:
        """Give the core the tokens' bytes, before the first request with a grammar; what follows is sent after it."""
        self._supervisor.call("load_vocabulary", (packed,))
        self._set_timer()

    async def call(self, method: str, *args: Any) -> Any:
        """Call a service of the core and return its answer; while a core is replaced the call waits."""
        self.attach()
        future = self._supervisor.call(method, args)
        self._set_timer()
        return await asyncio.wrap_future(future)

    def shutdown(self) -> None:
        """End the process; idempotent. Call it in the loop's thread, or when the loop has ended."""
        self._unwatch()
        if self._timer is not None:
            self._timer.cancel()
        self._finalizer()

    def _attend(self) -> None:
        """Take in what has happened, hand it on, and wait for more."""
        supervisor = self._supervisor
        supervisor.receive()
        self._watch(supervisor.child)
        self._set_timer()
        while supervisor.outputs:
            self._on_outputs(supervisor.outputs.popleft())
        if supervisor.dead_error is not None and not self._is_death_told:
            self._is_death_told = True
            self._on_death(supervisor.dead_error)

    def _watch(self, child: CoreChild | None) -> None:
        """Wait for what this process says, and for its end."""
        if child is not None and self._watched is None and self._loop is not None:
            self._watched = child
            self._loop.add_reader(child.output_fd, self._attend)
            self._loop.add_reader(child.lifeline_fd, self._attend)
            # the first is edge-triggered: what came before it was watched must be looked for
            self._loop.call_soon(self._attend)

    def _set_timer(self) -> None:
        """Attend to the core in time even if nothing happens: to start the next one, or to see that this one hangs."""
        at = self._supervisor.attend_at
        if at is None or self._loop is None or (self._timer is not None and self._timer_at <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_later(max(at - time.monotonic(), 0), self._take_timer)

    def _unwatch(self) -> None:
        if self._watched is not None and self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._watched.output_fd)
            self._loop.remove_reader(self._watched.lifeline_fd)
        self._watched = None

    def _take_timer(self) -> None:
        self._timer = None
        self._attend()
