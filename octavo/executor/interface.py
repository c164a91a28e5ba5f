"""What the engine core asks of its workers, wherever they run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from octavo.config import OctavoConfig
from octavo.errors import ConfigError
from octavo.loader.checkpoint import Checkpoint
from octavo.types.kv_spec import KVCacheConfig, KVCacheSpec
from octavo.types.step import GrammarOutput, ModelRunnerOutput, SchedulerOutput
from octavo.utils.imports import import_by_name


class PendingOutput(Protocol):
    """A step that may still be computed; a `concurrent.futures.Future` is one."""

    def result(self) -> ModelRunnerOutput | None:
        """Wait for the end, and return the output or raise what the step raised."""


@dataclass(frozen=True, slots=True)
class Done:
    """The output of what has ended. A Future costs about 0.2 ms a step: locks, on cold caches."""

    output: ModelRunnerOutput | None

    def result(self) -> ModelRunnerOutput | None:
        return self.output


class Executor(ABC):
    """Workers behind one interface; `collective_rpc` is the primitive, the rest is typed convenience.

    max_concurrent_batches: steps that may be pending at the same time; their results are taken in order
    """

    max_concurrent_batches: int = 1

    @staticmethod
    def get_class(config: OctavoConfig) -> Callable[[OctavoConfig, Checkpoint], Executor]:
        """Choose the executor for a configuration; raises ConfigError."""
        backend = config.parallel.distributed_executor_backend
        is_name = backend in _EXECUTORS or not backend.isidentifier()
        found = import_by_name(_EXECUTORS.get(backend, backend)) if is_name else None
        if not (isinstance(found, type) and issubclass(found, Executor)):
            raise ConfigError(
                f"distributed_executor_backend must be one of {', '.join(_EXECUTORS)}, or name a subclass of "
                f"{__name__}.Executor, got {backend!r}"
            )
        return found

    @abstractmethod
    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout_s: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a worker method by name on every worker; in this process also a function, which gets the worker first.

        Raises TimeoutError when a worker has not answered after timeout_s.
        """

    @abstractmethod
    def execute_model(self, step: SchedulerOutput) -> PendingOutput:
        """Start the forward. A result of None says: call `sample_tokens` for the tokens."""

    @abstractmethod
    def sample_tokens(self, grammar: GrammarOutput | None) -> ModelRunnerOutput:
        """Sample from the logits of the last `execute_model`."""

    def submit(
        self, step: SchedulerOutput, get_grammar: Callable[[SchedulerOutput], GrammarOutput | None]
    ) -> PendingOutput:
        """Start a whole step; the result, which is never None, has its tokens.

        get_grammar: called once, here, while the workers compute if they are elsewhere
        """
        running = self.execute_model(step)
        grammar = get_grammar(step)
        output = running.result()
        return Done(output if output is not None else self.sample_tokens(grammar))

    @abstractmethod
    def check_health(self) -> None:
        """Raise EngineDeadError when a worker is gone."""

    def on_failure(self, callback: Callable[[], None]) -> None:  # noqa: B027  # a worker in this process never dies alone
        """Have a function called, in any thread, when a worker dies: `check_health` then says so."""

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


_EXECUTORS: Mapping[str, str] = {
    "uni": "octavo.executor.uniproc:UniProcExecutor",
    "mp": "octavo.executor.multiproc:MultiprocExecutor",
    "ray": "octavo.executor.ray_executor:RayExecutor",
    "external_launcher": "octavo.executor.external_launcher:ExternalLauncherExecutor",
}
