"""The client of AsyncLLM; for the moment the core runs in a thread of this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from octavo.config import EngineArgs, OctavoConfig
from octavo.engine.core import EngineCore
from octavo.errors import EngineDeadError
from octavo.tokenizers.tokenizer import Tokenizer
from octavo.types.messages import EngineCoreOutputs
from octavo.types.request import EngineCoreRequest


@dataclass(frozen=True)
class StartedClient:
    """A client whose core is ready, and what it decided."""

    client: AsyncMPClient
    config: OctavoConfig
    tokenizer: Tokenizer | None
    max_kv_tokens: int


class AsyncMPClient:
    """Delivers to the event loop that first used it."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.dead_error: EngineDeadError | None = None
        self.is_ready = True
        threading.Thread(target=self._run, daemon=True).start()

    @classmethod
    def start(cls, args: EngineArgs) -> StartedClient:
        from octavo.engine.resolve import resolve
        from octavo.engine.startup import build_engine_core

        resolved = resolve(args)
        started = build_engine_core(resolved)
        return StartedClient(cls(started.core), started.config, resolved.tokenizer, started.max_kv_tokens)

    def set_handlers(
        self, on_outputs: Callable[[EngineCoreOutputs], None], on_death: Callable[[EngineDeadError], None]
    ) -> None:
        self._on_outputs, self._on_death = on_outputs, on_death

    def attach(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()

    def add_request(self, request: EngineCoreRequest) -> None:
        self._inbox.put(lambda: self._core.add_request(request))

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        self._inbox.put(lambda: self._core.abort_requests(request_ids))

    async def call(self, method: str, *args: Any) -> Any:
        future: Future[Any] = Future()

        def run() -> None:
            try:
                if method in ("pause", "resume", "sleep", "wake_up"):
                    future.set_result(None)
                elif method == "is_sleeping":
                    future.set_result(False)
                else:
                    future.set_result(getattr(self._core, method)(*args))
            except Exception as error:
                future.set_exception(error)

        self._inbox.put(run)
        return await asyncio.wrap_future(future)

    def shutdown(self) -> None:
        if self.is_ready:
            self.is_ready = False
            self.dead_error = EngineDeadError("the engine was shut down")
            self._inbox.put(None)

    def _run(self) -> None:
        while True:
            while not self._core.has_work() or not self._inbox.empty():
                job = self._inbox.get()
                if job is None:
                    return
                job()
            for outputs in self._core.step()[0].values():
                assert self._loop is not None
                self._loop.call_soon_threadsafe(self._on_outputs, outputs)
