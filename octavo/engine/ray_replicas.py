"""Replicas as actors of a Ray cluster: each is a host like one that `--headless` starts, and Ray starts it again."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

from octavo.config import EngineArgs
from octavo.engine.core_messages import options_as_data
from octavo.engine.headless import ReplicaHost
from octavo.errors import ConfigError, EngineDeadError
from octavo.executor.ray_cluster import RayCluster

_FOR_EVER = -1  # restarts
_FAREWELL_TIMEOUT_S = 3.0


class RayReplicas:
    """The actors of a front end's replicas, on as many machines as there are."""

    def __init__(self, args: EngineArgs) -> None:
        """Reserve the CPUs of all. Raises ConfigError where Ray or room is missing."""
        self._args = args
        self._cluster = RayCluster("data_parallel_backend='ray'")
        self._lives: list[Any] = []  # of each actor, a call that ends when it gives up
        cpus = args.tensor_parallel_size * args.pipeline_parallel_size
        num_here = args.data_parallel_size_local or 0
        try:
            self._cluster.reserve(
                args.data_parallel_size, cpus, "SPREAD", "replicas", "lower data_parallel_size", num_here
            )
        except BaseException:
            self._cluster.close()
            raise

    @property
    def address(self) -> str:
        """Where replicas of other machines can reach this one."""
        return self._args.data_parallel_address or self._cluster.this_address

    def start(self, port: int, key: str) -> None:
        """Start all, which then connect to this port. key: what they show there"""
        nodes = self._cluster.nodes
        for rank, node in enumerate(nodes):
            args = replace(
                self._args,
                data_parallel_backend="mp",
                data_parallel_address=self.address,
                data_parallel_rpc_port=port,
                data_parallel_start_rank=nodes.index(node),
                data_parallel_size_local=nodes.count(node),
            )
            values = (options_as_data(args), rank, key)
            cpus = args.tensor_parallel_size * args.pipeline_parallel_size
            actor = self._cluster.create_actor(ReplicaActor, rank, values, num_cpus=cpus, max_restarts=_FOR_EVER)
            self._lives.append(actor.live.remote())

    def check(self) -> None:
        """Raise what keeps one of them from being a replica; to be called while they start."""
        ended, _ = self._cluster.ray.wait(self._lives, num_returns=len(self._lives), timeout=0)
        for life in ended:
            try:
                self._cluster.ray.get(life)
            except self._cluster.ray.exceptions.RayError as error:
                cause = getattr(error, "cause", None) or error
                kind = ConfigError if isinstance(cause, ConfigError) else EngineDeadError
                raise kind(f"replica {self._lives.index(life)} does not start in its Ray actor: {cause}") from None

    def close(self) -> None:
        """End the actors, which have been told that the front end goes; idempotent."""
        if self._lives and self._cluster.is_connected:
            self._cluster.ray.wait(self._lives, num_returns=len(self._lives), timeout=_FAREWELL_TIMEOUT_S)
            self._lives = []
        self._cluster.close()


class ReplicaActor:
    """The host of one replica. Ray makes it again, with the same arguments, when its process has died."""

    def __init__(self, options: dict[str, Any], rank: int, key: str) -> None:
        self._error: Exception | None = None
        self._has_ended = threading.Event()
        values = (EngineArgs(**options), rank, key)
        threading.Thread(target=self._run, args=values, name="octavo-replica-host", daemon=True).start()

    def live(self) -> None:
        """Return when the front end has ended; raises what keeps the replica from going on."""
        self._has_ended.wait()
        if self._error is not None:
            raise self._error

    def _run(self, args: EngineArgs, rank: int, key: str) -> None:
        try:
            host = ReplicaHost(args, [rank], key)
            try:
                host.wait()
            finally:
                host.close()
        except Exception as error:
            self._error = error
        finally:
            self._has_ended.set()
