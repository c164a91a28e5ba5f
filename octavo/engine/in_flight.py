"""The front end's journal of requests in the core: what a new core process must be given when one has died.

Pure bookkeeping: knows requests, tokens and deaths; no processes, no sockets.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from octavo.types.messages import EngineCoreOutput
from octavo.types.request import EngineCoreRequest


@dataclass(slots=True)
class _Entry:
    """One request. is_admitted: the present core has begun to compute it."""

    request: EngineCoreRequest
    token_ids: list[int] = field(default_factory=list)
    num_strikes: int = 0  # deaths in a row while it was computed, with no sign of life between
    is_admitted: bool = False


class InFlightRequests:
    """Every request from its arrival to its end, in order of arrival.

    A request that was being computed at every one of `max_strikes` deaths in a row is taken to be their cause. To be
    sure, one that is a death short of it is sent alone, and everything else waits until it has given a token.
    """

    def __init__(self, max_strikes: int) -> None:
        self._max_strikes = max_strikes
        self._entries: dict[str, _Entry] = {}
        self._unsent: dict[str, _Entry] = {}  # those that the present core does not have, in the same order
        self._num_suspects = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, request: EngineCoreRequest) -> None:
        """Note a new request."""
        entry = _Entry(request, list(request.output_token_ids))
        self._entries[request.request_id] = self._unsent[request.request_id] = entry

    def remove(self, request_ids: Iterable[str]) -> list[str]:
        """Forget requests; return the ids of those that the core must be told about."""
        sent = []
        for request_id in request_ids:
            entry = self._entries.pop(request_id, None)
            if entry is None:
                continue
            self._num_suspects -= self._is_suspect(entry)
            if self._unsent.pop(request_id, None) is None:
                sent.append(request_id)
        return sent

    def admitted(self, request_ids: Iterable[str]) -> None:
        """Note that the core is about to compute these requests."""
        for request_id in request_ids:
            entry = self._entries.get(request_id)
            if entry is not None:
                entry.is_admitted = True

    def record(self, outputs: Iterable[EngineCoreOutput]) -> bool:
        """Take what the core said; return whether requests that had to wait may go now (see `take_unsent`)."""
        had_suspects = self._num_suspects > 0
        for output in outputs:
            entry = self._entries.get(output.request_id)
            if entry is None:
                continue
            entry.token_ids += output.new_token_ids
            if entry.num_strikes:
                self._num_suspects -= self._is_suspect(entry)
                entry.num_strikes = 0
            if output.finish_reason is not None:
                del self._entries[output.request_id]
                self._unsent.pop(output.request_id, None)
        return had_suspects

    def take_unsent(self) -> list[EngineCoreRequest]:
        """Return the requests to send to the core now, with the tokens that they already have."""
        entries = list(self._unsent.values())
        if self._num_suspects:
            suspects = [entry for entry in entries if self._is_suspect(entry)]
            is_one_on_trial = len(suspects) < self._num_suspects
            entries = [] if is_one_on_trial else suspects[:1]
        for entry in entries:
            del self._unsent[entry.request.request_id]
        return [
            msgspec.structs.replace(entry.request, output_token_ids=list(entry.token_ids))
            if entry.token_ids
            else entry.request
            for entry in entries
        ]

    def core_died(self) -> list[str]:
        """Note that the core is gone; forget the requests that are taken to be the cause, and return their ids."""
        sent = [entry for request_id, entry in self._entries.items() if request_id not in self._unsent]
        # what kills the core before it says what it computes is among all that it had
        struck = [entry for entry in sent if entry.is_admitted] or sent
        for entry in struck:
            entry.num_strikes += 1
        for entry in sent:
            entry.is_admitted = False
        condemned = [entry.request.request_id for entry in struck if entry.num_strikes >= self._max_strikes]
        for request_id in condemned:
            del self._entries[request_id]
        self._unsent = dict(self._entries)
        self._num_suspects = sum(map(self._is_suspect, self._entries.values()))
        return condemned

    def _is_suspect(self, entry: _Entry) -> bool:
        return entry.num_strikes >= self._max_strikes - 1
