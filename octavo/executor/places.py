"""The places of all workers of an engine."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.config import ParallelConfig
from octavo.distributed.place import WorkerPlace

_PEER_TIMEOUT_SHARE = 0.9  # workers find out before their executor which of them hangs
_FOR_EVER_S = 1e6


def worker_places(parallel: ParallelConfig, address: str, machines: Sequence[object]) -> list[WorkerPlace]:
    """Return every rank's place. machines: of each rank, something that tells its machine from others."""
    timeout_s = parallel.step_timeout_s
    return [
        WorkerPlace(
            rank=rank,
            local_rank=machines[:rank].count(machines[rank]),
            local_size=machines.count(machines[rank]),
            tp_size=parallel.tensor_parallel_size,
            pp_size=parallel.pipeline_parallel_size,
            dcp_size=parallel.decode_context_parallel_size,
            address=address,
            timeout_s=_FOR_EVER_S if timeout_s is None else timeout_s * _PEER_TIMEOUT_SHARE,
        )
        for rank in range(parallel.world_size)
    ]
