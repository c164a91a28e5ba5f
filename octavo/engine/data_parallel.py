"""Which engine replicas a front end has, and where they run: the rules of vLLM's three ways to balance requests.

Internal: one front end has all replicas and chooses for each request; those that do not run on its machine run on
hosts that connect to it, which Ray may start. External: a server for each replica, and something outside chooses.
Hybrid: servers with some of the replicas each, balancing outside and then inside. Replicas of dense models compute
nothing together, so servers need no connection to each other.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.config import EngineArgs
from octavo.errors import ConfigError

DEFAULT_PORT = 29550


@dataclass(frozen=True)
class ReplicaPlan:
    """Ranks of replicas. served: those of the front end; local: of these, those whose processes run on this machine."""

    served: range
    local: range

    @property
    def remote(self) -> list[int]:
        """Those of the front end that run elsewhere."""
        return [rank for rank in self.served if rank not in self.local]


def plan_replicas(args: EngineArgs) -> ReplicaPlan:
    """Return which replicas there are for this process; raises ConfigError."""
    size, num_local, rank = args.data_parallel_size, args.data_parallel_size_local, args.data_parallel_rank
    start_rank = args.data_parallel_start_rank
    if args.data_parallel_backend == "ray":
        return _plan_in_ray(args)
    is_internal = False
    if rank is not None or args.data_parallel_external_lb:
        if rank is None or args.data_parallel_hybrid_lb or start_rank is not None or num_local not in (None, 1):
            raise ConfigError(
                "external balancing takes data_parallel_rank and one replica a server; leave out "
                "data_parallel_hybrid_lb, data_parallel_start_rank and data_parallel_size_local"
            )
        num_local, start_rank = 1, rank
    else:
        is_internal = not args.data_parallel_hybrid_lb
    start_rank = start_rank or 0
    num_local = size - (start_rank if is_internal else 0) if num_local is None else num_local
    least = 0 if is_internal and size > 0 and start_rank == 0 else 1
    if not (num_local >= least and 0 <= start_rank <= size - num_local):
        raise ConfigError(
            f"ranks {start_rank} to {start_rank + num_local - 1} are not within data_parallel_size={size}: ranks count "
            "from 0, and a server has at least one"
        )
    local = range(start_rank, start_rank + num_local)
    return ReplicaPlan(range(size) if is_internal else local, local)


def _plan_in_ray(args: EngineArgs) -> ReplicaPlan:
    """All are hosts to the front end, those on its own machine too."""
    size, num_local = args.data_parallel_size, args.data_parallel_size_local
    if args.data_parallel_rank is not None or args.data_parallel_external_lb or args.data_parallel_hybrid_lb:
        raise ConfigError(
            "data_parallel_backend='ray': one front end has all replicas, so leave out data_parallel_rank, "
            "data_parallel_external_lb and data_parallel_hybrid_lb"
        )
    if args.data_parallel_start_rank or size < 1 or not 0 <= (num_local or 0) <= size:
        raise ConfigError(
            f"data_parallel_backend='ray' places {size} replicas, at least {num_local or 0} of them on this machine "
            "(data_parallel_size_local): there must be at least one and that many; leave data_parallel_start_rank out"
        )
    if args.distributed_executor_backend not in (None, "uni", "mp"):
        raise ConfigError(
            "data_parallel_backend='ray' has each replica on one machine: leave distributed_executor_backend out"
        )
    return ReplicaPlan(range(size), range(0))


def check_front_end(args: EngineArgs, plan: ReplicaPlan) -> None:
    """Raise ConfigError for options that describe a host of replicas, or hosts that could not connect."""
    if plan.local.start != plan.served.start:
        raise ConfigError(
            f"data_parallel_start_rank={plan.local.start}: the replicas of a front end begin at 0; start those of "
            "another machine there with --headless, or give each machine a server (data_parallel_hybrid_lb)"
        )
    if plan.remote and args.data_parallel_address is None and args.data_parallel_backend != "ray":
        raise ConfigError(
            f"{len(plan.local)} of {args.data_parallel_size} replicas run here: give the address of this machine at "
            "which the hosts of the others (--headless) connect (data_parallel_address), or each machine a server "
            "(data_parallel_hybrid_lb, or data_parallel_rank for each replica) with a load balancer before them"
        )
