"""What the supervisor does at each moment of a core's life, with processes that exist only on paper."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from octavo import SamplingParams
from octavo.engine.core_messages import (
    AbortRequests,
    AddRequest,
    Admitted,
    CallResult,
    CallService,
    CoreFailed,
    CoreReady,
    StartCore,
    StartFailed,
    StepDone,
    StopCore,
    decode_core_message,
)
from octavo.engine.supervisor import CoreState, CoreSupervisor, RecoveryPolicy
from octavo.errors import EngineDeadError, InvalidRequestError, RequestFailedError
from octavo.types.messages import EngineCoreOutput, EngineCoreOutputs
from octavo.types.raised_error import RaisedError
from octavo.types.request import EngineCoreRequest, FinishReason
from octavo.types.stats import SchedulerStats

LIMITS = CoreReady(max_model_len=64, max_kv_tokens=60, num_blocks=16, vocab_size=260)


class PaperChild:
    """A process whose messages the test writes."""

    def __init__(self, start: StartCore) -> None:
        self.start = start
        self.sent: list[Any] = []
        self.messages: list[Any] = []
        self.notes: list[Any] = []
        self.is_gone = False
        self.is_connected = False
        self.stop_message: bytes | None = None
        self.status = -signal.SIGSEGV

    def connect(self) -> None:
        self.is_connected = True

    def send(self, message: bytes) -> None:
        assert self.is_connected
        self.sent.append(decode_core_message(message))

    def receive(self) -> list[Any]:
        messages, self.messages = self.messages, []
        return messages

    def read_notes(self) -> tuple[list[Any], bool]:
        notes, self.notes = self.notes, []
        return notes, self.is_gone

    def close(self, stop_message: bytes | None = None) -> int:
        self.stop_message = stop_message
        return self.status

    def added(self) -> dict[str, list[int]]:
        requests = [m.request for m in self.sent if isinstance(m, AddRequest)]
        return {request.request_id: request.output_token_ids for request in requests}


class Paper:
    """A supervisor, its processes so far, and the clock."""

    def __init__(self, **policy: Any) -> None:
        self.children: list[PaperChild] = []
        self.has_host = True
        self.now = 1000.0
        start = StartCore({"max_model_len": None, "seed": 3}, 0)
        self.supervisor = CoreSupervisor(start, self.launch, RecoveryPolicy(**policy), clock=lambda: self.now)

    def launch(self, start: StartCore) -> PaperChild | None:
        if not self.has_host:
            return None
        self.children.append(PaperChild(start))
        return self.children[-1]

    @property
    def child(self) -> PaperChild:
        return self.children[-1]

    def become_ready(self) -> PaperChild:
        self.child.notes.append(LIMITS)
        self.supervisor.receive()
        return self.child

    def die(self, admitted: list[str] | None = None) -> None:
        if admitted:
            self.child.notes.append(Admitted(admitted))
        self.child.is_gone = True
        self.supervisor.receive()

    def say(self, *outputs: EngineCoreOutput, stats: SchedulerStats | None = None) -> None:
        self.child.messages.append(StepDone(EngineCoreOutputs(outputs=list(outputs), scheduler_stats=stats)))
        self.supervisor.receive()

    def outputs(self) -> list[EngineCoreOutput]:
        taken = [output for step in self.supervisor.outputs for output in step.outputs]
        self.supervisor.outputs.clear()
        return taken


def request(name: str, **params: Any) -> EngineCoreRequest:
    return EngineCoreRequest(name, [1, 2], SamplingParams(**params), 0.0, 7)


def ready_paper(**policy: Any) -> Paper:
    paper = Paper(**policy)
    paper.become_ready()
    return paper


def test_requests_made_before_the_core_is_ready_wait_for_it():
    paper = Paper()
    paper.supervisor.add_request(request("a"))
    assert paper.child.sent == []
    paper.become_ready()
    assert paper.child.added() == {"a": []}


def test_after_a_death_another_core_gets_the_unfinished_requests_with_their_tokens():
    paper = ready_paper()
    for name in "abc":
        paper.supervisor.add_request(request(name))
    paper.say(EngineCoreOutput("a", [5]), EngineCoreOutput("b", [6], finish_reason=FinishReason.STOP))
    paper.supervisor.abort_requests(["c"])
    assert paper.child.sent[-1] == AbortRequests(["c"])
    paper.die(["a"])
    assert paper.supervisor.state is CoreState.STARTING
    paper.supervisor.add_request(request("d"))
    assert paper.become_ready().added() == {"a": [5], "d": []}
    assert [output.request_id for output in paper.outputs()] == ["a", "b"]  # and nothing twice


def test_the_next_core_gets_the_limits_of_the_first_whatever_memory_is_free_then():
    paper = ready_paper()
    paper.die()
    assert paper.child.start.options == {"max_model_len": 64, "num_gpu_blocks_override": 16, "seed": 3}
    assert paper.child.start.number == 1


def test_an_abort_while_there_is_no_core_keeps_the_request_from_the_next():
    paper = ready_paper()
    paper.supervisor.add_request(request("a"))
    paper.die(["a"])
    paper.supervisor.abort_requests(["a"])
    assert paper.become_ready().sent == []


def test_a_request_at_three_deaths_in_a_row_fails_and_the_rest_goes_on():
    paper = ready_paper()
    for name in ("innocent", "poison"):
        paper.supervisor.add_request(request(name))
    for _ in range(2):
        paper.die(["innocent", "poison"])
        paper.become_ready()
    assert paper.child.added() == {"innocent": []}
    paper.say(EngineCoreOutput("innocent", [5]))
    assert list(paper.child.added()) == ["innocent", "poison"]
    for _ in range(2):
        paper.die(["poison"])
        assert paper.become_ready().added() == {"poison": []}
    paper.die(["poison"])
    (failure,) = paper.outputs()[1:]
    assert (failure.request_id, failure.finish_reason) == ("poison", FinishReason.ERROR)
    assert "at least 3 times in a row" in failure.stop_reason
    assert paper.become_ready().added() == {"innocent": [5]}


@pytest.mark.parametrize("status", [-signal.SIGKILL, -signal.SIGTERM])
def test_a_core_that_is_killed_from_outside_says_less_about_its_request(status):
    paper = ready_paper()
    paper.supervisor.add_request(request("a"))
    for number in range(6):
        assert not paper.outputs(), f"condemned after {number} deaths"
        paper.child.status = status
        paper.die(["a"])
        if number < 5:
            paper.become_ready()
    assert [output.finish_reason for output in paper.outputs()] == [FinishReason.ERROR]


def test_too_many_deaths_in_the_window_end_the_engine():
    paper = ready_paper(max_deaths=2, window_s=60, max_deaths_of_request=100)
    paper.supervisor.add_request(request("a"))
    call = paper.supervisor.call("check_health", ())
    for _ in range(2):
        paper.die()
        paper.become_ready()
    paper.die()
    assert paper.supervisor.state is CoreState.DEAD
    assert len(paper.children) == 3
    with pytest.raises(EngineDeadError, match=r"more than 2 times in a row in 60 s .*; signal 11"):
        raise paper.supervisor.dead_error
    with pytest.raises(EngineDeadError):
        paper.supervisor.add_request(request("b"))
    with pytest.raises(EngineDeadError):
        paper.supervisor.call("check_health", ())
    with pytest.raises(EngineDeadError):
        call.result(0)


def test_cores_that_gave_tokens_may_die_as_often_as_they_like():
    paper = ready_paper(max_deaths=1, max_deaths_of_request=100)
    paper.supervisor.add_request(request("a"))
    for token_id in range(10):
        paper.say(EngineCoreOutput("a", [token_id]))
        paper.die(["a"])
        paper.become_ready()
        paper.die(["a"])  # one without is allowed, and the next with one ends the row
        paper.become_ready()
    assert paper.child.added() == {"a": list(range(10))}
    paper.die()
    paper.become_ready()
    paper.die()
    assert paper.supervisor.state is CoreState.DEAD


def test_deaths_that_tell_the_cause_do_not_count():
    paper = ready_paper(max_deaths=2)
    for name in ("a", "b", "c", "d"):
        paper.supervisor.add_request(request(name))
    for admitted in ("abcd", "abcd", "a", "a", "b", "b", "c", "c", "d", "d"):
        paper.die(list(admitted))
        paper.become_ready()
    assert paper.supervisor.state is CoreState.READY
    assert [output.request_id for output in paper.outputs()] == ["a", "b", "c", "d"]


def test_deaths_long_ago_do_not_count():
    paper = ready_paper(max_deaths=2, window_s=60)
    for _ in range(10):
        paper.now += 31
        paper.die()
        paper.become_ready()
    assert paper.supervisor.state is CoreState.READY


def test_a_first_start_that_fails_is_final_and_says_why():
    paper = Paper()
    paper.child.notes.append(StartFailed(RaisedError("ConfigError", "no such thing")))
    paper.die()
    assert paper.supervisor.state is CoreState.DEAD
    assert paper.supervisor.start_error == RaisedError("ConfigError", "no such thing")
    assert len(paper.children) == 1


def test_later_starts_that_fail_are_tried_again_after_growing_pauses():
    paper = ready_paper(max_deaths=10, retry_delay_s=0.5)
    paper.supervisor.add_request(request("a"))
    paper.die()
    for pause_s in (0.5, 1.0, 2.0):
        number = len(paper.children)
        paper.die()
        assert paper.supervisor.state is CoreState.WAITING
        assert paper.supervisor.restart_at == paper.now + pause_s
        paper.supervisor.receive()
        assert len(paper.children) == number
        paper.now += pause_s
        paper.supervisor.receive()
        assert len(paper.children) == number + 1
    assert paper.become_ready().added() == {"a": []}


def test_a_death_before_ready_is_held_against_no_request():
    paper = ready_paper(max_deaths=100, retry_delay_s=0)
    paper.supervisor.add_request(request("a"))
    paper.die(["a"])
    for _ in range(5):
        paper.die()
    assert paper.become_ready().added() == {"a": []}


def test_a_call_is_answered_or_raises_what_was_raised_there():
    paper = ready_paper()
    good, bad = paper.supervisor.call("is_sleeping", ()), paper.supervisor.call("collective_rpc", ("x", None, [], {}))
    calls = [CallService(1, "is_sleeping", []), CallService(2, "collective_rpc", ["x", None, [], {}])]
    assert paper.child.sent == calls
    paper.child.messages += [
        CallResult(2, None, RaisedError("RequestFailedError", "no x")),
        CallResult(1, False),
        CallResult(9, 1),
    ]
    paper.supervisor.receive()
    assert good.result(0) is False
    with pytest.raises(RequestFailedError, match="no x"):
        bad.result(0)


def test_at_a_death_harmless_calls_are_made_again_and_others_fail():
    paper = ready_paper()
    harmless = paper.supervisor.call("reset_prefix_cache", (False,))
    other = paper.supervisor.call("collective_rpc", ("x", None, [], {}))
    paper.die()
    queued = paper.supervisor.call("collective_rpc", ("y", None, [], {}))
    with pytest.raises(RequestFailedError, match="died before"):
        other.result(0)
    paper.become_ready()
    assert [(m.method, m.call_id) for m in paper.child.sent] == [("reset_prefix_cache", 1), ("collective_rpc", 3)]
    assert not harmless.done() and not queued.done()


def test_a_cancelled_call_is_forgotten():
    paper = ready_paper()
    call = paper.supervisor.call("is_sleeping", ())
    call.cancel()
    paper.child.messages.append(CallResult(1, False))
    paper.supervisor.receive()
    assert call.cancelled()


def test_a_new_core_sleeps_and_pauses_as_the_one_before_it():
    paper = ready_paper()
    for method, args in (("pause", ()), ("sleep", (2,))):
        paper.supervisor.call(method, args)
    paper.child.messages += [CallResult(1), CallResult(2)]
    paper.supervisor.receive()
    paper.supervisor.add_request(request("a"))
    paper.die()
    paper.become_ready()
    assert [(m.method, m.args) for m in paper.child.sent[:2]] == [("sleep", [2]), ("pause", [])]
    paper.supervisor.call("wake_up", ())
    paper.supervisor.call("resume", ())
    paper.die()
    paper.become_ready()
    assert [m.method for m in paper.child.sent if isinstance(m, CallService)] == ["wake_up", "resume"]


def test_preemptions_are_counted_over_all_cores():
    paper = ready_paper()
    paper.say(stats=SchedulerStats(num_running=3, num_preemptions=4))
    paper.die()
    paper.become_ready()
    paper.say(stats=SchedulerStats(num_preemptions=2))
    stats = [step.scheduler_stats for step in paper.supervisor.outputs]
    assert [(s.num_running, s.num_preemptions) for s in stats] == [(3, 4), (0, 4), (0, 6)]


def test_parameters_that_are_no_plain_data_are_refused_with_or_without_a_core():
    paper = ready_paper()
    bad = request("bad", extra_args={"x": object()})
    with pytest.raises(InvalidRequestError, match="plain data"):
        paper.supervisor.add_request(bad)
    paper.supervisor.abort_requests(["bad"])
    paper.die()
    with pytest.raises(InvalidRequestError, match="plain data"):
        paper.supervisor.add_request(bad)
    assert paper.become_ready().sent == []


# -- cores that hang ---------------------------------------------------------------------------------------------------


def silent_for(paper: Paper, seconds: float) -> None:
    """Let time pass, and look whenever that is asked for."""
    end = paper.now + seconds
    while (at := paper.supervisor.attend_at) is not None and at <= end:
        paper.now = max(at, paper.now)
        paper.supervisor.receive()
    paper.now = end


def test_a_core_that_has_work_and_says_nothing_is_replaced(caplog):
    paper = ready_paper(step_timeout_s=80)
    paper.supervisor.add_request(request("a"))
    silent_for(paper, 79)
    paper.say(EngineCoreOutput("a", [5]))
    silent_for(paper, 79)
    assert len(paper.children) == 1
    silent_for(paper, 12)
    assert len(paper.children) == 2
    assert "it hung: it had been silent for 80 s" in caplog.text
    assert paper.become_ready().added() == {"a": [5]}


def test_any_step_is_a_sign_of_life_also_one_without_tokens():
    paper = ready_paper(step_timeout_s=80)
    paper.supervisor.add_request(request("a"))
    for _ in range(20):
        silent_for(paper, 60)
        paper.say()
    assert len(paper.children) == 1


@pytest.mark.parametrize("method", ["sleep", "pause", "collective_rpc"])
def test_a_core_that_owes_nothing_may_be_silent(method):
    paper = ready_paper(step_timeout_s=80)
    assert paper.supervisor.attend_at is None
    paper.supervisor.add_request(request("a"))
    call = paper.supervisor.call(method, (1,) if method == "sleep" else ())
    if method != "pause":  # takes any time
        silent_for(paper, 10_000)
    paper.child.messages.append(CallResult(1))
    paper.supervisor.receive()
    assert call.result(0) is None
    silent_for(paper, 150)
    assert len(paper.children) == (2 if method == "collective_rpc" else 1)


def test_a_call_that_is_not_answered_is_a_hang_too():
    paper = ready_paper(step_timeout_s=80)
    call = paper.supervisor.call("scheduler_stats", ())
    silent_for(paper, 100)
    assert len(paper.children) == 2
    paper.become_ready()
    assert [m.method for m in paper.child.sent] == ["scheduler_stats"]
    assert not call.done()


def test_time_in_which_the_front_end_itself_stood_still_does_not_count():
    paper = ready_paper(step_timeout_s=80)
    paper.supervisor.add_request(request("a"))
    paper.now += 10_000  # a frozen container: the core stood still too
    paper.supervisor.receive()
    assert len(paper.children) == 1
    silent_for(paper, 50)
    paper.say(EngineCoreOutput("a", [5]))
    assert len(paper.children) == 1


def test_a_core_that_hangs_while_it_starts_is_replaced_but_for_the_first():
    paper = Paper(step_timeout_s=80)
    assert paper.supervisor.attend_at is None
    paper.now += 30  # the first start takes so long
    paper.become_ready()
    paper.die()
    silent_for(paper, 290)
    assert len(paper.children) == 2
    silent_for(paper, 60)
    assert len(paper.children) == 3


def test_a_core_that_says_why_it_ends_is_quoted(caplog):
    paper = ready_paper(max_deaths=0)
    paper.child.notes.append(CoreFailed("the books are wrong"))
    paper.die()
    with pytest.raises(EngineDeadError, match="the books are wrong"):
        raise paper.supervisor.dead_error


def test_closing_stops_a_ready_core_kills_a_starting_one_and_fails_calls():
    paper = ready_paper()
    call = paper.supervisor.call("is_sleeping", ())
    paper.supervisor.close()
    paper.supervisor.close()
    assert decode_core_message(paper.child.stop_message) == StopCore()
    assert paper.supervisor.state is CoreState.CLOSED
    with pytest.raises(EngineDeadError, match="shut down"):
        call.result(0)
    starting = Paper()
    starting.supervisor.close()
    assert starting.child.stop_message is None
    starting.supervisor.receive()
    assert len(starting.children) == 1


def test_closing_between_two_cores_starts_no_other():
    paper = ready_paper(retry_delay_s=1.0)
    paper.die()
    paper.die()
    assert paper.supervisor.state is CoreState.WAITING
    paper.supervisor.close()
    paper.now += 10
    paper.supervisor.receive()
    assert len(paper.children) == 2


def test_a_core_without_a_host_waits_for_one_and_counts_no_deaths(caplog):
    paper = ready_paper(max_deaths=1, window_s=60.0)
    paper.supervisor.has_stand_in = lambda: True
    paper.supervisor.add_request(request("a"))
    for _ in range(3):
        paper.has_host = False
        paper.child.status = -signal.SIGKILL  # as of one whose host has gone
        paper.die()
        num_starts = len(paper.children)
        for _ in range(400):  # it looks for a host now and then
            paper.now += 1.0
            paper.supervisor.receive()
        assert (paper.supervisor.state, len(paper.children)) == (CoreState.WAITING, num_starts)
        paper.has_host = True
        paper.now += 1.0
        paper.supervisor.receive()
        paper.now = paper.supervisor.restart_at or paper.now
        assert paper.become_ready().added() == {"a": []}
    assert sum("has no host" in record.getMessage() for record in caplog.records) == 3


def test_a_core_without_a_host_is_given_up_after_a_while_where_no_other_is():
    paper = ready_paper(window_s=60.0)
    paper.has_host = False
    paper.die()
    for _ in range(59):
        paper.now += 1.0
        paper.supervisor.receive()
    assert paper.supervisor.dead_error is None
    paper.now += 2.0
    paper.supervisor.receive()
    assert "no host for 60 s" in str(paper.supervisor.dead_error)
