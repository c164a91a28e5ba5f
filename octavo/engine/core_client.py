"""How a front end reaches an engine core: one protocol, here the client for a core in the same process."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from octavo.engine.core import EngineCore
from octavo.types.kv_events import KVCacheEvent
from octavo.types.messages import EngineCoreOutputs
from octavo.types.request import EngineCoreRequest
from octavo.types.stats import SchedulerStats


class EngineCoreClient(Protocol):
    """What a synchronous front end asks of a core, wherever the core runs."""

    def add_request(self, request: EngineCoreRequest) -> int:
        """Hand a request to the core; return the rank of the replica that has it."""

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """End requests by internal id; unknown ids are ignored."""

    def get_output(self) -> EngineCoreOutputs:
        """Return the next outputs for this client; blocks while the core computes."""

    def reset_prefix_cache(self, reset_running_requests: bool) -> bool:
        """Forget cached prefixes; False when blocks are in use."""

    def scheduler_stats(self) -> list[SchedulerStats]:
        """Return the scheduler's state now, of each replica."""

    def take_kv_events(self) -> list[KVCacheEvent]:
        """Return the KV cache events since the last call."""

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout_s: float | None,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
    ) -> list[Any]:
        """Call a method on every worker."""

    def sleep(self, level: int) -> None:
        """Give memory back and compute nothing until `wake_up`."""

    def wake_up(self) -> None:
        """Take the memory again."""

    def load_vocabulary(self, packed: bytes) -> None:
        """Give the core the tokens' bytes, before the first request with a grammar."""

    def check_health(self) -> None:
        """Raise EngineDeadError when the core or a worker is gone."""

    def shutdown(self) -> None:
        """Release the core; idempotent."""


class InprocClient:
    """A core in this process and thread: asking for output runs a step."""

    def __init__(self, core: EngineCore) -> None:
        self.engine_core = core
        self.abort_requests = core.abort_requests
        self.reset_prefix_cache = core.reset_prefix_cache
        self.take_kv_events = core.take_kv_events
        self.collective_rpc = core.collective_rpc
        self.sleep = core.sleep
        self.wake_up = core.wake_up
        self.load_vocabulary = core.load_vocabulary
        self.check_health = core.check_health
        self.shutdown = weakref.finalize(self, core.shutdown)  # not when the collector finds the cycles in the core

    def add_request(self, request: EngineCoreRequest) -> int:
        self.engine_core.add_request(request)
        return 0

    def get_output(self) -> EngineCoreOutputs:
        return self.engine_core.step() or EngineCoreOutputs()

    def scheduler_stats(self) -> list[SchedulerStats]:
        return [self.engine_core.scheduler_stats()]
