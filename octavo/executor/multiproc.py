"""Workers in processes of their own on this machine: commands over shared memory, replies over sockets."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence

from octavo.config import OctavoConfig
from octavo.distributed.rendezvous import Rendezvous
from octavo.errors import PeerLostError
from octavo.executor.broadcast import BroadcastWriter, create_memory
from octavo.executor.messages import Doing, ErrorReply, encode_start
from octavo.executor.places import worker_places
from octavo.executor.remote import Answer, RemoteExecutor, hang_report, take_reply, wait_until_started
from octavo.executor.worker_child import WorkerChild, wait_for_end
from octavo.loader.checkpoint import Checkpoint

_STOP_TIMEOUT_S = 2.0
_ANSWER_TIMEOUT_S = 1.0  # a process that is not stopped says in this time what it is doing,
_ANSWER_SHARE = 0.1  # and in this share of the step's time, after which the front end would end all
_END_TIMEOUT_S = 0.2  # from a sign that a process has ended until the system says so


class MultiprocExecutor(RemoteExecutor):
    """Starts one process for each rank, which get their own cores."""

    def __init__(self, config: OctavoConfig, checkpoint: Checkpoint) -> None:
        workers = LocalWorkers(config, checkpoint)
        super().__init__(workers, config)
        self._finalizer = weakref.finalize(self, workers.close)  # also when the interpreter ends


class LocalWorkers:
    """The processes. Only `on_failure`'s callback is called from another thread."""

    def __init__(self, config: OctavoConfig, checkpoint: Checkpoint) -> None:
        """Start all and wait until they have loaded their weights; raises what is wrong with any of them."""
        self.size = config.parallel.world_size
        self._replies: list[deque[Answer]] = [deque() for _ in range(self.size)]
        self._children: list[WorkerChild] = []
        self._said = select.poll()
        self._rendezvous = Rendezvous() if self.size > 1 else None
        address = self._rendezvous.address if self._rendezvous is not None else ""
        memory = create_memory(self.size)
        try:
            for place in worker_places(config.parallel, address, ["here"] * self.size):
                start = encode_start(config, checkpoint, place)
                self._children.append(WorkerChild(place.rank, start, memory, self.size))
            self._writer = BroadcastWriter(memory, [child.bell for child in self._children])
            for child in self._children:
                self._said.register(child.lifeline_fd, select.POLLIN)
            self._watch = _DeathWatch([child.lifeline_fd for child in self._children])
            wait_until_started(self, self._rendezvous)
        except BaseException:
            self.kill()
            raise
        finally:
            os.close(memory)

    # -- messages ------------------------------------------------------------------------------------------------------

    def send(self, command: bytes, timeout_s: float | None) -> None:
        try:
            self._writer.write(command, timeout_s)
        except ConnectionError:
            self._raise_if_gone(_END_TIMEOUT_S)
            raise

    def receive(self, rank: int, timeout_s: float | None) -> tuple[int, Answer]:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if (found := take_reply(self._replies, rank)) is not None:
                _, reply = found
                if isinstance(reply, ErrorReply) and reply.error.kind == PeerLostError.__name__:
                    self._raise_if_gone(_END_TIMEOUT_S)  # tells better than its peers who it was
                return found
            if any(child.is_gone for child in self._children):  # and all that they said is read
                self._raise_if_gone(_END_TIMEOUT_S)
            left_ms = None if deadline is None else max(deadline - time.monotonic(), 0.0) * 1000
            if not self._said.poll(left_ms):
                raise TimeoutError(f"rank {rank} has not answered after {timeout_s:g} s")
            for child in self._children:
                self._replies[child.rank] += [reply for reply in child.read() if not isinstance(reply, Doing)]

    # -- health --------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        self._raise_if_gone(0.0)

    def _raise_if_gone(self, timeout_s: float) -> None:
        """Raise PeerLostError when a process has ended, or does so within this time."""
        if not wait_for_end(self._children, timeout_s):
            return
        child = next(child for child in self._children if wait_for_end([child], 0.0))
        status = child.close()
        how = f"by signal {-status}" if status < 0 else f"with exit status {status}"
        text = f"the worker of rank {child.rank} (process {child.process_id}) has ended {how}"
        raise PeerLostError(text, -status if status < 0 else None)

    def on_failure(self, callback: Callable[[], None]) -> None:
        self._watch.callback = callback
        if not self._watch.is_alive():
            callback()

    def describe_hang(self, timeout_s: float) -> PeerLostError:
        for child in self._children:
            child.ask()
        deadline = time.monotonic() + min(_ANSWER_TIMEOUT_S, timeout_s * _ANSWER_SHARE)
        answers: dict[int, str] = {}
        while len(answers) < self.size and time.monotonic() < deadline:
            time.sleep(0.02)
            for child in self._children:
                answers.update((child.rank, reply.where) for reply in child.read() if isinstance(reply, Doing))
        return hang_report(timeout_s, answers, self.size)

    # -- end -----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        if self._children:
            self._writer.close()
            deadline = time.monotonic() + _STOP_TIMEOUT_S
            for child in self._children:
                wait_for_end([child], max(deadline - time.monotonic(), 0.0))
        self.kill()

    def kill(self) -> None:
        if hasattr(self, "_watch"):
            self._watch.stop()
        for child in self._children:
            child.kill()
        for child in self._children:
            child.close()
        if hasattr(self, "_writer"):
            self._writer.close()
        if self._rendezvous is not None:
            self._rendezvous.remove()
        self._children = []


class _DeathWatch(threading.Thread):
    """Waits for the end of any process, while nobody listens to them; then calls `callback`, in this thread."""

    def __init__(self, lifeline_fds: Sequence[int]) -> None:
        super().__init__(name="worker-deaths", daemon=True)
        self.callback: Callable[[], None] = lambda: None
        self._lifeline_fds = lifeline_fds
        self._wake, self._woken = socket.socketpair()
        self.start()

    def run(self) -> None:
        poller = select.poll()
        for descriptor in (*self._lifeline_fds, self._woken.fileno()):
            poller.register(descriptor, 0)  # hang-ups are always told
        if any(descriptor in self._lifeline_fds for descriptor, _ in poller.poll()):
            self.callback()

    def stop(self) -> None:
        """End the thread, before the descriptors are closed; idempotent."""
        self._wake.close()
        self.join()
        self._woken.close()
