"""The client of an AsyncLLM that is one of several front ends: the cores are the hub's, which is another process."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from octavo.engine import hub_messages as wire
from octavo.engine.async_client import Services
from octavo.engine.core_messages import REQUEST_NOT_PLAIN, AbortRequests, CallResult, CallService, StepDone
from octavo.engine.frame_link import FrameLink
from octavo.engine.replicas import merged
from octavo.errors import EngineDeadError, InvalidRequestError, UnsupportedError
from octavo.types.messages import EngineCoreOutputs
from octavo.types.raised_error import error_from_data, failed_call_as_data
from octavo.types.request import EngineCoreRequest
from octavo.utils.plain_data import ONLY_PLAIN, encoded


class HubClient:
    """Speaks with the hub. See AsyncCoreClient for the methods.

    on_lost: called when the hub is gone, and so are the cores
    """

    def __init__(
        self,
        connection: socket.socket,
        welcome: wire.Welcome,
        on_lost: Callable[[], None],
        on_outputs: Callable[[EngineCoreOutputs], None],
        on_death: Callable[[EngineDeadError], None],
    ) -> None:
        self.services: Services = {}
        self._link = FrameLink(connection, self._take, on_lost)
        self._state = welcome.state
        self._standing = welcome.standing
        self._on_outputs = on_outputs
        self._on_death = on_death
        self._numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Future[list[Any]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_ready(self) -> bool:
        return self._state.is_ready

    @property
    def dead_error(self) -> EngineDeadError | None:
        return None if self._state.dead_error is None else EngineDeadError(self._state.dead_error)

    @property
    def process_ids(self) -> list[int | None]:
        return self._state.process_ids

    @property
    def are_serving(self) -> list[bool]:
        return self._state.are_serving

    def attach(self) -> bool:
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return False
        if self._loop is not None:
            raise RuntimeError("this engine belongs to another event loop; use it from there")
        self._loop = loop
        for call in self._standing:
            self._start_call(call)
        self._link.attach()
        return True

    def tell_ready(self) -> None:
        """Tell the hub that requests are taken now."""
        self._link.send(wire.encode(wire.FrontEndReady()))

    def add_request(self, request: EngineCoreRequest, rank: int | None = None) -> None:
        if (error := self.dead_error) is not None:
            raise error
        self._link.send(encoded(wire.encode, wire.PlaceRequest(request, rank), InvalidRequestError, REQUEST_NOT_PLAIN))

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        if request_ids:
            self._link.send(wire.encode(AbortRequests(list(request_ids))))

    def load_vocabulary(self, packed: bytes) -> None:
        self._link.send(wire.encode(wire.CallCores(0, "load_vocabulary", [packed])))

    async def call(self, method: str, *args: Any) -> Any:
        return merged(method, await self.call_each(method, *args))

    async def call_each(self, method: str, *args: Any, serving_only: bool = False) -> list[Any]:
        return await self._ask(wire.CallCores(next(self._numbers), method, list(args), serving_only))

    async def call_front_ends(self, method: str, *args: Any, standing: str = "") -> list[Any]:
        return await self._ask(wire.CallFrontEnds(next(self._numbers), method, list(args), standing))

    def shutdown(self) -> None:
        """Leave the hub; idempotent."""
        self._link.close()

    async def _ask(self, call: wire.CallCores | wire.CallFrontEnds) -> list[Any]:
        self.attach()
        if (error := self.dead_error) is not None:
            raise error
        text = f"{call.method}: arguments go to another process and {ONLY_PLAIN}"
        message = encoded(wire.encode, call, UnsupportedError, text)
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._calls[call.call_id] = future
        self._link.send(message)
        try:
            return await future
        finally:
            del self._calls[call.call_id]

    def _take(self, data: bytes) -> None:
        message = wire.decode_from_hub(data)
        if isinstance(message, StepDone):
            self._on_outputs(message.outputs)
        elif isinstance(message, CallResult):
            self._take_result(message)
        elif isinstance(message, CallService):
            self._start_call(message)
        elif isinstance(message, wire.EngineState):
            was_dead, self._state = self._state.dead_error, message
            if message.dead_error is not None and was_dead is None:
                self._on_death(EngineDeadError(message.dead_error))

    def _take_result(self, result: CallResult) -> None:
        future = self._calls.get(result.call_id)
        if future is None or future.done():
            return  # nobody waits for it any more
        if result.error is not None:
            future.set_exception(error_from_data(result.error))
        else:
            future.set_result(result.result)

    def _start_call(self, call: CallService) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, call: CallService) -> None:
        try:
            result = CallResult(call.call_id, msgspec.to_builtins(await self.services[call.method](*call.args)))
        except Exception as error:  # whatever it is, the caller gets it
            result = CallResult(call.call_id, error=failed_call_as_data(error, call.method, "in a server process"))
        if call.call_id:
            self._link.send(wire.encode(result))
