"""Which engine replica a request goes to: bookkeeping only, no processes and no sockets.

The score of a replica is vLLM's: the requests that it has, made worse by waiting ones once its KV cache is half full.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from octavo.types.request import EngineCoreRequest
from octavo.types.stats import SchedulerStats


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """How busy a replica is.

    num_requests: that it was given and that have not ended, to the moment; stats: of its last step
    is_serving: it takes requests now; others are chosen only when none does
    """

    num_requests: int
    stats: SchedulerStats
    is_serving: bool = True

    @property
    def score(self) -> float:
        """Less is better."""
        stats = self.stats
        pressure = _WAITING_WEIGHT * stats.num_waiting * max(0.0, stats.kv_cache_usage - _EASY_USAGE)
        return max(self.num_requests, stats.num_running + stats.num_waiting) + pressure


class Balancer:
    """Chooses the replica with the least score; of equal ones, each in its turn.

    With prefix_affinity, the replica that was last given a prompt with the same beginning is preferred, unless it has
    so many requests more than the least busy one that waiting there would cost more than computing the beginning again.
    """

    def __init__(self, num_replicas: int, prefix_affinity: bool = False) -> None:
        self._num_replicas = num_replicas
        self._next = 0  # where the search begins: ties go round
        self._prefixes = _PrefixMap() if prefix_affinity and num_replicas > 1 else None

    def choose(self, loads: Sequence[ReplicaLoad | None], request: EngineCoreRequest, rank: int | None = None) -> int:
        """Return the index of a replica. None: one that will never serve again; at least one must not be None.

        rank: the request's own wish, which holds while that replica serves
        """
        wished = None if rank is None else loads[rank]
        if rank is None or wished is None or not wished.is_serving:
            rank = self._least_busy(loads, request)
        if self._prefixes is not None:
            self._prefixes.note(request, rank)
        return rank

    def forget(self, rank: int) -> None:
        """Note that a replica's KV cache is empty again."""
        if self._prefixes is not None:
            self._prefixes.forget(rank)

    def _least_busy(self, loads: Sequence[ReplicaLoad | None], request: EngineCoreRequest) -> int:
        alive = {rank: load for rank, load in enumerate(loads) if load is not None}
        serving = {rank: load for rank, load in alive.items() if load.is_serving} or alive
        turn = (*range(self._next, self._num_replicas), *range(self._next))
        scores = {rank: serving[rank].score for rank in turn if rank in serving}
        best: int = min(scores, key=lambda rank: scores[rank])  # the first of equal ones
        if self._prefixes is not None:
            holders = [rank for rank in self._prefixes.holders(request) if rank in scores]
            holder = min(holders, key=lambda rank: scores[rank], default=None)
            if holder is not None and scores[holder] <= scores[best] + _AFFINITY_SLACK:
                return holder
        self._next = (best + 1) % self._num_replicas
        return best


class _PrefixMap:
    """Which replicas have computed which beginnings of prompts, as far as the front end remembers.

    A beginning is known by a hash chained over pieces of tokens, like the blocks of the KV cache. A wrong guess (what
    the replica has evicted since, a collision of hashes) costs time, never a result.
    """

    def __init__(self) -> None:
        self._ranks: OrderedDict[int, int] = OrderedDict()  # hash of a beginning -> bit set of replicas

    def holders(self, request: EngineCoreRequest) -> list[int]:
        """Return the replicas that have the longest known beginning of the prompt; none if nothing of it is known."""
        ranks = 0
        for key in _prefix_keys(request):
            if not (found := self._ranks.get(key, 0)):
                break
            ranks = found
        return [rank for rank in range(ranks.bit_length()) if ranks >> rank & 1]

    def note(self, request: EngineCoreRequest, rank: int) -> None:
        """Remember that a replica computes a prompt."""
        for key in _prefix_keys(request):
            self._ranks[key] = self._ranks.pop(key, 0) | 1 << rank
        while len(self._ranks) > _MAX_PREFIXES:
            self._ranks.popitem(last=False)

    def forget(self, rank: int) -> None:
        """Forget all that a replica had."""
        for key in self._ranks:
            self._ranks[key] &= ~(1 << rank)


def _prefix_keys(request: EngineCoreRequest) -> list[int]:
    """Return the hash of each whole-piece beginning of the prompt, shortest first."""
    token_ids, keys = request.prompt_token_ids, [hash(request.cache_salt)]
    for start in range(0, len(token_ids) - _PIECE_TOKENS + 1, _PIECE_TOKENS):
        keys.append(hash(tuple(chain(keys[-1:], token_ids[start : start + _PIECE_TOKENS]))))
    return keys[1:]


_WAITING_WEIGHT = 6
_EASY_USAGE = 0.5  # share of the KV cache in use from which on waiting requests will wait long
_AFFINITY_SLACK = 4  # requests
_PIECE_TOKENS = 64
_MAX_PREFIXES = 2**16  # about 4 million tokens
