"""Between several front ends and the cores: requests and calls go in, outputs go back to whoever asked.

The hub has the cores, and so the journal of requests and the balance between replicas; front ends are other processes
and may come and go. The requests of one that goes are aborted. What one front end is told and all must do goes through
here too, so that all are told in the same order, and those that start later as well.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.engine import hub_messages as wire
from octavo.engine.async_mp_client import AsyncMPClient
from octavo.engine.core_messages import AbortRequests, CallResult, CallService, CoreReady, StartFailed, StepDone
from octavo.engine.frame_link import FrameLink
from octavo.engine.process_start import ProcessHandle
from octavo.errors import OctavoError
from octavo.metrics.engine_metrics import EngineCounts
from octavo.metrics.replica_metrics import ReplicaMetrics
from octavo.types.messages import EngineCoreOutput, EngineCoreOutputs
from octavo.types.raised_error import RaisedError, failed_call_as_data
from octavo.types.request import FinishReason

_COUNTS = ("engine_counts", "server_counts")  # services whose answers only grow: what silent and ended ones said counts
_ANSWER_TIMEOUT_S = 2.0
_NO_QUESTION = -1  # answered like any other number but 0


class FrontEnd:
    """A front end as the hub knows it.

    error: why it could not start, if it said so; num_unanswered: times that it was `prod`ded since it said anything
    """

    def __init__(self, hub: Hub, connection: socket.socket) -> None:
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ended = asyncio.Event()
        self.error: RaisedError | None = None
        self.request_ids: set[str] = set()
        self.num_unanswered = 0
        self.counts: dict[str, Any] = {}  # its last answers, by service
        self._link = FrameLink(connection, lambda data: hub.take(self, wire.decode_to_hub(data)), self._end)
        self._hub = hub
        self._link.attach()

    @property
    def is_ready(self) -> bool:
        """Whether it takes requests, and answers calls."""
        return self.ready.done() and not self.ended.is_set()

    def send(self, message: bytes) -> None:
        if not self.ended.is_set():
            self._link.send(message)

    def prod(self) -> None:
        """Ask something that it always answers at once."""
        self.num_unanswered += 1
        self.send(wire.encode(CallService(_NO_QUESTION, "engine_counts", [])))

    def _end(self) -> None:
        self.ended.set()
        self.ready.cancel()
        self._hub.forget(self)


@dataclass(eq=False)
class _Question:
    """A call of all front ends. waiting: for those; asker: who called, with this call_id"""

    number: int
    asker: FrontEnd
    call: wire.CallFrontEnds
    waiting: set[FrontEnd]
    answers: list[Any]
    error: RaisedError | None = None


class Hub:
    """Everything happens in the event loop in which it was made."""

    def __init__(self, handle: ProcessHandle, metrics: ReplicaMetrics) -> None:
        """metrics: counts what the cores say of themselves, which front ends do not hear"""
        limits = handle.replicas.supervisors[0].limits
        assert limits is not None, "the cores are ready"
        self._limits: CoreReady = limits
        self._metrics = metrics
        self._front_ends: list[FrontEnd] = []
        self._owners: dict[str, FrontEnd] = {}  # by request
        self._questions: dict[int, _Question] = {}
        self._numbers = itertools.count(1)
        self._standing: dict[str, CallService] = {}
        self._past_counts: Tally[tuple[str | int, ...]] = Tally()  # "server_counts" of front ends that have ended
        self._tasks: set[asyncio.Task[None]] = set()
        self.client = AsyncMPClient(handle, self._take_outputs, lambda error: None)
        self.client.on_attended = self._tell_state
        self._state = self._state_now()
        self.client.attach()

    def connect(self, connection: socket.socket) -> FrontEnd:
        """Take in a front end that waits for its Welcome at the other end."""
        front_end = FrontEnd(self, connection)
        self._front_ends.append(front_end)
        front_end.send(wire.encode(wire.Welcome(self._limits, self._state, list(self._standing.values()))))
        return front_end

    def shutdown(self) -> None:
        """End the cores; idempotent."""
        self.client.shutdown()

    def take(self, front_end: FrontEnd, message: Any) -> None:
        """Do what a front end says."""
        front_end.num_unanswered = 0
        if isinstance(message, wire.PlaceRequest):
            self._place(front_end, message)
        elif isinstance(message, AbortRequests):
            self._abort(message.request_ids)
        elif isinstance(message, wire.CallCores):
            self._call_cores(front_end, message)
        elif isinstance(message, wire.CallFrontEnds):
            self._call_front_ends(front_end, message)
        elif isinstance(message, CallResult):
            self._take_answer(front_end, message)
        elif isinstance(message, StartFailed):
            front_end.error = message.error
        elif not front_end.ready.done():
            front_end.ready.set_result(None)

    def forget(self, front_end: FrontEnd) -> None:
        """Abort the requests of a front end that has ended, for nobody waits for them, and keep what it has counted."""
        self._front_ends.remove(front_end)
        self._abort(list(front_end.request_ids))
        for question in list(self._questions.values()):
            self._pass_over(question, front_end)
        engine_counts = msgspec.convert(front_end.counts.get("engine_counts", []), list[EngineCounts])
        for engine, counts in zip(self._metrics.engines, engine_counts, strict=False):  # none, if it was never asked
            engine.counts.add(counts)
        for *key, count in front_end.counts.get("server_counts", []):
            self._past_counts[tuple(key)] += count

    # -- requests ------------------------------------------------------------------------------------------------------

    def _place(self, front_end: FrontEnd, message: wire.PlaceRequest) -> None:
        request_id = message.request.request_id
        try:
            if request_id in self._owners:  # ids have a random part: this takes luck
                raise OctavoError(f"there is a request {request_id} already")
            self.client.add_request(message.request, message.rank)
        except OctavoError as error:
            output = EngineCoreOutput(request_id, [], finish_reason=FinishReason.ERROR, stop_reason=str(error))
            front_end.send(wire.encode(StepDone(EngineCoreOutputs([output]))))
            return
        self._owners[request_id] = front_end
        front_end.request_ids.add(request_id)

    def _abort(self, request_ids: list[str]) -> None:
        self.client.abort_requests(request_ids)
        for request_id in request_ids:
            self._disown(request_id)

    def _disown(self, request_id: str) -> FrontEnd | None:
        owner = self._owners.pop(request_id, None)
        if owner is not None:
            owner.request_ids.discard(request_id)
        return owner

    def _take_outputs(self, outputs: EngineCoreOutputs) -> None:
        if outputs.scheduler_stats is not None:
            self._metrics.engines[outputs.engine_index].record_scheduler(outputs.scheduler_stats)
        by_owner: dict[FrontEnd, list[EngineCoreOutput]] = defaultdict(list)
        for output in outputs.outputs:
            request_id = output.request_id
            owner = self._owners.get(request_id) if output.finish_reason is None else self._disown(request_id)
            if owner is not None:
                by_owner[owner].append(output)
        for owner, own in by_owner.items():
            owner.send(wire.encode(StepDone(EngineCoreOutputs(own, outputs.engine_index, outputs.timestamp))))

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _call_cores(self, front_end: FrontEnd, call: wire.CallCores) -> None:
        if call.method == "load_vocabulary":
            self.client.load_vocabulary(*call.args)
            return
        try:  # now, and not in the task: what the front end sends next comes later
            answers = self.client.start_call(call.method, call.args, call.serving_only)
        except OctavoError as error:
            front_end.send(wire.encode(CallResult(call.call_id, error=failed_call_as_data(error, call.method, ""))))
            return
        task = asyncio.get_running_loop().create_task(_answer(front_end, call, answers))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _call_front_ends(self, asker: FrontEnd, call: wire.CallFrontEnds) -> None:
        number = next(self._numbers)
        if call.standing:
            self._standing.pop(call.standing, None)
            self._standing[call.standing] = CallService(0, call.method, call.args)
        answers: list[Any] = []
        if call.method == "engine_counts":
            answers.append(msgspec.to_builtins(self._metrics.counts))
        elif call.method == "server_counts":
            answers.append([(*key, count) for key, count in self._past_counts.items()])
        waiting = {one for one in self._front_ends if one.is_ready or one is asker}
        self._questions[number] = question = _Question(number, asker, call, waiting, answers)
        message = wire.encode(CallService(number, call.method, call.args))
        for one in self._front_ends:  # those that are not ready do it when they are
            one.send(message)
        self._limit(question)

    def _take_answer(self, front_end: FrontEnd, answer: CallResult) -> None:
        question = self._questions.get(answer.call_id)
        if question is None:
            return
        question.error = question.error or answer.error
        if question.call.method in _COUNTS and answer.error is None:
            front_end.counts[question.call.method] = answer.result
        self._answered(question, front_end, answer.result)

    def _limit(self, question: _Question) -> None:
        """Wait no longer than that for those who are silent (stopped, say): they obey when they hear of it."""
        asyncio.get_running_loop().call_later(_ANSWER_TIMEOUT_S, self._wait_no_longer, question)

    def _wait_no_longer(self, question: _Question) -> None:
        for front_end in list(question.waiting):
            if question.call.method != "drain" or not front_end.request_ids:  # a drain takes as long as requests do
                self._pass_over(question, front_end)
        if question.waiting:
            self._limit(question)

    def _pass_over(self, question: _Question, front_end: FrontEnd) -> None:
        self._answered(question, front_end, front_end.counts.get(question.call.method))

    def _answered(self, question: _Question, front_end: FrontEnd, answer: Any) -> None:
        """Note an answer, None for one that has nothing to say; give all to the asker when they are there."""
        if front_end not in question.waiting:
            return
        question.waiting.remove(front_end)
        if answer is not None:
            question.answers.append(answer)
        if not question.waiting:
            del self._questions[question.number]
            question.asker.send(wire.encode(CallResult(question.call.call_id, question.answers, question.error)))

    # -- state ---------------------------------------------------------------------------------------------------------

    def _state_now(self) -> wire.EngineState:
        client = self.client
        dead = None if client.dead_error is None else str(client.dead_error)
        return wire.EngineState(client.process_ids, client.are_serving, client.is_ready, dead)

    def _tell_state(self) -> None:
        state = self._state_now()
        if state != self._state:
            self._state = state
            for front_end in self._front_ends:
                front_end.send(wire.encode(state))


async def _answer(front_end: FrontEnd, call: wire.CallCores, answers: Awaitable[list[Any]]) -> None:
    try:
        result = CallResult(call.call_id, await answers)
    except Exception as error:  # whatever it is, the caller gets it
        result = CallResult(call.call_id, error=failed_call_as_data(error, call.method, "in the engine's process"))
    front_end.send(wire.encode(result))
