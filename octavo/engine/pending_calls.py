"""Service calls to a core process that have no answer yet, across the deaths of processes."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from octavo.engine.core_messages import CallResult, call_message
from octavo.errors import RequestFailedError
from octavo.types.raised_error import error_from_data


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


class StandingOrders:
    """What calls have brought a core into and a new one must be told: pause, sleep, the vocabulary."""

    def __init__(self) -> None:
        self._is_paused = False
        self._sleep_level = 0
        self._vocabulary: bytes | None = None

    @property
    def is_at_rest(self) -> bool:
        """Whether the core is to compute nothing."""
        return self._is_paused or self._sleep_level > 0

    def note(self, method: str, args: tuple[Any, ...]) -> None:
        """Take a call that is made now."""
        if method in ("pause", "resume"):
            self._is_paused = method == "pause"
        elif method == "load_vocabulary":
            self._vocabulary = args[0]
        elif method in ("sleep", "wake_up"):
            self._sleep_level = args[0] if method == "sleep" else 0

    def messages(self, waiting: Collection[str]) -> Iterator[bytes]:
        """Yield what a new core must be sent. waiting: methods that it will be asked for in any case"""
        if self._vocabulary is not None and "load_vocabulary" not in waiting:
            yield call_message(0, "load_vocabulary", (self._vocabulary,))
        if self._sleep_level and "sleep" not in waiting:
            yield call_message(0, "sleep", (self._sleep_level,))
        if self._is_paused and "pause" not in waiting:
            yield call_message(0, "pause", ())


def _fail(call: PendingCall, error: Exception) -> None:
    if call.future.set_running_or_notify_cancel():
        call.future.set_exception(error)


_LONG = ("collective_rpc", "sleep", "wake_up")  # a worker's own method; memory and weights
