"""Workers as actors of a Ray cluster, on one machine or many.

Commands and replies are the same bytes as between processes of our own; Ray carries them.
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
from octavo.errors import PeerLostError
from octavo.executor.messages import Doing, decode_reply, encode_start
from octavo.executor.places import worker_places
from octavo.executor.ray_actor import RayWorker
from octavo.executor.ray_cluster import RayCluster
from octavo.executor.remote import Answer, RemoteExecutor, hang_report, take_reply, wait_until_started
from octavo.loader.checkpoint import Checkpoint

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
        self._cluster = RayCluster("distributed_executor_backend='ray'")
        self._ray = self._cluster.ray
        self.size = config.parallel.world_size
        self._actors: list[Any] = []
        self._lives: list[Any] = []  # of each actor, a call that ends when it does
        self._pending: list[deque[Any]] = [deque() for _ in range(self.size)]  # calls of each rank, oldest first
        self._replies: list[deque[Answer]] = [deque() for _ in range(self.size)]
        self._rendezvous: Rendezvous | None = None
        self._is_closed = False
        try:
            self._start(config, checkpoint)
        except BaseException:
            self.kill()
            raise

    def _start(self, config: OctavoConfig, checkpoint: Checkpoint) -> None:
        way_out = "lower tensor_parallel_size or pipeline_parallel_size"
        self._cluster.reserve(self.size, 1, "PACK", "workers", way_out)
        threads = {_LIFE: 1, _QUESTIONS: 1}
        self._actors = [
            self._cluster.create_actor(RayWorker, rank, num_cpus=1, concurrency_groups=threads)
            for rank in range(self.size)
        ]
        self._lives = [actor.live.options(concurrency_group=_LIFE).remote() for actor in self._actors]
        nodes = self._cluster.nodes
        if set(nodes) == {self._cluster.this_node}:
            self._rendezvous = Rendezvous()
            address = self._rendezvous.address
        else:
            address = self._ray.get(self._actors[0].free_address.remote())
        for rank, place in enumerate(worker_places(config.parallel, address, nodes)):
            call = self._actors[rank].start.remote(encode_start(config, checkpoint, place))
            self._pending[rank].append(call)
        wait_until_started(self, self._rendezvous)

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
        if not self._cluster.is_connected:
            raise PeerLostError("the workers are gone: their session of Ray was shut down")
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
        self._cluster.close()
        if self._rendezvous is not None:
            self._rendezvous.remove()
