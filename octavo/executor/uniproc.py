"""One worker, in this process and thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from octavo.config import OctavoConfig
from octavo.distributed.place import WorkerPlace
from octavo.executor.interface import Done, Executor, PendingOutput
from octavo.executor.worker_class import start_worker, worker_method
from octavo.loader.checkpoint import Checkpoint
from octavo.types.step import GrammarOutput, ModelRunnerOutput, SchedulerOutput

ALONE = WorkerPlace()


class UniProcExecutor(Executor):
    """Calls its worker directly: the forward runs in the calling thread, and is over when `execute_model` returns."""

    def __init__(self, config: OctavoConfig, checkpoint: Checkpoint, place: WorkerPlace = ALONE) -> None:
        self.worker = start_worker(config, checkpoint, place)

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
        return [worker_method(self.worker, method)(*args, **(kwargs or {}))]

    def execute_model(self, step: SchedulerOutput) -> PendingOutput:
        return Done(self.worker.execute_model(step))

    def sample_tokens(self, grammar: GrammarOutput | None) -> ModelRunnerOutput:
        return self.worker.sample_tokens(grammar)

    def check_health(self) -> None:
        return None

    def shutdown(self) -> None:
        self.worker.shutdown()
