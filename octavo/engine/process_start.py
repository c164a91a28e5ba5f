"""Starting a core in a process of its own, while this one reads what the front end needs: model facts, tokenizer.

Imports little: the sooner the process starts, the sooner it is ready.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import zmq

from octavo import envs
from octavo.config import EngineArgs, OctavoConfig
from octavo.config.option_types import canonical_types
from octavo.engine.balancer import Balancer
from octavo.engine.core_child import CoreChild, EngineChild
from octavo.engine.core_messages import CoreReady, StartCore, options_as_data
from octavo.engine.data_parallel import DEFAULT_PORT, check_front_end, plan_replicas
from octavo.engine.engine_facts import engine_facts
from octavo.engine.meeting_place import MeetingPlace
from octavo.engine.remote_hosts import RemoteChild, RemoteHosts
from octavo.engine.replicas import Replicas, wait_for_news
from octavo.engine.supervisor import CoreSupervisor, RecoveryPolicy
from octavo.errors import ConfigError, EngineDeadError
from octavo.loader import catalog
from octavo.types.raised_error import error_from_data
from octavo.utils.interrupts import held_signals
from octavo.utils.names import warn_of_unknown_variables

if TYPE_CHECKING:
    from octavo.engine.ray_replicas import RayReplicas
    from octavo.engine.resolve import ResolvedEngine
    from octavo.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class ProcessHandle:
    """The processes, and what must go when they end."""

    replicas: Replicas
    context: zmq.Context[zmq.Socket[bytes]]
    place: MeetingPlace
    hosts: RemoteHosts | None
    ray: RayReplicas | None

    def close(self) -> None:
        """End the processes and leave nothing behind; idempotent."""
        self.replicas.close()
        if self.hosts is not None:
            self.hosts.close()
        if self.ray is not None:
            self.ray.close()
        self.context.destroy(linger=0)
        self.place.remove()


@dataclass(frozen=True)
class StartedEngine:
    """What a front end must know of cores that are ready.

    config: final, with the cores' limits; tokenizer: None with skip_tokenizer_init; max_kv_tokens: the longest
    sequence that a KV cache holds; num_blocks: of such a cache
    """

    config: OctavoConfig
    tokenizer: Tokenizer | None
    max_kv_tokens: int
    num_blocks: int

    @classmethod
    def of(cls, resolved: ResolvedEngine, limits: CoreReady) -> StartedEngine:
        """Return what the options came to with the limits that the first core found to fit."""
        config, max_model_len = resolved.config, limits.max_model_len
        config = replace(
            config,
            model=replace(config.model, max_model_len=max_model_len, fit_max_model_len=False),
            scheduler=replace(config.scheduler, max_model_len=max_model_len),
        )
        return cls(config, resolved.tokenizer, limits.max_kv_tokens, limits.num_blocks)


@dataclass(frozen=True)
class StartedProcess:
    """A core that is ready, and so are its replicas."""

    handle: ProcessHandle
    engine: StartedEngine


class StartingProcess:
    """A core that loads its model while this process does something else; then `resolve` and `wait`, or `close`.

    Its replicas, if there are to be any, start when it is ready: all have the limits that the first found to fit.
    """

    def __init__(self, args: EngineArgs, policy: RecoveryPolicy | None = None) -> None:
        """Raises ConfigError for options that cannot leave this process.

        policy: when to give up replacing cores; its step_timeout_s is the options'
        """
        warn_of_unknown_variables()
        if args.distributed_executor_backend == "external_launcher":
            raise ConfigError(
                "distributed_executor_backend='external_launcher': every rank runs its own engine, in its process; use "
                "LLM without OCTAVO_ENABLE_MULTIPROCESSING, or 'mp' or 'ray' for servers"
            )
        self._args = args
        self._resolved: ResolvedEngine | None = None
        self._policy = replace(policy or RecoveryPolicy(), step_timeout_s=args.step_timeout_s or None)
        self._plan = plan_replicas(canonical_types(args))
        check_front_end(args, self._plan)
        self._num_replicas = len(self._plan.served)
        options = options_as_data(args)
        _fetch(args.model)
        self._start = StartCore(options, number=0, num_replicas=self._num_replicas)
        hosts, ray = None, None
        if args.data_parallel_backend == "ray":
            hosts, ray = _start_in_ray(args, self._plan.remote)
        elif self._plan.remote:
            port = DEFAULT_PORT if args.data_parallel_rpc_port is None else args.data_parallel_rpc_port
            key = envs.data_parallel_key()
            hosts = RemoteHosts(args.data_parallel_address or "", port, key, self._plan.remote)
        replicas = Replicas(Balancer(self._num_replicas, args.data_parallel_prefix_affinity))
        self._handle = ProcessHandle(replicas, zmq.Context(), MeetingPlace(), hosts, ray)
        try:
            if self._plan.local:
                self._launch(self._start)
        except BaseException:
            self.close()
            raise

    def resolve(self) -> ResolvedEngine:
        """Decide the options and read the tokenizer here too. Raises what is wrong with the options."""
        if self._resolved is None:
            from octavo.engine.resolve import resolve  # here: the process loads while this is imported

            self._resolved = resolve(self._args)
        return self._resolved

    def wait(self) -> StartedProcess:
        """Return the core when it is ready. Raises what is wrong with the options, found here or there."""
        replicas, hosts = self._handle.replicas, self._handle.hosts
        try:
            resolved = self.resolve()
            if hosts is not None:
                hosts.accept(engine_facts(self._args, resolved.config))
            if not replicas.supervisors:
                self._launch(self._start)
            limits = self._wait_until_ready(rank=0)
            for rank in range(1, self._num_replicas):
                self._launch(msgspec.structs.replace(replicas.supervisors[0].start, number=0, rank=rank))
            for rank in range(1, self._num_replicas):
                self._wait_until_ready(rank)
        except BaseException:
            self.close()
            raise
        return StartedProcess(self._handle, StartedEngine.of(resolved, limits))

    def close(self) -> None:
        """End the process; idempotent."""
        self._handle.close()

    def _launch(self, start: StartCore) -> None:
        hosts, ray = self._handle.hosts, self._handle.ray
        if hosts is not None and start.rank in self._plan.remote:
            hosts.wait_for(start.rank, (lambda: None) if ray is None else ray.check)
        with held_signals():
            self._handle.replicas.add(CoreSupervisor(start, self._new_child, self._policy))

    def _new_child(self, start: StartCore) -> EngineChild | None:
        handle, local = self._handle, self._plan.local
        rank = self._plan.served[start.rank]
        if handle.hosts is not None and rank not in local:
            link = handle.hosts.link(start.rank)
            return None if link is None else RemoteChild(link, start)
        return CoreChild(handle.context, str(handle.place.path), start, (rank - local.start, len(local)))

    def _wait_until_ready(self, rank: int) -> CoreReady:
        replicas = self._handle.replicas
        supervisor = replicas.supervisors[rank]
        while supervisor.limits is None and supervisor.dead_error is None:
            wait_for_news(replicas)
        if supervisor.start_error is not None:
            raise error_from_data(supervisor.start_error)
        if supervisor.limits is None:
            raise supervisor.dead_error or EngineDeadError("the engine's process did not start")
        return supervisor.limits


def _start_in_ray(args: EngineArgs, ranks: Sequence[int]) -> tuple[RemoteHosts, RayReplicas]:
    """Start replicas as actors, whose key is made here if nobody has set one."""
    from octavo.engine.ray_replicas import RayReplicas  # with Ray, which few have

    key = envs.data_parallel_key() or secrets.token_hex()
    ray = RayReplicas(args)
    try:
        hosts = RemoteHosts(ray.address, args.data_parallel_rpc_port or 0, key, ranks)
        ray.start(hosts.port, key)
    except BaseException:
        ray.close()
        raise
    return hosts, ray


def _fetch(model: str) -> None:
    """Fetch a model of the catalog before two processes look for it. (The hub's library has locks of its own.)"""
    if not Path(model).exists() and catalog.find(model) is not None:
        catalog.pull(model)
