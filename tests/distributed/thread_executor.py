"""Workers of several ranks in threads of this process: they compute the same as in processes, and start at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from octavo.config import OctavoConfig
from octavo.distributed.place import WorkerPlace
from octavo.distributed.rendezvous import Rendezvous
from octavo.executor.interface import Executor, PendingOutput
from octavo.executor.worker_class import start_worker
from octavo.loader.checkpoint import Checkpoint
from octavo.types.step import GrammarOutput, ModelRunnerOutput, SchedulerOutput

TIMEOUT_S = 20.0


class ThreadExecutor(Executor):
    """Each worker has a thread, which does what it is told in order."""

    def __init__(self, config: OctavoConfig, checkpoint: Checkpoint) -> None:
        parallel = config.parallel
        self.max_concurrent_batches = parallel.pipeline_parallel_size
        self.rendezvous = Rendezvous()
        place = WorkerPlace(
            local_size=parallel.world_size,
            tp_size=parallel.tensor_parallel_size,
            pp_size=parallel.pipeline_parallel_size,
            dcp_size=parallel.decode_context_parallel_size,
            address=self.rendezvous.address,
            timeout_s=TIMEOUT_S,
        )
        self._output_rank = place.output_rank
        self._threads = [ThreadPoolExecutor(1) for _ in range(parallel.world_size)]
        starts = [
            thread.submit(start_worker, config, checkpoint, replace(place, rank=rank, local_rank=rank))
            for rank, thread in enumerate(self._threads)
        ]
        self.workers = [start.result() for start in starts]
        self.rendezvous.remove()

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout_s: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        calls = [
            thread.submit(getattr(worker, str(method)), *args, **(kwargs or {}))
            for thread, worker in zip(self._threads, self.workers, strict=True)
        ]
        return [call.result() for call in calls]

    def execute_model(self, step: SchedulerOutput) -> PendingOutput:
        return self._on_all("execute_model", step)

    def sample_tokens(self, grammar: GrammarOutput | None) -> ModelRunnerOutput:
        output = self._on_all(_finish, None, grammar).result()
        assert output is not None
        return output

    def submit(
        self, step: SchedulerOutput, get_grammar: Callable[[SchedulerOutput], GrammarOutput | None]
    ) -> PendingOutput:
        grammar = get_grammar(step)
        return self._on_all(_finish, step, grammar)

    def _on_all(self, method: Any, *args: Any) -> Future[Any]:
        calls: list[Future[Any]] = []
        for thread, worker in zip(self._threads, self.workers, strict=True):
            if isinstance(method, str):
                calls.append(thread.submit(getattr(worker, method), *args))
            else:
                calls.append(thread.submit(method, worker, *args))
        return calls[self._output_rank]

    def check_health(self) -> None:
        return None

    def shutdown(self) -> None:
        for thread, worker in zip(self._threads, self.workers, strict=True):
            thread.submit(worker.shutdown)
            thread.shutdown()
        self.rendezvous.remove()


def _finish(worker: Any, step: SchedulerOutput | None, grammar: GrammarOutput | None) -> ModelRunnerOutput:
    output = None if step is None else worker.execute_model(step)
    if output is not None or (step is None and worker.place.pp_rank < worker.place.pp_size - 1):
        return output or ModelRunnerOutput()
    result: ModelRunnerOutput = worker.sample_tokens(grammar)
    return result
