"""Keeps a core process alive and its requests going: starts it, speaks with it, replaces it when it dies or hangs.

A state machine that never blocks: its owner (a client) waits for the process's file descriptors, or until `attend_at`,
and then calls `receive`. After a death the new process gets every unfinished request with the tokens that it has.
"""

from __future__ import annotations

import enum
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.engine import core_messages as wire
from octavo.engine.core_child import EngineChild
from octavo.engine.in_flight import InFlightRequests
from octavo.engine.pending_calls import PendingCall, PendingCalls, StandingOrders
from octavo.engine.silence import SilenceWatch
from octavo.errors import EngineDeadError
from octavo.log import get_logger
from octavo.types.messages import EngineCoreOutput, EngineCoreOutputs
from octavo.types.raised_error import RaisedError
from octavo.types.request import EngineCoreRequest, FinishReason
from octavo.types.stats import SchedulerStats

logger = get_logger(__name__)


@dataclass(frozen=True)
class RecoveryPolicy:
    """When to give up.

    max_deaths: more in a row within window_s end the engine; a core that has given a token ends the row, and deaths
        that help to find the request to blame do not count: requests get on in spite of them
    max_deaths_of_request: a request computed at so many deaths in a row, without a token between and alone at the last
        two, ends with an error, or later if somebody outside may have killed them; see InFlightRequests
    retry_delay_s: pause before a start that follows a failed one; doubles each time
    step_timeout_s: a core that says nothing for so long while it computes is killed; None: it may take any time
    """

    max_deaths: int = 5
    window_s: float = 60.0
    max_deaths_of_request: int = 3
    retry_delay_s: float = 0.25
    step_timeout_s: float | None = None


class CoreState(enum.Enum):
    """Where the core is in its life."""

    STARTING = enum.auto()
    READY = enum.auto()
    WAITING = enum.auto()  # for the next attempt to start it
    DEAD = enum.auto()  # for good
    CLOSED = enum.auto()


