"""Keeps a core process alive and its requests going: starts it, speaks with it, replaces it when it dies.

A state machine that never blocks: its owner (a client) waits for the process's file descriptors and then calls
`receive`. After a death the new process gets every unfinished request with the tokens that it already has.
"""

from __future__ import annotations

import enum
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.engine.core_child import CoreChild
from octavo.engine.core_messages import (
    AbortRequests,
    AddRequest,
    Admitted,
    CallResult,
    CoreReady,
    FrontMessage,
    Note,
    RaisedError,
    StartCore,
    StartFailed,
    StopCore,
    call_message,
    encode,
    error_from_data,
)
from octavo.engine.in_flight import InFlightRequests
from octavo.errors import EngineDeadError, InvalidRequestError, RequestFailedError
from octavo.log import get_logger
from octavo.types.messages import EngineCoreOutput, EngineCoreOutputs
from octavo.types.request import EngineCoreRequest, FinishReason
from octavo.types.stats import SchedulerStats

logger = get_logger(__name__)


@dataclass(frozen=True)
class RecoveryPolicy:
    """When to give up.

    max_deaths: more within window_s end the engine; deaths of cores that had given a token, or that told which
        request to blame, do not count: requests get on in spite of them
    max_deaths_of_request: a request computed at so many deaths in a row, without a token between, ends with an error
    retry_delay_s: pause before a start that follows a failed one; doubles each time
    """

    max_deaths: int = 5
    window_s: float = 60.0
    max_deaths_of_request: int = 3
    retry_delay_s: float = 0.25


class CoreState(enum.Enum):
    """Where the core is in its life."""

    STARTING = enum.auto()
    READY = enum.auto()
    WAITING = enum.auto()  # for the next attempt to start it
    DEAD = enum.auto()  # for good
    CLOSED = enum.auto()


@dataclass(slots=True)
class _Call:
    """A service call without an answer. is_sent: the present core has it."""

    method: str
    message: bytes
    future: Future[Any]
    is_sent: bool = False


