"""An executor whose workers are in other processes, however these are reached.

A step is one message to all workers and one reply from the output rank, also when a grammar follows while the forward
runs. What goes wrong at one of several workers leaves the others out of step: the executor is dead then.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from octavo.config import OctavoConfig
from octavo.distributed.rendezvous import Rendezvous
from octavo.errors import EngineDeadError, PeerLostError, RequestFailedError
from octavo.executor.interface import Executor, PendingOutput
from octavo.executor.messages import CallReply, ErrorReply, RunStep, Sample, StepReply, encode, encode_call
from octavo.types.kv_spec import KVCacheSpec
from octavo.types.raised_error import error_from_data
from octavo.types.step import GrammarOutput, ModelRunnerOutput, SchedulerOutput

Answer = StepReply | CallReply | ErrorReply


class RemoteWorkers(Protocol):
    """Workers that have loaded their weights. Every method raises PeerLostError when one of them is gone or hangs."""

    @property
    def size(self) -> int: ...

    def send(self, command: bytes, timeout_s: float | None) -> None:
        """Give a command to all of them; raises TimeoutError when one takes none for so long."""

    def receive(self, rank: int, timeout_s: float | None) -> tuple[int, Answer]:
        """Return the next reply of a rank, or an ErrorReply of any, with its rank; raises TimeoutError."""

    def check(self) -> None: ...

    def on_failure(self, callback: Callable[[], None]) -> None: ...

    def describe_hang(self, timeout_s: float) -> PeerLostError:
        """Return an error that tells what each worker does instead of having done the step."""

    def kill(self) -> None:
        """End all workers at once; idempotent."""

    def close(self) -> None:
        """Let the workers end by themselves, for a short while, then kill them; idempotent."""


class RemoteExecutor(Executor):
    """Speaks with RemoteWorkers; not thread-safe."""

    def __init__(self, workers: RemoteWorkers, config: OctavoConfig) -> None:
        parallel = config.parallel
        self.workers = workers
        # ahead of workers that are never to wait there is one step, in a pipeline there is one for each stage
        self.max_concurrent_batches = 2 if config.scheduler.async_scheduling else parallel.pipeline_parallel_size
        self._output_rank = parallel.output_rank
        self._step_timeout_s = parallel.step_timeout_s
        self._number = 0  # of the last command
        self._in_flight: dict[int, Answer | None] = {}  # steps whose result was not taken, and replies that came early
        self._dead_error: EngineDeadError | None = None

    # -- steps ---------------------------------------------------------------------------------------------------------

    def execute_model(self, step: SchedulerOutput) -> PendingOutput:
        samples = not step.structured_request_ids
        self._number += 1
        self._send(encode(RunStep(self._number, step, samples, is_ahead=len(self._in_flight) > 0)))
        self._in_flight[self._number] = None
        return _PendingStep(self, self._number, samples)

    def sample_tokens(self, grammar: GrammarOutput | None) -> ModelRunnerOutput:
        self._send(encode(Sample(self._number, grammar)))
        return self.take_step(self._number)

    def submit(
        self, step: SchedulerOutput, get_grammar: Callable[[SchedulerOutput], GrammarOutput | None]
    ) -> PendingOutput:
        self.execute_model(step)
        if step.structured_request_ids:
            self._send(encode(Sample(self._number, get_grammar(step))))
        return _PendingStep(self, self._number, True)

    def take_step(self, number: int) -> ModelRunnerOutput:
        """Wait for the output of a step; of earlier ones none is taken any more."""
        try:
            reply = self._in_flight[number] or self._receive(self._output_rank, number, self._step_timeout_s)
        except TimeoutError:
            raise self._die(self.workers.describe_hang(self._step_timeout_s or 0.0)) from None
        self._in_flight = {later: early for later, early in self._in_flight.items() if later > number}
        if isinstance(reply, ErrorReply):
            raise error_from_data(reply.error, RequestFailedError)
        assert isinstance(reply, StepReply)
        return reply.output

    # -- calls ---------------------------------------------------------------------------------------------------------

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout_s: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a worker method by name; arguments and results are plain data. Raises the first error of any worker."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._number += 1
        self._send(encode_call(self._number, method, args, kwargs or {}))
        results = []
        for rank in range(self.workers.size):
            left_s = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            try:
                reply = self._receive(rank, self._number, left_s)
            except TimeoutError:
                raise TimeoutError(f"{method}: rank {rank} has not answered after {timeout_s:g} s") from None
            if isinstance(reply, ErrorReply):  # maybe another rank's, of which then no other reply would come
                raise error_from_data(reply.error, RequestFailedError)
            assert isinstance(reply, CallReply)
            results.append(reply.result)
        return results

    def get_kv_cache_specs(self) -> list[Mapping[str, KVCacheSpec]]:
        specs = self.collective_rpc("get_kv_cache_specs")
        return msgspec.convert(specs, list[Mapping[str, KVCacheSpec]])

    # -- life ----------------------------------------------------------------------------------------------------------

    def check_health(self) -> None:
        if self._dead_error is not None:
            raise self._dead_error
        try:
            self.workers.check()
        except EngineDeadError as error:
            raise self._die(error) from None

    def on_failure(self, callback: Callable[[], None]) -> None:
        self.workers.on_failure(callback)

    def shutdown(self) -> None:
        self.workers.close()
        self._dead_error = self._dead_error or EngineDeadError("the workers were shut down")

    def _send(self, command: bytes) -> None:
        self.check_health()
        try:
            self.workers.send(command, self._step_timeout_s)
        except TimeoutError:
            raise self._die(self.workers.describe_hang(self._step_timeout_s or 0.0)) from None
        except EngineDeadError as error:
            raise self._die(error) from None

    def _receive(self, rank: int, number: int, timeout_s: float | None) -> Answer:
        """Return a rank's reply to the command of this number; what interrupted commands brought is dropped."""
        while True:
            try:
                sender, reply = self.workers.receive(rank, timeout_s)
            except EngineDeadError as error:
                raise self._die(error) from None
            if isinstance(reply, ErrorReply) and reply.number in self._in_flight and self.workers.size > 1:
                raise self._die(PeerLostError(f"a step failed at rank {sender}: {reply.error.text}"))
            if reply.number == number:
                return reply
            if reply.number in self._in_flight:
                self._in_flight[reply.number] = reply

    def _die(self, error: EngineDeadError) -> EngineDeadError:
        self._dead_error = self._dead_error or error
        self.workers.kill()
        return self._dead_error