class CoreSupervisor:
    """Owns the present process, the journal of requests and the unanswered calls.

    Outputs and the error of the end are taken from `outputs` and `dead_error`.
    launch: starts a process; None: for now there is no machine for it
    before_close: called when the file descriptors of the present process are about to be closed
    has_stand_in: says whether others do the work meanwhile: then it is never given up, and rests a while instead
    """

    def __init__(
        self,
        start: wire.StartCore,
        launch: Callable[[wire.StartCore], EngineChild | None],
        policy: RecoveryPolicy,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = CoreState.WAITING
        self.limits: wire.CoreReady | None = None  # of the first core; all later ones get the same
        self.start_error: RaisedError | None = None
        self.dead_error: EngineDeadError | None = None
        self.outputs: deque[EngineCoreOutputs] = deque()
        self.restart_at: float | None = clock()  # clock time of the next attempt; None: nothing to wait for
        self.before_close: Callable[[], None] = lambda: None
        self.is_resting = False  # it died too often, or has no machine, and is tried again later
        self.has_stand_in: Callable[[], bool] = lambda: False
        self.start = start  # of the present or the next core
        self._name = "the engine's process" + (
            f" {start.rank} of {start.num_replicas}" if start.num_replicas > 1 else ""
        )
        self._launch = launch
        self._policy = policy
        self._clock = clock
        self.requests = InFlightRequests(policy.max_deaths_of_request)
        self._calls = PendingCalls()
        self._deaths: deque[float] = deque()
        self._started_at = clock()
        self._start_timeout_s: float | None = None  # of later cores
        self._silence = SilenceWatch(None)  # the first start may take any time
        self._is_hung = False
        self._failure: str | None = None  # why the present core ends, if anybody knows
        self._has_given_tokens = False  # the present core
        self._num_failed_starts = 0
        self._num_preemptions_before = 0  # by cores that have died
        self._num_preemptions = 0
        self._orders = StandingOrders()
        self._hostless_since: float | None = None
        self.child: EngineChild | None = None
        self._start_if_due()

    # -- requests and calls --------------------------------------------------------------------------------------------

    @property
    def is_serving(self) -> bool:
        """Whether a core is there and takes requests as they come: not one whose requests are tried alone."""
        return self.state is CoreState.READY and not self.requests.has_suspects

    def add_request(self, request: EngineCoreRequest) -> None:
        """Hand over a request; without a core it waits for the next one. Raises EngineDeadError if none will come."""
        self._check_alive()
        if self.state is not CoreState.READY:
            wire.request_message(request)  # what cannot be sent is refused here and now
        self.requests.add(request)
        self.send_requests()

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """End requests; unknown ids are ignored."""
        sent = self.requests.remove(request_ids)
        if sent and self.state is CoreState.READY:
            self._send(wire.encode(wire.AbortRequests(sent)))
        self.send_requests()  # the one on trial may have been among them

    def call(self, method: str, args: tuple[Any, ...]) -> Future[Any]:
        """Call a service of the core; without one the call waits for it."""
        self._check_alive()
        call = self._calls.add(method, args)
        self._orders.note(method, args)
        if self.state is CoreState.READY:
            self._send_call(call)
        return call.future

    def send_requests(self) -> None:
        """Send the requests that have waited and may go now."""
        if self.state is not CoreState.READY:
            return
        for request in self.requests.take_unsent():
            self._send(wire.request_message(request))

    def _send_call(self, call: PendingCall) -> None:
        call.is_sent = True
        self._send(call.message)

    def _send(self, message: bytes) -> None:
        assert self.child is not None
        self.child.send(message)
        self._watch_silence(was_heard=False)  # from now on an answer may be due

    def _check_alive(self) -> None:
        if self.dead_error is not None:
            raise self.dead_error

    # -- what the process says -----------------------------------------------------------------------------------------

    @property
    def attend_at(self) -> float | None:
        """When `receive` must be called even if nothing happens (clock time); None: no need."""
        return self.restart_at if self.child is None else self._silence.look_at

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
        if not is_gone and self._watch_silence(was_heard=bool(messages or notes)):
            self._is_hung = True
            self._failure = f"it hung: it had been silent for {self._silence.timeout_s:g} s while it had work to do"
            is_gone = True
        if is_gone:
            self._take_death()

    def _watch_silence(self, was_heard: bool) -> bool:
        """Say whether the process owes an answer for too long."""
        is_awake = not self._orders.is_at_rest and not self._calls.is_long_one_running
        is_owed = (
            self.state is CoreState.STARTING or self._calls.is_answer_due or (is_awake and self.requests.num_sent > 0)
        )
        return self._silence.look(self._clock(), is_owed, was_heard)

    def _take_note(self, note: wire.Note) -> None:
        if isinstance(note, wire.Admitted):
            self.requests.admitted(note.request_ids)
        elif isinstance(note, wire.StartFailed):
            self.start_error = note.error
        elif isinstance(note, wire.CoreFailed):
            self._failure = note.reason
        else:
            self._take_ready(note)

    def _take_ready(self, ready: wire.CoreReady) -> None:
        assert self.child is not None
        self.state = CoreState.READY
        self.is_resting = False
        self._num_failed_starts = 0
        self.start_error = None
        self._silence = SilenceWatch(self._policy.step_timeout_s)
        self.child.connect()
        if self.limits is None:
            self.limits = ready
            if self._policy.step_timeout_s is not None:
                start_s = self._clock() - self._started_at
                self._start_timeout_s = max(self._policy.step_timeout_s, _START_MARGIN * start_s)
            # requests were accepted for these limits, whatever memory is free at the next start
            fixed = {"max_model_len": ready.max_model_len, "num_gpu_blocks_override": ready.num_blocks}
            self.start = msgspec.structs.replace(self.start, options={**self.start.options, **fixed})
        else:
            logger.warning("%s was replaced; %d requests go on", self._name, len(self.requests))
            for message in self._orders.messages({call.method for call in self._calls.unsent()}):
                self._send(message)
        for call in self._calls.unsent():
            self._send_call(call)
        self.send_requests()

    def _take_message(self, message: wire.FrontMessage) -> None:
        if isinstance(message, wire.CallResult):
            self._calls.take_result(message)
            return
        outputs = message.outputs
        if outputs.scheduler_stats is not None:
            outputs.scheduler_stats.num_preemptions += self._num_preemptions_before
            self._num_preemptions = outputs.scheduler_stats.num_preemptions
        self._has_given_tokens = self._has_given_tokens or bool(outputs.outputs)
        may_send = self.requests.record(outputs.outputs)
        self.outputs.append(outputs)
        if may_send:
            self.send_requests()

    # -- death ---------------------------------------------------------------------------------------------------------

    def _take_death(self) -> None:
        assert self.child is not None
        self.before_close()
        was_hung = self._is_hung
        self._is_hung = False
        status = self.child.close()
        self.child = None
        reason = self._describe_end(status)
        was_trial = self.requests.has_suspects and self.requests.num_sent > 0
        condemned = self.requests.core_died(by_itself=was_hung or -status not in _SIGNALS_FROM_OUTSIDE)
        self._fail_condemned(condemned)
        is_hopeless = self._is_hopeless(is_explained=was_trial or bool(condemned))
        if self.limits is None or (is_hopeless and not self.has_stand_in()):
            self._give_up(reason)
            return
        self.is_resting = is_hopeless
        rest_s = self._policy.window_s if is_hopeless else 0.0
        logger.warning("%s died (%s); starting another%s", self._name, reason, f" in {rest_s:g} s" if rest_s else "")
        self._num_preemptions_before = self._num_preemptions
        self.outputs.append(EngineCoreOutputs(scheduler_stats=SchedulerStats(num_preemptions=self._num_preemptions)))
        self._calls.core_died()
        self._num_failed_starts += self.state is not CoreState.READY
        delay_s = self._policy.retry_delay_s * 2 ** (self._num_failed_starts - 1) if self._num_failed_starts else 0.0
        self.state = CoreState.WAITING
        self.start = msgspec.structs.replace(self.start, number=self.start.number + 1)
        self.restart_at = self._clock() + max(delay_s, rest_s)
        self._start_if_due()

    def _is_hopeless(self, is_explained: bool) -> bool:
        """Count the death of the present core; say whether there were too many. is_explained: by requests."""
        if self._has_given_tokens:
            self._has_given_tokens = False
            self._deaths.clear()
        elif not is_explained:
            now = self._clock()
            self._deaths.append(now)
            while self._deaths[0] < now - self._policy.window_s:
                self._deaths.popleft()
        return len(self._deaths) > self._policy.max_deaths

    def _start_if_due(self) -> None:
        if self.state is not CoreState.WAITING or self.restart_at is None or self._clock() < self.restart_at:
            return
        self.restart_at = None
        self.child = self._launch(self.start)
        if self.child is None:
            self._wait_for_host()
            return
        self.state, self._hostless_since = CoreState.STARTING, None
        self._silence = SilenceWatch(self._start_timeout_s)
        self._watch_silence(was_heard=False)

    def _wait_for_host(self) -> None:
        now = self._clock()
        if self._hostless_since is None:
            self._hostless_since = now
            logger.warning("%s has no host: it starts when one connects", self._name)
        self.is_resting = True
        self.restart_at = now + _HOST_RETRY_S
        if now - self._hostless_since > self._policy.window_s and not self.has_stand_in():
            self._give_up(f"no host for {self._policy.window_s:g} s")

    def _fail_condemned(self, request_ids: Sequence[str]) -> None:
        if not request_ids:
            return
        count = self._policy.max_deaths_of_request
        text = f"the engine's process died at least {count} times in a row while it computed this request"
        logger.error("%s: %s", ", ".join(request_ids), text)
        self.outputs.append(
            EngineCoreOutputs(
                outputs=[EngineCoreOutput(i, [], None, None, FinishReason.ERROR, text) for i in request_ids],
                timestamp=time.monotonic(),
            )
        )

    def _give_up(self, reason: str) -> None:
        policy = self._policy
        text = f"{self._name} died ({reason})"
        if self.limits is not None and self._hostless_since is None:
            text = (
                f"{self._name} died more than {policy.max_deaths} times in a row in {policy.window_s:g} s "
                f"without having computed anything; {reason}"
            )
            logger.error("%s; giving up", text)
        self.state = CoreState.DEAD
        self._end(EngineDeadError(text))

    def _end(self, error: EngineDeadError) -> None:
        self.dead_error = error
        self.restart_at = None
        self._calls.fail_all(error)

    def _describe_end(self, status: int) -> str:
        """Say why the present core ended."""
        reason, self._failure = self._failure, None
        if self.start_error is not None:
            return f"it could not start: {self.start_error.text}"
        if reason is not None:
            return reason
        return f"signal {-status}" if status < 0 else f"exit status {status}"

    def ask_to_stop(self) -> None:
        """Let the process end by itself, if it is there; `close` then need not wait for it as long."""
        if self.state is CoreState.READY and self.child is not None:
            self.child.send(wire.encode(wire.StopCore()))

    def close(self) -> None:
        """End the process, whatever it does; idempotent."""
        if self.state is CoreState.CLOSED:
            return
        child, self.child = self.child, None
        if child is not None:
            child.close(wire.encode(wire.StopCore()) if self.state is CoreState.READY else None)
        self.state = CoreState.CLOSED
        self._end(self.dead_error or EngineDeadError("the engine was shut down"))


# What a process never gets by its own doing; the first is also what it gets when the machine is out of memory.
_SIGNALS_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_HOST_RETRY_S = 0.25
_START_MARGIN = 10  # a later start may take so many times as long as the first
