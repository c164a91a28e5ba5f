"""One rank among several whose processes somebody else started, such as torchrun.

Every rank runs the same program with an engine of its own. Their schedulers decide alike, because they see the same
requests and the same limits, so no steps have to be sent: only the start and the arrays of the workers cross.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo import envs
from octavo.config import OctavoConfig, ParallelConfig
from octavo.distributed.rendezvous import Rendezvous
from octavo.errors import ConfigError, UnsupportedError
from octavo.executor.places import worker_places
from octavo.executor.uniproc import UniProcExecutor
from octavo.loader.checkpoint import Checkpoint
from octavo.platforms.core_shares import take_share
from octavo.types.kv_spec import KVCacheSpec

_engine_numbers = itertools.count()  # of this process; the same for the same engine on every rank


class ExternalLauncherExecutor(UniProcExecutor):
    """Calls the worker of this rank directly; `collective_rpc` reaches only that one, as every rank makes the call."""

    def __init__(self, config: OctavoConfig, checkpoint: Checkpoint) -> None:
        launch = _Launch.from_environment()
        launch.check(config.parallel)
        engine_number = next(_engine_numbers)
        self._others = _Others(launch, engine_number)
        rendezvous = None
        if launch.local_size < launch.size:
            address = "env://"
        else:
            rendezvous = Rendezvous() if launch.rank == 0 else None
            address = self._others.gather("address", rendezvous.address if rendezvous else "")[0]
        machines = [rank // launch.local_size for rank in range(launch.size)]
        place = worker_places(config.parallel, address, machines)[launch.rank]
        try:
            if engine_number == 0:
                take_share(launch.local_rank, launch.local_size)
            super().__init__(config, checkpoint, place)
            self._others.gather("started", None)
        finally:
            if rendezvous is not None:
                rendezvous.remove()

    def get_kv_cache_specs(self) -> list[Mapping[str, KVCacheSpec]]:
        """Return the layers of all ranks, so that all of them make the same plan."""
        own = super().get_kv_cache_specs()[0]
        return msgspec.convert(self._others.gather("specs", own), list[Mapping[str, KVCacheSpec]])

    def determine_available_memory(self) -> list[int]:
        return self._others.gather("memory", super().determine_available_memory()[0])


@dataclass(frozen=True)
class _Launch:
    """What the launcher says of this process: its rank, and the same among those of this machine."""

    rank: int
    size: int
    local_rank: int
    local_size: int

    @classmethod
    def from_environment(cls) -> _Launch:
        """Read torchrun's variables; raises ConfigError when one is missing or no number."""
        variables = envs.launched_rank()
        if not all(value.isdecimal() for value in variables.values()):
            raise ConfigError(
                "distributed_executor_backend='external_launcher' needs torchrun's variables, got "
                f"{', '.join(f'{name}={value!r}' for name, value in variables.items())}; start the program with "
                "torchrun, or leave the option out"
            )
        return cls(*map(int, variables.values()))

    def check(self, parallel: ParallelConfig) -> None:
        """Raise unless the sizes are those of the launch."""
        if parallel.data_parallel_size > 1 or parallel.pipeline_parallel_size > 1:
            raise UnsupportedError(
                "an external launcher starts ranks of tensor parallelism only: use distributed_executor_backend='mp' "
                "or 'ray' for pipeline_parallel_size and data_parallel_size"
            )
        if self.size != parallel.world_size:
            raise ConfigError(
                f"{self.size} ranks were launched, but tensor_parallel_size={parallel.tensor_parallel_size}; make them "
                "equal (torchrun --nproc-per-node)"
            )


class _Others:
    """Small things that all ranks tell each other, over the launcher's key-value store."""

    def __init__(self, launch: _Launch, engine_number: int) -> None:
        try:
            from torch.distributed.rendezvous import rendezvous
        except ImportError as error:
            raise ConfigError(
                "distributed_executor_backend='external_launcher' needs PyTorch: pip install 'octavo[distributed]'"
            ) from error
        self._store, _, _ = next(rendezvous("env://", launch.rank, launch.size))
        self._prefix = f"octavo/{engine_number}"
        self._launch = launch

    def gather(self, name: str, value: Any) -> list[Any]:
        """Return what each rank has given under this name, in order; waits for all."""
        self._store.set(self._key(name, self._launch.rank), msgspec.json.encode(value).decode())
        return [msgspec.json.decode(self._store.get(self._key(name, rank))) for rank in range(self._launch.size)]

    def _key(self, name: str, rank: int) -> str:
        return f"{self._prefix}/{name}/{rank}"
