"""Workers as actors of a Ray cluster, on one machine or many: one bundle of a placement group for each.

Commands and replies are the same bytes as between processes of our own; Ray carries them. `ray` comes with octavo[ray].
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from octavo.config import OctavoConfig
from octavo.distributed.rendezvous import Rendezvous
from octavo.errors import ConfigError, PeerLostError
from octavo.executor.messages import Doing, decode_reply, encode_start
from octavo.executor.places import worker_places
from octavo.executor.ray_actor import RayWorker
from octavo.executor.remote import Answer, RemoteExecutor, hang_report, take_reply, wait_until_started
from octavo.loader.checkpoint import Checkpoint

_PLACEMENT_TIMEOUT_S = 60.0
_ANSWER_TIMEOUT_S = 1.0
_LIFE, _QUESTIONS = "life", "questions"  # threads of an actor beside the one that computes


class RayExecutor(RemoteExecutor):
    """Connects to the cluster of RAY_ADDRESS or of this machine, or starts one here."""

    def __init__(self, config: OctavoConfig, checkpoint: Checkpoint) -> None:
        workers = RayWorkers(config, checkpoint)
        super().__init__(workers, config)
        self._finalizer = weakref.finalize(self, workers.kill)


class RayWorkers:
    """The actors. Ranks on one machine follow each other."""

    def __init__(self, config: OctavoConfig, checkpoint: Checkpoint) -> None:
        """Start all and wait until they have loaded their weights; raises what is wrong with any of them."""
        self._ray = _import_ray()
        self.size = config.parallel.world_size
        self._own_cluster = not self._ray.is_initialized()
        if self._own_cluster:
            self._ray.init(log_to_driver=True)
        self._actors: list[Any] = []
        self._lives: list[Any] = []  # of each actor, a call that ends when it does
        self._pending: list[deque[Any]] = [deque() for _ in range(self.size)]  # calls of each rank, oldest first
        self._replies: list[deque[Answer]] = [deque() for _ in range(self.size)]
        self._group: Any = None
        self._rendezvous: Rendezvous | None = None
        self._is_closed = False
        try:
            self._start(config, checkpoint)
        except BaseException:
            self.kill()
            raise

    def _start(self, config: OctavoConfig, checkpoint: Checkpoint) -> None:
        self._group = _placement_group(self._ray, self.size)
        nodes = self._create_actors()
        if set(nodes) == {self._ray.get_runtime_context().get_node_id()}:
            self._rendezvous = Rendezvous()
            address = self._rendezvous.address
        else:
            address = self._ray.get(self._actors[0].free_address.remote())
        for rank, place in enumerate(worker_places(config.parallel, address, nodes)):
            call = self._actors[rank].start.remote(encode_start(config, checkpoint, place))
            self._pending[rank].append(call)
        wait_until_started(self, self._rendezvous)

    def _create_actors(self) -> list[str]:
        """Create one actor a bundle; return each one's machine."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        actor_class = self._ray.remote(
            num_cpus=1, max_restarts=0, max_task_retries=0, concurrency_groups={_LIFE: 1, _QUESTIONS: 1}
        )(RayWorker)
        actors = [
            actor_class.options(
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)
            ).remote()
            for bundle in range(self.size)
        ]
        self._actors = actors  # to be killed, if one of them does not come
        nodes = self._ray.get([actor.node.remote() for actor in actors])
        here = self._ray.get_runtime_context().get_node_id()
        order = sorted(range(self.size), key=lambda i: (nodes[i] != here, nodes[i], i))
        self._actors = [actors[i] for i in order]
        self._lives = [actor.live.options(concurrency_group=_LIFE).remote() for actor in self._actors]
        return [nodes[i] for i in order]

    # -- messages ------------------------------------------------------------------------------------------------------

    def send(self, command: bytes, timeout_s: float | None) -> None:
        """Give a command to all; Ray keeps it until they take it."""
        for actor, pending in zip(self._actors, self._pending, strict=True):
            pending.append(actor.handle.remote(command))

    def receive(self, rank: int, timeout_s: float | None) -> tuple[int, Answer]:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if (found := take_reply(self._replies, rank)) is not None:
                return found
            left_s = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            heads = [pending[0] for pending in self._pending if pending]
            ready, _ = self._ray.wait([*heads, *self._lives], num_returns=1, timeout=left_s)
            if not ready:
                raise TimeoutError(f"rank {rank} has not answered after {timeout_s:g} s")
            self._take(ready[0])

    def _take(self, call: Any) -> None:
        """Take what a call has brought; raises PeerLostError when its actor is gone."""
        if call in self._lives:
            self.check()
        sender = next(rank for rank, pending in enumerate(self._pending) if pending and pending[0] == call)
        self._pending[sender].popleft()
        try:
            data = self._ray.get(call)
        except self._ray.exceptions.RayError as error:
            raise PeerLostError(f"the worker of rank {sender} is gone: {error}") from None
        if data is not None:
            reply = decode_reply(data)
            assert not isinstance(reply, Doing), "questions are answered elsewhere"
            self._replies[sender].append(reply)

    # -- health --------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        ended, _ = self._ray.wait(self._lives, num_returns=len(self._lives), timeout=0)
        for call in ended:
            try:
                self._ray.get(call)
            except self._ray.exceptions.RayError as error:
                raise PeerLostError(f"the worker of rank {self._lives.index(call)} is gone: {error}") from None

    def on_failure(self, callback: Callable[[], None]) -> None:
        def wait() -> None:
            self._ray.wait(self._lives, num_returns=1)
            if not self._is_closed:
                callback()

        threading.Thread(target=wait, name="worker-deaths", daemon=True).start()

    def describe_hang(self, timeout_s: float) -> PeerLostError:
        calls = [actor.where.options(concurrency_group=_QUESTIONS).remote() for actor in self._actors]
        answered, _ = self._ray.wait(calls, num_returns=self.size, timeout=_ANSWER_TIMEOUT_S)
        return hang_report(timeout_s, {calls.index(call): self._ray.get(call) for call in answered}, self.size)

    # -- end -----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        self.kill()

    def kill(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for actor in self._actors:
            self._ray.kill(actor)
        if self._group is not None:
            self._ray.util.remove_placement_group(self._group)
        if self._rendezvous is not None:
            self._rendezvous.close()
        if self._own_cluster:
            self._ray.shutdown()


def _import_ray() -> Any:
    try:
        import ray
        import ray.util
    except ImportError as error:
        raise ConfigError("distributed_executor_backend='ray' needs Ray: pip install 'octavo[ray]'") from error
    return ray


def _placement_group(ray: Any, size: int) -> Any:
    """Reserve a core for each worker, on as few machines as will do; raises ConfigError with what there is."""
    total = int(ray.cluster_resources().get("CPU", 0))
    if total < size:
        raise ConfigError(
            f"{size} workers need {size} CPUs of the Ray cluster, which has {total}; add machines with `ray start`, or "
            "lower tensor_parallel_size or pipeline_parallel_size"
        )
    group = ray.util.placement_group([{"CPU": 1}] * size, strategy="PACK")
    if not group.wait(_PLACEMENT_TIMEOUT_S):
        free = int(ray.available_resources().get("CPU", 0))
        ray.util.remove_placement_group(group)
        raise ConfigError(
            f"{size} workers need {size} CPUs of the Ray cluster, but {free} of {total} are free after "
            f"{_PLACEMENT_TIMEOUT_S:g} s; stop what uses them"
        )
    return group
