"""Several engine cores as one: routes requests, moves those of a core that died, asks all for services.

Like the supervisors that it holds it never waits: its owner does, for the file descriptors of all processes
(`wait_for_news`, or an event loop).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from itertools import chain
from typing import Any

from octavo.engine.balancer import Balancer, ReplicaLoad
from octavo.engine.core_child import EngineChild, wait_for_any
from octavo.engine.supervisor import CoreState, CoreSupervisor
from octavo.errors import EngineDeadError
from octavo.log import get_logger
from octavo.types.messages import EngineCoreOutputs
from octavo.types.request import EngineCoreRequest
from octavo.types.stats import SchedulerStats

logger = get_logger(__name__)


class Replicas:
    """At least one supervised core. A request's result does not depend on where it is computed, nor on its moves.

    supervisors: by rank, from 0; outputs: of all, each with its rank as engine_index
    """

    def __init__(self, balancer: Balancer) -> None:
        self.supervisors: list[CoreSupervisor] = []
        self.outputs: deque[EngineCoreOutputs] = deque()
        self._balancer = balancer
        self._stats: list[SchedulerStats] = []  # of the last step of each
        self._children: list[EngineChild | None] = []  # whose KV caches the balancer knows

    def add(self, supervisor: CoreSupervisor) -> None:
        """Take in the next rank, which may still start."""
        supervisor.has_stand_in = lambda: any(
            other.dead_error is None and not other.is_resting for other in self.supervisors if other is not supervisor
        )
        self.supervisors.append(supervisor)
        self._stats.append(SchedulerStats())
        self._children.append(supervisor.child)

    @property
    def is_ready(self) -> bool:
        """Whether at least one core is there."""
        return any(supervisor.state is CoreState.READY for supervisor in self.supervisors)

    @property
    def dead_error(self) -> EngineDeadError | None:
        """Why no core will come any more; None while one is there, or will be."""
        errors = [supervisor.dead_error for supervisor in self.supervisors]
        return errors[0] if all(errors) else None

    @property
    def attend_at(self) -> float | None:
        """When `receive` must be called even if nothing happens (clock time); None: no need."""
        times = [at for supervisor in self.supervisors if (at := supervisor.attend_at) is not None]
        return min(times, default=None)

    def add_request(self, request: EngineCoreRequest, rank: int | None = None) -> int:
        """Hand over a request; return the rank that has it. Raises EngineDeadError when no core will come any more.

        rank: where to, as long as that core serves
        """
        self._check_alive()
        rank = self._balancer.choose(self._loads(), request, rank)
        self.supervisors[rank].add_request(request)
        return rank

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """End requests; unknown ids are ignored."""
        for supervisor in self.supervisors:
            supervisor.abort_requests(request_ids)

    def call(self, method: str, args: tuple[Any, ...], serving_only: bool = False) -> list[Future[Any]]:
        """Call a service of every core that is not dead for good; see `merged` for what their answers mean together.

        serving_only: only of those that can answer at once
        """
        self._check_alive()
        return [
            supervisor.call(method, args)
            for supervisor in self.supervisors
            if (supervisor.is_serving if serving_only else supervisor.dead_error is None)
        ]

    def receive(self) -> None:
        """Take everything that the processes have said, and their deaths; start others when it is time."""
        for rank, supervisor in enumerate(self.supervisors):
            supervisor.receive()
            if supervisor.child is not self._children[rank]:
                self._children[rank] = supervisor.child
                self._balancer.forget(rank)
            while supervisor.outputs:
                outputs = supervisor.outputs.popleft()
                outputs.engine_index = rank
                if outputs.scheduler_stats is not None:
                    self._stats[rank] = outputs.scheduler_stats
                self.outputs.append(outputs)
        if len(self.supervisors) > 1:
            self._move_stranded()

    def close(self) -> None:
        """End the processes, whatever they do; idempotent."""
        for supervisor in self.supervisors:
            supervisor.ask_to_stop()
        for supervisor in self.supervisors:
            supervisor.close()

    def _move_stranded(self) -> None:
        """Give the requests of cores that do not serve to those that do, or to any that will if theirs never does."""
        is_any_serving = any(supervisor.is_serving for supervisor in self.supervisors)
        for rank, supervisor in enumerate(self.supervisors):
            if supervisor.is_serving or not supervisor.requests.num_unsent:
                continue
            is_dead = supervisor.dead_error is not None
            if self.dead_error is not None or not (is_dead or is_any_serving):
                continue
            moved = supervisor.requests.take_movable(with_suspects=is_dead)
            for entry in moved:
                target = self.supervisors[self._balancer.choose(self._loads(), entry.request)]
                target.requests.adopt(entry)
                target.send_requests()
            if moved:
                logger.warning("replica %d does not serve now: %d requests go on at others", rank, len(moved))

    def _loads(self) -> list[ReplicaLoad | None]:
        return [
            ReplicaLoad(len(supervisor.requests), self._stats[rank], supervisor.is_serving)
            if supervisor.dead_error is None
            else None
            for rank, supervisor in enumerate(self.supervisors)
        ]

    def _check_alive(self) -> None:
        if (error := self.dead_error) is not None:
            raise error


def wait_for_news(replicas: Replicas) -> None:
    """Block until something has happened to a process, or it is time to look, and take it in.

    Call `receive` and look at what came before: what was taken in already wakes nobody again.
    """
    attend_at = replicas.attend_at
    children = [supervisor.child for supervisor in replicas.supervisors if supervisor.child is not None]
    if children or attend_at is not None:
        wait_for_any(children, None if attend_at is None else attend_at - time.monotonic())
    replicas.receive()


def merged(method: str, answers: Sequence[Any]) -> Any:
    """Return what the replicas' answers to a call mean together."""
    merge = _MERGE.get(method)
    return answers[0] if merge is None or len(answers) == 1 else merge(answers)


# how the answers of several replicas become one; what is not here answers the same everywhere
_MERGE: Mapping[str, Callable[[Sequence[Any]], Any]] = {
    "reset_prefix_cache": all,
    "is_sleeping": all,
    "collective_rpc": lambda answers: list(chain.from_iterable(answers)),
    "take_kv_events": lambda answers: list(chain.from_iterable(answers)),
}
