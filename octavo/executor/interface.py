"""What the engine core asks of its workers, wherever they run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from octavo.config import OctavoConfig
from octavo.errors import ConfigError
from octavo.loader.checkpoint import Checkpoint
from octavo.types.kv_spec import KVCacheConfig, KVCacheSpec
from octavo.types.step import GrammarOutput, ModelRunnerOutput, SchedulerOutput


class PendingOutput(Protocol):
    """A forward that may still run; a `concurrent.futures.Future` is one."""

    def result(self) -> ModelRunnerOutput | None:
        """Wait for the end, and return the output or raise what the forward raised."""


class Executor(ABC):
    """Workers behind one interface; `collective_rpc` is the primitive, the rest is typed convenience."""

    @staticmethod
    def get_class(config: OctavoConfig) -> Callable[[OctavoConfig, Checkpoint], Executor]:
        """Choose the executor for a configuration."""
        from octavo.executor.uniproc import UniProcExecutor

        backend = config.parallel.distributed_executor_backend
        if backend != "uni":
            raise ConfigError(f"distributed_executor_backend must be 'uni', got {backend!r}")
        return UniProcExecutor

    @abstractmethod
    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout_s: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a worker method by name, or a function with the worker as first argument, on every worker."""

    @abstractmethod
    def execute_model(self, step: SchedulerOutput) -> PendingOutput:
        """Start the forward. A result of None says: call `sample_tokens` for the tokens."""

    @abstractmethod
    def sample_tokens(self, grammar: GrammarOutput | None) -> ModelRunnerOutput:
        """Sample from the logits of the last `execute_model`."""

    @abstractmethod
    def check_health(self) -> None:
        """Raise EngineDeadError when a worker is gone."""

    @abstractmethod
    def shutdown(self) -> None:
        """Release the workers; idempotent."""

    def get_kv_cache_specs(self) -> list[Mapping[str, KVCacheSpec]]:
        """Return each worker's layers and what they store."""
        return self.collective_rpc("get_kv_cache_specs")

    def determine_available_memory(self) -> list[int]:
        """Return each worker's byte budget for the KV cache."""
        return self.collective_rpc("determine_available_memory")

    def initialize_from_config(self, kv_cache_configs: Sequence[KVCacheConfig], max_model_len: int) -> None:
        """Let every worker allocate its caches and rows; one plan per worker."""
        self.collective_rpc("initialize_from_config", args=(list(kv_cache_configs), max_model_len))
