"""Which waiting requests may join a step by their adapters: no more than max_loras different ones run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from octavo.scheduler.request import Request

_MAX_OVERTAKEN = 32


class AdapterLimit:
    """The adapters of one step.

    A request whose adapter finds no room waits in its place. Others whose adapters run, or that have none, pass it; but
    after 32 with adapters none of these does any more, so that room comes about.
    """

    def __init__(self, max_loras: int, running: Iterable[Request]) -> None:
        self._max_loras = max_loras
        self._active = {request.adapter.identity for request in running if request.adapter is not None}
        self._left_behind: list[Request] = []

    def may_join(self, request: Request) -> bool:
        """Say whether a waiting request's adapter is no obstacle; ask in queue order."""
        if request.adapter is None:
            return True
        has_room = request.adapter.identity in self._active or len(self._active) < self._max_loras
        if has_room and all(other.num_overtaken < _MAX_OVERTAKEN for other in self._left_behind):
            return True
        self._left_behind.append(request)
        return False

    def joined(self, request: Request) -> None:
        """Note that the request runs."""
        if request.adapter is None:
            return
        self._active.add(request.adapter.identity)
        for other in self._left_behind:
            other.num_overtaken += 1


class AdapterCounts:
    """Live requests by their adapters, counted as they come and go: every step asks who runs and who waits."""

    def __init__(self) -> None:
        self._names: Counter[str] = Counter()
        self._identities: Counter[str] = Counter()

    def came(self, request: Request) -> None:
        if request.adapter is not None:
            self._names[request.adapter.name] += 1
            self._identities[request.adapter.identity] += 1

    def went(self, request: Request) -> None:
        if request.adapter is not None:
            self._names -= Counter((request.adapter.name,))
            self._identities -= Counter((request.adapter.identity,))

    def identities(self) -> set[str]:
        """Return the identities of all adapters."""
        return set(self._identities)

    def names(self, running: Iterable[Request]) -> tuple[list[str], list[str]]:
        """Return the names of the adapters of running requests and of all others, each sorted."""
        if not self._names:
            return [], []
        run = Counter(request.adapter.name for request in running if request.adapter is not None)
        return sorted(run), sorted(name for name, count in self._names.items() if count > run[name])
