"""Service calls to a core process that have no answer yet, across the deaths of processes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from octavo.engine.core_messages import CallResult, call_message, error_from_data
from octavo.errors import RequestFailedError


@dataclass(slots=True)
class PendingCall:
    """A service call without an answer. is_sent: the present core has it."""

    method: str
    message: bytes
    future: Future[Any]
    is_sent: bool = False


class PendingCalls:
    """All calls from the asking to the answer."""

    def __init__(self) -> None:
        self._calls: dict[int, PendingCall] = {}
        self._num_calls = 0

    def add(self, method: str, args: tuple[Any, ...]) -> PendingCall:
        """Note a new call; raises UnsupportedError for arguments that are not plain data."""
        call_id = self._num_calls + 1
        call = PendingCall(method, call_message(call_id, method, args), Future())
        self._num_calls = call_id
        self._calls[call_id] = call
        return call

    def unsent(self) -> Iterator[PendingCall]:
        """Yield the calls that the present core does not have."""
        return (call for call in self._calls.values() if not call.is_sent)

    @property
    def is_answer_due(self) -> bool:
        """Whether the core has a call that is answered between two steps."""
        return any(call.is_sent for call in self._calls.values()) and not self.is_long_one_running

    @property
    def is_long_one_running(self) -> bool:
        """Whether the core has a call that may take any time, and nothing else is done until it ends."""
        return any(call.is_sent and call.method in _LONG for call in self._calls.values())

    def take_result(self, result: CallResult) -> None:
        """Give the caller its answer."""
        call = self._calls.pop(result.call_id, None)
        if call is None or not call.future.set_running_or_notify_cancel():
            return  # nobody waits for it
        if result.error is not None:
            call.future.set_exception(error_from_data(result.error))
        else:
            call.future.set_result(result.result)

    def core_died(self) -> None:
        """Let calls that may be repeated wait for the next core; the others may have had their effect."""
        for call_id, call in list(self._calls.items()):
            if call.is_sent and call.method == "collective_rpc":
                del self._calls[call_id]
                _fail(call, RequestFailedError("the engine's process died before collective_rpc had an answer"))
            call.is_sent = False

    def fail_all(self, error: Exception) -> None:
        """End all calls with an error."""
        for call in self._calls.values():
            _fail(call, error)
        self._calls.clear()


def _fail(call: PendingCall, error: Exception) -> None:
    if call.future.set_running_or_notify_cancel():
        call.future.set_exception(error)


_LONG = ("collective_rpc", "sleep", "wake_up")  # a worker's own method; memory and weights
