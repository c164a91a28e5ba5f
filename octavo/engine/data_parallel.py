"""Which engine replicas a front end runs: the rules of vLLM's three ways to balance requests among replicas.

Internal: one front end runs all replicas and chooses for each request. External: a server for each replica, and
something outside chooses. Hybrid: servers with some of the replicas each, balancing outside and then inside. Replicas
of dense models compute nothing together, so servers need no connection to each other.
"""

from __future__ import annotations

from octavo.config import EngineArgs
from octavo.errors import ConfigError, UnsupportedError


def replicas_here(args: EngineArgs) -> range:
    """Return the ranks of the replicas that this front end runs; raises ConfigError or UnsupportedError."""
    size, num_local, rank = args.data_parallel_size, args.data_parallel_size_local, args.data_parallel_rank
    start_rank = args.data_parallel_start_rank
    if rank is not None or args.data_parallel_external_lb:
        if rank is None or args.data_parallel_hybrid_lb or start_rank is not None or num_local not in (None, 1):
            raise ConfigError(
                "external balancing takes data_parallel_rank and one replica a server; leave out "
                "data_parallel_hybrid_lb, data_parallel_start_rank and data_parallel_size_local"
            )
        num_local, start_rank = 1, rank
    elif not args.data_parallel_hybrid_lb and (num_local not in (None, size) or start_rank):
        raise UnsupportedError(
            f"{num_local or size} of {size} replicas from rank {start_rank or 0} on: a front end runs its replicas on "
            "its own machine only; give each machine a server (data_parallel_hybrid_lb, or data_parallel_rank for each "
            "replica) with a load balancer before them"
        )
    num_local, start_rank = size if num_local is None else num_local, start_rank or 0
    if not (num_local >= 1 and 0 <= start_rank <= size - num_local):
        raise ConfigError(
            f"ranks {start_rank} to {start_rank + num_local - 1} are not within data_parallel_size={size}: ranks count "
            "from 0, and a server has at least one"
        )
    return range(start_rank, start_rank + num_local)
