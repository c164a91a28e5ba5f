"""A worker's place -> its groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.distributed.group import Group, SoloGroup
from octavo.distributed.place import WorkerPlace


@dataclass(frozen=True)
class WorkerGroups:
    """Whom a worker computes with. tensor: those of its stage; pipeline: those of the other stages, in order."""

    tensor: Group
    pipeline: Group

    def abort(self) -> None:
        """Tell all others that this worker cannot go on."""
        self.tensor.abort()
        self.pipeline.abort()

    def close(self) -> None:
        self.tensor.close()
        self.pipeline.close()


ALONE = WorkerGroups(SoloGroup(), SoloGroup())


def connect(place: WorkerPlace) -> WorkerGroups:
    """Meet the others at the place's address; returns when all are there. Raises PeerLostError, ConfigError."""
    first_of_stage = place.pp_rank * place.tp_size
    return WorkerGroups(
        tensor=_connect(place, f"tp{place.pp_rank}", range(first_of_stage, first_of_stage + place.tp_size)),
        pipeline=_connect(place, f"pp{place.tp_rank}", range(place.tp_rank, place.world_size, place.tp_size)),
    )


def _connect(place: WorkerPlace, name: str, ranks: Sequence[int]) -> Group:
    """Return the group of these ranks of the world."""
    if len(ranks) == 1:
        return SoloGroup()
    if place.address.startswith("shm:"):
        from octavo.distributed.shared_memory import SharedMemoryGroup

        rank, is_pipeline = ranks.index(place.rank), name.startswith("pp")
        return SharedMemoryGroup(place.address, name, rank, len(ranks), place.timeout_s, is_pipeline=is_pipeline)
    from octavo.distributed.torch_group import TorchGroup, join_world

    join_world(place)
    return TorchGroup(name, ranks, place.rank, place.timeout_s)
