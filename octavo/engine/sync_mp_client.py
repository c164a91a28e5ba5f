"""The client of a synchronous front end whose core runs in a process of its own."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from octavo.engine.process_start import ProcessHandle
from octavo.engine.replicas import merged, wait_for_news
from octavo.errors import EngineDeadError, UnsupportedError
from octavo.types.kv_events import KVCacheEvent
from octavo.types.messages import EngineCoreOutputs
from octavo.types.request import EngineCoreRequest
from octavo.types.stats import SchedulerStats


class SyncMPClient:
    """Waits in the calling thread. A process that dies is replaced while the caller waits for outputs."""

    def __init__(self, handle: ProcessHandle) -> None:
        self._replicas = handle.replicas
        self._pid = os.getpid()
        self._finalizer = weakref.finalize(self, handle.close)  # also when the interpreter ends

    def add_request(self, request: EngineCoreRequest) -> int:
        self._check_process()
        return self._replicas.add_request(request)

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        self._replicas.abort_requests(request_ids)

    def get_output(self) -> EngineCoreOutputs:
        """Return the next outputs. Raises EngineDeadError when the engine is dead for good."""
        while not self._replicas.outputs:
            self._check_alive()
            wait_for_news(self._replicas)
        return self._replicas.outputs.popleft()

    def reset_prefix_cache(self, reset_running_requests: bool) -> bool:
        was_reset: bool = merged("reset_prefix_cache", self._call("reset_prefix_cache", reset_running_requests))
        return was_reset

    def scheduler_stats(self) -> list[SchedulerStats]:
        return msgspec.convert(self._call("scheduler_stats"), list[SchedulerStats])

    def take_kv_events(self) -> list[KVCacheEvent]:
        return msgspec.convert(merged("take_kv_events", self._call("take_kv_events")), list[KVCacheEvent])

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout_s: float | None,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
    ) -> list[Any]:
        """Call a worker method by name. Raises UnsupportedError for functions: they cannot go to another process."""
        name = method_name(method)
        answers = self._call("collective_rpc", name, timeout_s, list(args), dict(kwargs or {}))
        results: list[Any] = merged("collective_rpc", answers)
        return results

    def sleep(self, level: int) -> None:
        self._call("sleep", level)

    def wake_up(self) -> None:
        self._call("wake_up")

    def load_vocabulary(self, packed: bytes) -> None:
        self._call("load_vocabulary", packed)

    def check_health(self) -> None:
        """Raise EngineDeadError when the engine is dead for good."""
        self._replicas.receive()
        self._check_alive()

    def shutdown(self) -> None:
        self._finalizer()

    def _call(self, method: str, *args: Any) -> list[Any]:
        """Return the answer of each replica."""
        self._check_process()
        futures = self._replicas.call(method, args)
        self._replicas.receive()
        while not all(future.done() for future in futures):
            wait_for_news(self._replicas)
        return [future.result() for future in futures]

    def _check_process(self) -> None:
        """Raise in a forked child: two processes at the same sockets would wait for each other's answers for ever."""
        if os.getpid() != self._pid:
            raise EngineDeadError(
                f"this engine belongs to process {self._pid} and cannot be used in {os.getpid()}, a fork of it; build "
                "LLM in the process that uses it"
            )

    def _check_alive(self) -> None:
        if (error := self._replicas.dead_error) is not None:
            raise error


def method_name(method: str | Callable[..., Any]) -> str:
    """Return the method's name; raises UnsupportedError for a function."""
    if isinstance(method, str):
        return method
    raise UnsupportedError(
        "collective_rpc takes the name of a worker method here, because the engine runs in a process of its own and "
        "functions cannot go there; add methods to the worker with worker_extension_cls, or run LLM in this process"
    )
