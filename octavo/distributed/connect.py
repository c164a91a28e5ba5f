"""A worker's place -> its groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.distributed.group import Group, SoloGroup
from octavo.distributed.place import WorkerPlace
from octavo.errors import ConfigError


@dataclass(frozen=True)
class WorkerGroups:
    """Whom a worker computes with.

    tensor: those of its stage; pipeline: those of the other stages, in order; context: those of its stage who share its
    sequences' keys and values
    """

    tensor: Group
    pipeline: Group
    context: Group = SoloGroup()

    def abort(self) -> None:
        """Tell all others that this worker cannot go on."""
        for group in (self.tensor, self.pipeline, self.context):
            group.abort()

    def close(self) -> None:
        self.pipeline.close()  # first: what it has sent may still be on its way, over a world that all share
        self.context.close()
        self.tensor.close()


ALONE = WorkerGroups(SoloGroup(), SoloGroup())


def connect(place: WorkerPlace) -> WorkerGroups:
    """Meet the others at the place's address; returns when all are there. Raises PeerLostError, ConfigError."""
    if place.world_size == 1:
        return ALONE
    first = place.pp_rank * place.tp_size
    tensor = (f"tp{place.pp_rank}", range(first, first + place.tp_size))
    pipeline = (f"pp{place.tp_rank}", range(place.tp_rank, place.world_size, place.tp_size))
    first_sharer = place.rank - place.tp_rank % place.dcp_size
    context = (f"dcp{first_sharer}", range(first_sharer, first_sharer + place.dcp_size))
    if place.address.startswith("shm:"):
        return WorkerGroups(
            _share_memory(place, *tensor),
            _share_memory(place, *pipeline, is_pipeline=True),
            _share_memory(place, *context),
        )
    from octavo.distributed.torch_group import TorchGroup, join_world

    leaves = join_world(place)
    groups = [
        SoloGroup() if len(ranks) == 1 else TorchGroup(name, ranks, place, leaves)
        for name, ranks in (tensor, pipeline, context)
    ]
    return WorkerGroups(*groups)


def _share_memory(place: WorkerPlace, name: str, ranks: Sequence[int], is_pipeline: bool = False) -> Group:
    if len(ranks) == 1:
        return SoloGroup()
    try:
        from octavo.distributed.shared_memory import SharedMemoryGroup
    except ImportError as error:
        raise ConfigError(
            "several workers on one machine need the native extension, which was not built; install a C++17 compiler "
            "(such as g++) and reinstall octavo"
        ) from error
    rank = ranks.index(place.rank)
    return SharedMemoryGroup(place.address, name, rank, len(ranks), place.timeout_s, is_pipeline=is_pipeline)