class CoreSupervisor:
    """Owns the present process, the journal of requests and the unanswered calls.

    Outputs and the error of the end are taken from `outputs` and `dead_error`.
    before_close: called when the file descriptors of the present process are about to be closed
    """

    def __init__(
        self,
        start: StartCore,
        launch: Callable[[StartCore], CoreChild],
        policy: RecoveryPolicy,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = CoreState.STARTING
        self.limits: CoreReady | None = None  # of the first core; all later ones get the same
        self.start_error: RaisedError | None = None
        self.dead_error: EngineDeadError | None = None
        self.outputs: deque[EngineCoreOutputs] = deque()
        self.restart_at: float | None = None  # clock time of the next attempt; None: nothing to wait for
        self.before_close: Callable[[], None] = lambda: None
        self._start = start
        self._launch = launch
        self._policy = policy
        self._clock = clock
        self._requests = InFlightRequests(policy.max_deaths_of_request)
        self._calls: dict[int, _Call] = {}
        self._num_calls = 0
        self._deaths: deque[float] = deque()
        self._has_given_tokens = False  # the present core
        self._num_failed_starts = 0
        self._num_preemptions_before = 0  # by cores that have died
        self._num_preemptions = 0
        self._is_paused = False
        self._sleep_level = 0
        self.child: CoreChild | None = launch(start)

    # -- requests and calls --------------------------------------------------------------------------------------------

    def add_request(self, request: EngineCoreRequest) -> None:
        """Hand over a request; without a core it waits for the next one. Raises EngineDeadError if none will come."""
        self._check_alive()
        if self.state is not CoreState.READY:
            _encode_request(request)  # what cannot be sent is refused here and now
        self._requests.add(request)
        self._send_requests()

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """End requests; unknown ids are ignored."""
        sent = self._requests.remove(request_ids)
        if sent and self.state is CoreState.READY:
            self._send(encode(AbortRequests(sent)))
        self._send_requests()  # the one on trial may have been among them

    def call(self, method: str, args: tuple[Any, ...]) -> Future[Any]:
        """Call a service of the core; without one the call waits for it."""
        self._check_alive()
        self._num_calls += 1
        call = _Call(method, call_message(self._num_calls, method, args), Future())
        self._calls[self._num_calls] = call
        self._remember(method, args)
        if self.state is CoreState.READY:
            self._send_call(call)
        return call.future

    def _remember(self, method: str, args: tuple[Any, ...]) -> None:
        """Note what a new core would have to be told."""
        if method in ("pause", "resume"):
            self._is_paused = method == "pause"
        elif method in ("sleep", "wake_up"):
            self._sleep_level = args[0] if method == "sleep" else 0

    def _send_requests(self) -> None:
        if self.state is not CoreState.READY:
            return
        for request in self._requests.take_unsent():
            self._send(_encode_request(request))

    def _send_call(self, call: _Call) -> None:
        call.is_sent = True
        self._send(call.message)

    def _send(self, message: bytes) -> None:
        assert self.child is not None
        self.child.send(message)

    def _check_alive(self) -> None:
        if self.dead_error is not None:
            raise self.dead_error

    # -- what the process says -----------------------------------------------------------------------------------------

    def receive(self) -> None:
        """Take everything that the process has said, and its death; start another when it is time."""
        if self.child is None:
            self._start_if_due()
            return
        messages = self.child.receive()
        for message in messages:
            self._take_message(message)
        notes, is_gone = self.child.read_notes()
        for note in notes:
            self._take_note(note)
        if is_gone:
            self._take_death()

    def _take_note(self, note: Note) -> None:
        if isinstance(note, Admitted):
            self._requests.admitted(note.request_ids)
        elif isinstance(note, StartFailed):
            self.start_error = note.error
        else:
            self._take_ready(note)

    def _take_ready(self, ready: CoreReady) -> None:
        assert self.child is not None
        self.state = CoreState.READY
        self._num_failed_starts = 0
        self.start_error = None
        self.child.connect()
        if self.limits is None:
            self.limits = ready
            # requests were accepted for these limits, whatever memory is free at the next start
            fixed = {"max_model_len": ready.max_model_len, "num_gpu_blocks_override": ready.num_blocks}
            self._start = msgspec.structs.replace(self._start, options={**self._start.options, **fixed})
        else:
            logger.warning("the engine's process was replaced; %d requests go on", len(self._requests))
            self._restore()
        for call in self._calls.values():
            if not call.is_sent:
                self._send_call(call)
        self._send_requests()

    def _restore(self) -> None:
        """Bring a new core into the state of the one before it."""
        waiting = {call.method for call in self._calls.values() if not call.is_sent}
        if self._sleep_level and "sleep" not in waiting:
            self._send(call_message(0, "sleep", (self._sleep_level,)))
        if self._is_paused and "pause" not in waiting:
            self._send(call_message(0, "pause", ()))

    def _take_message(self, message: FrontMessage) -> None:
        if isinstance(message, CallResult):
            self._take_result(message)
            return
        outputs = message.outputs
        if outputs.scheduler_stats is not None:
            outputs.scheduler_stats.num_preemptions += self._num_preemptions_before
            self._num_preemptions = outputs.scheduler_stats.num_preemptions
        self._has_given_tokens = self._has_given_tokens or bool(outputs.outputs)
        may_send = self._requests.record(outputs.outputs)
        self.outputs.append(outputs)
        if may_send:
            self._send_requests()

    def _take_result(self, result: CallResult) -> None:
        call = self._calls.pop(result.call_id, None)
        if call is None or not call.future.set_running_or_notify_cancel():
            return  # nobody waits for it
        if result.error is not None:
            call.future.set_exception(error_from_data(result.error))
        else:
            call.future.set_result(result.result)

    # -- death ---------------------------------------------------------------------------------------------------------

    def _take_death(self) -> None:
        assert self.child is not None
        self.before_close()
        status = self.child.close()
        self.child = None
        condemned = self._requests.core_died()
        if self.limits is None or self._is_hopeless(condemned):
            self._give_up(status)
            return
        logger.warning("the engine's process died (%s); starting another", _describe_status(status, self.start_error))
        self._num_preemptions_before = self._num_preemptions
        self.outputs.append(EngineCoreOutputs(scheduler_stats=SchedulerStats(num_preemptions=self._num_preemptions)))
        self._fail_condemned(condemned)
        self._settle_calls()
        self._num_failed_starts += self.state is not CoreState.READY
        delay_s = self._policy.retry_delay_s * 2 ** (self._num_failed_starts - 1) if self._num_failed_starts else 0.0
        self.state = CoreState.WAITING
        self.restart_at = self._clock() + delay_s
        self._start_if_due()

    def _is_hopeless(self, condemned: Sequence[str]) -> bool:
        """Count the death of the present core; say whether there were too many."""
        if self._has_given_tokens or condemned:
            self._has_given_tokens = False
            return False
        now = self._clock()
        self._deaths.append(now)
        while self._deaths[0] < now - self._policy.window_s:
            self._deaths.popleft()
        return len(self._deaths) > self._policy.max_deaths

    def _start_if_due(self) -> None:
        if self.state is not CoreState.WAITING or self.restart_at is None or self._clock() < self.restart_at:
            return
        self.restart_at = None
        self._start = msgspec.structs.replace(self._start, number=self._start.number + 1)
        self.state = CoreState.STARTING
        self.child = self._launch(self._start)

    def _fail_condemned(self, request_ids: Sequence[str]) -> None:
        if not request_ids:
            return
        count = self._policy.max_deaths_of_request
        text = f"the engine's process died {count} times in a row while it computed this request"
        logger.error("%s: %s", ", ".join(request_ids), text)
        self.outputs.append(
            EngineCoreOutputs(
                outputs=[EngineCoreOutput(i, [], None, None, FinishReason.ERROR, text) for i in request_ids],
                timestamp=time.monotonic(),
            )
        )

    def _settle_calls(self) -> None:
        """Let calls that may be repeated wait for the next core; the others may have had their effect."""
        for call_id, call in list(self._calls.items()):
            if call.is_sent and call.method == "collective_rpc":
                del self._calls[call_id]
                _fail(call, RequestFailedError("the engine's process died before collective_rpc had an answer"))
            call.is_sent = False

    def _give_up(self, status: int) -> None:
        policy = self._policy
        reason = _describe_status(status, self.start_error)
        text = f"the engine's process died ({reason})"
        if self.limits is not None:
            text = (
                f"the engine's process died more than {policy.max_deaths} times in {policy.window_s:g} s without "
                f"having computed anything; {reason}"
            )
            logger.error("%s; giving up", text)
        self.state = CoreState.DEAD
        self._end(EngineDeadError(text))

    def _end(self, error: EngineDeadError) -> None:
        self.dead_error = error
        self.restart_at = None
        for call in self._calls.values():
            _fail(call, error)
        self._calls.clear()

    def close(self) -> None:
        """End the process, whatever it does; idempotent."""
        if self.state is CoreState.CLOSED:
            return
        child, self.child = self.child, None
        if child is not None:
            child.close(encode(StopCore()) if self.state is CoreState.READY else None)
        self.state = CoreState.CLOSED
        self._end(self.dead_error or EngineDeadError("the engine was shut down"))


def _encode_request(request: EngineCoreRequest) -> bytes:
    try:
        return encode(AddRequest(request))
    except (TypeError, OverflowError, ValueError, RecursionError) as error:
        raise InvalidRequestError(
            f"the request cannot go to the engine's process, for its parameters are not plain data: {error}"
        ) from error


def _fail(call: _Call, error: Exception) -> None:
    if call.future.set_running_or_notify_cancel():
        call.future.set_exception(error)


def _describe_status(status: int, start_error: RaisedError | None) -> str:
    if start_error is not None:
        return f"it could not start: {start_error.text}"
    return f"signal {-status}" if status < 0 else f"exit status {status}"
