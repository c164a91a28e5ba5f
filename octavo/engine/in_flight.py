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
class InFlightRequest:
    """One request. is_admitted: the present core has begun to compute it."""

    request: EngineCoreRequest
    token_ids: list[int] = field(default_factory=list)
    num_strikes: int = 0  # deaths in a row while it was computed, with no sign of life between
    num_deaths_alone: int = 0  # of these, those at which the core had nothing else
    steps_before_death: int | None = None  # that the core did at the last of those
    is_admitted: bool = False

    def clear(self) -> None:
        """Forget what spoke against it."""
        self.num_strikes = self.num_deaths_alone = 0
        self.steps_before_death = None


class InFlightRequests:
    """Every request from its arrival to its end, in order of arrival, and the search for the one that kills.

    A token clears a request. One that was computed at `max_strikes - 1` deaths in a row without a token is a suspect:
    it is sent alone, and everything else waits until it has given a token. It is condemned after `max_strikes` deaths
    in a row if the last two of them found it alone, were the process's own doing, and came after as many steps: what a
    request does to a core it does each time at the same place. Deaths here and there, and those that look like the
    doing of somebody outside, must have found it alone `2 * max_strikes` times.
    """

    def __init__(self, max_strikes: int) -> None:
        self._max_strikes = max_strikes
        self._entries: dict[str, InFlightRequest] = {}
        self._unsent: dict[str, InFlightRequest] = {}  # those that the present core does not have, in the same order
        self._num_suspects = 0
        self._was_crowded = False  # the present core had two requests at once
        self._num_steps = 0  # of the present core, since it was given its first request

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def num_sent(self) -> int:
        """How many requests the present core has."""
        return len(self._entries) - len(self._unsent)

    @property
    def num_unsent(self) -> int:
        """How many requests the present core does not have."""
        return len(self._unsent)

    @property
    def has_suspects(self) -> bool:
        """Whether requests are tried alone, one after another."""
        return self._num_suspects > 0

    def add(self, request: EngineCoreRequest) -> None:
        """Note a new request."""
        entry = InFlightRequest(request, list(request.output_token_ids))
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
        """Take what a step said; return whether requests that had to wait may go now (see `take_unsent`)."""
        had_suspects = self._num_suspects > 0
        self._num_steps += 1
        for output in outputs:
            entry = self._entries.get(output.request_id)
            if entry is None:
                continue
            entry.token_ids += output.new_token_ids
            if entry.num_strikes:
                self._num_suspects -= self._is_suspect(entry)
                entry.clear()
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
        num_sent_before = self.num_sent
        for entry in entries:
            del self._unsent[entry.request.request_id]
        if entries:
            self._num_steps = self._num_steps if num_sent_before else 0
            self._was_crowded = self._was_crowded or num_sent_before + len(entries) > 1
        return [
            msgspec.structs.replace(entry.request, output_token_ids=list(entry.token_ids))
            if entry.token_ids
            else entry.request
            for entry in entries
        ]

    def take_movable(self, with_suspects: bool) -> list[InFlightRequest]:
        """Forget the requests that the present core does not have, and return them for another replica's journal.

        with_suspects: also those that must be tried alone; their place is here as long as there will be a core
        """
        moved = [entry for entry in self._unsent.values() if with_suspects or not self._is_suspect(entry)]
        self.remove([entry.request.request_id for entry in moved])
        return moved

    def adopt(self, entry: InFlightRequest) -> None:
        """Take over a request of another replica, with its tokens and what speaks against it."""
        self._entries[entry.request.request_id] = self._unsent[entry.request.request_id] = entry
        self._num_suspects += self._is_suspect(entry)

    def core_died(self, by_itself: bool) -> list[str]:
        """Note that the core is gone; forget the requests that are taken to be the cause, and return their ids.

        by_itself: it crashed, hung or gave up; not: it was killed, by the system or by anybody
        """
        sent = [entry for request_id, entry in self._entries.items() if request_id not in self._unsent]
        # what kills the core before it says what it computes is among all that it had
        struck = [entry for entry in sent if entry.is_admitted] or sent
        condemned = [entry.request.request_id for entry in struck if self._is_condemned(entry, by_itself)]
        for entry in sent:
            entry.is_admitted = False
        for request_id in condemned:
            del self._entries[request_id]
        self._unsent = dict(self._entries)
        self._num_suspects = sum(map(self._is_suspect, self._entries.values()))
        self._was_crowded = False
        return condemned

    def _is_condemned(self, entry: InFlightRequest, by_itself: bool) -> bool:
        """Count a death against a request; say whether that is enough."""
        entry.num_strikes += 1
        if self._was_crowded:
            entry.num_deaths_alone, entry.steps_before_death = 0, None
            return False
        before, entry.steps_before_death = entry.steps_before_death, self._num_steps
        entry.num_deaths_alone += 1
        if entry.num_strikes < self._max_strikes:
            return False
        # what the core said of its last step may be lost with it
        is_same_place = before is not None and abs(before - self._num_steps) <= 1
        return (by_itself and is_same_place) or entry.num_deaths_alone >= 2 * self._max_strikes

    def _is_suspect(self, entry: InFlightRequest) -> bool:
        return entry.num_strikes >= self._max_strikes - 1
