"""One worker, in this process and thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.config import OctavoConfig
from octavo.errors import ConfigError, UnsupportedError
from octavo.executor.interface import Executor, PendingOutput
from octavo.loader.checkpoint import Checkpoint
from octavo.types.step import GrammarOutput, ModelRunnerOutput, SchedulerOutput
from octavo.utils.imports import import_by_name
from octavo.worker.worker import Worker


@dataclass(frozen=True, slots=True)
class _Done:
    """The output of a forward that has ended. A Future costs about 0.2 ms a step: locks, on cold caches."""

    output: ModelRunnerOutput | None

    def result(self) -> ModelRunnerOutput | None:
        return self.output


class UniProcExecutor(Executor):
    """Calls its worker directly: the forward runs in the calling thread, and is over when `execute_model` returns."""

    def __init__(self, config: OctavoConfig, checkpoint: Checkpoint) -> None:
        self.worker = worker_class(config)(config, checkpoint, rank=0)
        self.worker.init_device()
        self.worker.load_model()

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout_s: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call the one worker; `timeout_s` has no meaning in the same thread."""
        if callable(method):
            return [method(self.worker, *args, **(kwargs or {}))]
        function = getattr(self.worker, method, None) if isinstance(method, str) else None
        if not callable(function):
            raise UnsupportedError(f"the worker has no method {method!r}; give a name of one or a function")
        return [function(*args, **(kwargs or {}))]

    def execute_model(self, step: SchedulerOutput) -> PendingOutput:
        return _Done(self.worker.execute_model(step))

    def sample_tokens(self, grammar: GrammarOutput | None) -> ModelRunnerOutput:
        return self.worker.sample_tokens(grammar)

    def check_health(self) -> None:
        return None

    def shutdown(self) -> None:
        self.worker.shutdown()


def worker_class(config: OctavoConfig) -> type[Worker]:
    """Return the worker class that the configuration names, with its extension's methods added."""
    parallel = config.parallel
    base: type[Worker] = _import_class("worker_cls", parallel.worker_cls) if parallel.worker_cls else Worker
    if not issubclass(base, Worker):
        raise ConfigError(f"worker_cls={parallel.worker_cls!r} must name a subclass of octavo.worker.worker.Worker")
    if not parallel.worker_extension_cls:
        return base
    extension = _import_class("worker_extension_cls", parallel.worker_extension_cls)
    try:
        return type(f"{base.__name__}With{extension.__name__}", (base, extension), {})
    except TypeError as error:
        raise ConfigError(
            f"worker_extension_cls={parallel.worker_extension_cls!r} cannot be mixed into {base.__name__}: {error}"
        ) from error


def _import_class(option: str, name: str) -> type[Any]:
    imported = import_by_name(name)
    if not isinstance(imported, type):
        raise ConfigError(f"{option}={name!r} must name a class, got {type(imported).__name__}")
    return imported
