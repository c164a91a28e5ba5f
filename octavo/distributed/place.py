"""Where one worker stands among those that compute one model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WorkerPlace:
    """One worker's rank and how to find the others. As it stands: the only worker.

    Ranks count tensor-parallel neighbours first: rank = pp_rank * tp_size + tp_rank.

    rank: 0 .. world_size - 1; local_rank: the same among the workers of this machine
    local_size: workers on this machine, who share its memory
    dcp_size: consecutive tensor-parallel ranks that share the keys and values of a sequence
    address: where they meet: "shm:DIRECTORY" (one machine; see `octavo.distributed.rendezvous`), or an init method
        of torch.distributed, "tcp://HOST:PORT" or "env://"
    timeout_s: how long one waits for another within a step before it counts as hung
    """

    rank: int = 0
    local_rank: int = 0
    local_size: int = 1
    tp_size: int = 1
    pp_size: int = 1
    dcp_size: int = 1
    address: str = ""
    timeout_s: float = 300.0

    @property
    def world_size(self) -> int:
        return self.tp_size * self.pp_size

    @property
    def tp_rank(self) -> int:
        return self.rank % self.tp_size

    @property
    def pp_rank(self) -> int:
        return self.rank // self.tp_size

    @property
    def output_rank(self) -> int:
        """The rank whose `execute_model` and `sample_tokens` give the step's output: first of the last stage."""
        return (self.pp_size - 1) * self.tp_size

    @property
    def gives_output(self) -> bool:
        return self.rank == self.output_rank


def share(total: int, size: int, rank: int) -> range:
    """Return which of `total` things belong to a rank: contiguous shares whose sizes differ by at most one."""
    return range(total * rank // size, total * (rank + 1) // size)
