"""Ranks on several machines, over torch.distributed (extra octavo[distributed]): all that knows PyTorch here.

Everything is built of messages between two ranks, so that a rank that is gone or hangs can be named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import numpy as np

from octavo.distributed.group import Float
from octavo.distributed.place import WorkerPlace
from octavo.errors import ConfigError, PeerLostError


def join_world(place: WorkerPlace) -> bool:
    """Meet all workers at the place's address; gloo carries what is in main memory. Return whether it is to be left.

    A program that torchrun starts may have met the others itself, and stays with them.
    """
    dist = _torch_distributed()
    if dist.is_initialized():
        if dist.get_world_size() != place.world_size:
            raise ConfigError(
                f"this process is one of {dist.get_world_size()} in torch.distributed, but the sizes ask for "
                f"{place.world_size} workers"
            )
        if "cpu:" not in (backends := dist.get_backend_config()):
            raise ConfigError(
                f"this process met the others in torch.distributed with backends {backends!r}, which carry arrays of "
                "GPUs alone, and workers here compute in main memory: init_process_group with 'gloo' or "
                "'cpu:gloo,cuda:nccl', or leave it to Octavo"
            )
        return False
    try:
        dist.init_process_group(
            "gloo",
            init_method=place.address,
            rank=place.rank,
            world_size=place.world_size,
            timeout=timedelta(seconds=place.timeout_s),
        )
    except (RuntimeError, ValueError) as error:
        raise PeerLostError(
            f"rank {place.rank} did not meet {place.world_size - 1} others at {place.address}: {error}"
        ) from error
    return True


class TorchGroup:
    """See `octavo.distributed.group.Group`. Call `join_world` before."""

    in_tape = False

    def __init__(self, name: str, ranks: Sequence[int], place: WorkerPlace, leaves_world: bool) -> None:
        """ranks: of the world, in the group's order; leaves_world: `close` ends what `join_world` began"""
        self.rank = ranks.index(place.rank)
        self.size = len(ranks)
        self._name = name
        self._ranks = ranks
        self._timeout = timedelta(seconds=place.timeout_s)
        self._leaves_world = leaves_world
        self._dist = _torch_distributed()
        self._sending: list[tuple[int, Any, Any]] = []  # peer, message and the array that it is sent from

    def all_reduce(self, array: Float) -> None:
        parts = self._exchange(array, [array.shape] * self.size)
        total = parts[0].copy()
        for part in parts[1:]:
            total += part
        array[...] = total

    def all_gather(self, array: Float, widths: Sequence[int]) -> Float:
        shapes = [(len(array), width) for width in widths]
        joined: Float = np.concatenate(self._exchange(array, shapes), axis=1)
        return joined

    def broadcast(self, array: Float, root: int) -> None:
        if self.rank == root:
            for peer in self._peers():
                self._send(peer, array)
        else:
            array[...] = self._receive(root, array.shape)
        self._finish_sending(0)

    def send(self, array: Float) -> None:
        self._finish_sending(1)  # the one before may still be on its way
        self._send(self.rank + 1, array)

    def receive(self, array: Float) -> None:
        array[...] = self._receive(self.rank - 1, array.shape)

    def barrier(self) -> None:
        self._exchange(np.zeros(1, np.float32), [(1,)] * self.size)

    def abort(self) -> None:
        """Leave the world, so that connections break and whoever waits for this rank is told.

        One that torchrun made stays: its others learn of a failure by their timeouts, or by torchrun.
        """
        if self._leaves_world and self._dist.is_initialized():
            self._dist.destroy_process_group()

    def close(self) -> None:
        with suppress(PeerLostError):
            self._finish_sending(0)
        self.abort()

    # -- messages ------------------------------------------------------------------------------------------------------

    def _peers(self) -> list[int]:
        return [peer for peer in range(self.size) if peer != self.rank]

    def _exchange(self, own: Float, shapes: Sequence[tuple[int, ...]]) -> list[Float]:
        """Give an array to all ranks, and return theirs by rank."""
        for peer in self._peers():
            self._send(peer, own)
        parts = [own if peer == self.rank else self._receive(peer, shapes[peer]) for peer in range(self.size)]
        self._finish_sending(0)
        return parts

    def _send(self, peer: int, array: Float) -> None:
        import torch

        tensor = torch.from_numpy(array.copy())  # the caller goes on with its own
        with self._named(peer):
            self._sending.append((peer, self._dist.isend(tensor, dst=self._ranks[peer]), tensor))

    def _receive(self, peer: int, shape: tuple[int, ...]) -> Float:
        import torch

        array = np.empty(shape, np.float32)
        with self._named(peer):
            self._dist.irecv(torch.from_numpy(array), src=self._ranks[peer]).wait(self._timeout)
        return array

    def _finish_sending(self, num_left: int) -> None:
        """Wait until at most so many messages are on their way."""
        while len(self._sending) > num_left:
            peer, message, _ = self._sending.pop(0)
            with self._named(peer):
                message.wait(self._timeout)

    @contextmanager
    def _named(self, peer: int) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, ValueError) as error:
            raise PeerLostError(
                f"rank {peer} of {self.size} in the group {self._name} is gone or did not come in time "
                f"(rank {self.rank} waited for it): {error}"
            ) from error


def _torch_distributed() -> Any:
    try:
        import torch.distributed
    except ImportError as error:
        raise ConfigError(
            "workers on several machines speak through torch.distributed: install octavo[distributed]"
        ) from error
    return torch.distributed