class _PendingStep:
    """A step under way. samples: its reply has the tokens; else a Sample must come before it."""

    __slots__ = ("_executor", "_number", "_samples")

    def __init__(self, executor: RemoteExecutor, number: int, samples: bool) -> None:
        self._executor = executor
        self._number = number
        self._samples = samples

    def result(self) -> ModelRunnerOutput | None:
        return self._executor.take_step(self._number) if self._samples else None


def wait_until_started(workers: RemoteWorkers, rendezvous: Rendezvous | None) -> None:
    """Wait until all have loaded their weights, and so have met; raises what is wrong with any of them."""
    for rank in range(workers.size):
        _, reply = workers.receive(rank, None)
        if isinstance(reply, ErrorReply):
            raise error_from_data(reply.error)
    if rendezvous is not None:
        rendezvous.remove()


def take_reply(replies: Sequence[deque[Answer]], rank: int) -> tuple[int, Answer] | None:
    """Take the oldest reply of a rank, or an error that is the oldest of any, with its rank."""
    for sender, own in enumerate(replies):
        if own and (sender == rank or isinstance(own[0], ErrorReply)):
            return sender, own.popleft()
    return None


def hang_report(timeout_s: float, answers: Mapping[int, str], size: int) -> PeerLostError:
    """Return an error that names ranks that are silent, and says where (by rank) the others are in their program."""
    ranks = [
        f"rank {rank} " + (f"is at {answers[rank]}" if rank in answers else "is stopped or stuck: it answers nothing")
        for rank in range(size)
    ]
    return PeerLostError(f"a step was not done after {timeout_s:g} s: {'; '.join(ranks)}")
