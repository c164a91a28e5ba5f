"""The client of a synchronous front end whose core runs in a process of its own."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from octavo.engine.process_start import ProcessHandle
from octavo.errors import UnsupportedError
from octavo.types.kv_events import KVCacheEvent
from octavo.types.messages import EngineCoreOutputs
from octavo.types.request import EngineCoreRequest
from octavo.types.stats import SchedulerStats


class SyncMPClient:
    """Waits in the calling thread. A process that dies is replaced while the caller waits for outputs."""

    def __init__(self, handle: ProcessHandle) -> None:
        self._supervisor = handle.supervisor
        self._finalizer = weakref.finalize(self, handle.close)  # also when the interpreter ends

    def add_request(self, request: EngineCoreRequest) -> None:
        self._supervisor.add_request(request)

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        self._supervisor.abort_requests(request_ids)

    def get_output(self) -> EngineCoreOutputs:
        """Return the next outputs. Raises EngineDeadError when the engine is dead for good."""
        while not self._supervisor.outputs:
            self._check_alive()
            self._wait()
        return self._supervisor.outputs.popleft()

    def reset_prefix_cache(self, reset_running_requests: bool) -> bool:
        was_reset: bool = self._call("reset_prefix_cache", reset_running_requests)
        return was_reset

    def scheduler_stats(self) -> SchedulerStats:
        return msgspec.convert(self._call("scheduler_stats"), SchedulerStats)

    def take_kv_events(self) -> list[KVCacheEvent]:
        return msgspec.convert(self._call("take_kv_events"), list[KVCacheEvent])

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout_s: float | None,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
    ) -> list[Any]:
        """Call a worker method by name. Raises UnsupportedError for functions: they cannot go to another process."""
        name = method_name(method)
        results: list[Any] = self._call("collective_rpc", name, timeout_s, list(args), dict(kwargs or {}))
        return results

    def load_vocabulary(self, packed: bytes) -> None:
        self._call("load_vocabulary", packed)

    def check_health(self) -> None:
        """Raise EngineDeadError when the engine is dead for good."""
        self._supervisor.receive()
        self._check_alive()

    def shutdown(self) -> None:
        self._finalizer()

    def _call(self, method: str, *args: Any) -> Any:
        future = self._supervisor.call(method, args)
        self._supervisor.receive()
        while not future.done():
            self._wait()
        return future.result()

    def _wait(self) -> None:
        """Block until something has happened to the process, and take it in.

        Call `receive` and look at what came before: what was taken in already wakes nobody again.
        """
        supervisor = self._supervisor
        attend_at = supervisor.attend_at
        wait_s = None if attend_at is None else max(attend_at - time.monotonic(), 0)
        if supervisor.child is not None:
            supervisor.child.wait(wait_s)
        elif wait_s is not None:
            time.sleep(wait_s)
        supervisor.receive()

    def _check_alive(self) -> None:
        if self._supervisor.dead_error is not None:
            raise self._supervisor.dead_error


def method_name(method: str | Callable[..., Any]) -> str:
    """Return the method's name; raises UnsupportedError for a function."""
    if isinstance(method, str):
        return method
    raise UnsupportedError(
        "collective_rpc takes the name of a worker method here, because the engine runs in a process of its own and "
        "functions cannot go there; add methods to the worker with worker_extension_cls, or run LLM in this process"
    )
