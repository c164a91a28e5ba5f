"""Several supervised cores as one, with processes that exist only on paper: routing, deaths, blame, calls."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from octavo.engine.balancer import Balancer
from octavo.engine.core_messages import AbortRequests, CallResult, CallService
from octavo.engine.replicas import Replicas, merged
from octavo.engine.supervisor import CoreState
from octavo.errors import EngineDeadError
from octavo.types.messages import EngineCoreOutput, EngineCoreOutputs
from octavo.types.request import FinishReason
from octavo.types.stats import SchedulerStats
from tests.engine.test_supervisor import Paper, request


class PaperReplicas:
    """Replicas that are ready, and the paper that each is written on."""

    def __init__(self, count: int = 2, **policy: Any) -> None:
        self.papers = [Paper(**policy) for _ in range(count)]
        self.replicas = Replicas(Balancer(count))
        for paper in self.papers:
            self.replicas.add(paper.supervisor)
            paper.become_ready()

    def add(self, *names: str) -> list[int]:
        return [self.replicas.add_request(request(name)) for name in names]

    def say(self, rank: int, *outputs: EngineCoreOutput, stats: SchedulerStats | None = None) -> None:
        self.papers[rank].say(*outputs, stats=stats)
        self.replicas.receive()

    def die(self, rank: int, admitted: list[str] | None = None, status: int = -signal.SIGSEGV) -> None:
        self.papers[rank].child.status = status
        self.papers[rank].die(admitted)
        self.replicas.receive()

    def become_ready(self, rank: int) -> None:
        self.papers[rank].become_ready()
        self.replicas.receive()

    def has(self, rank: int) -> dict[str, list[int]]:
        """What the present process of a rank was given."""
        return self.papers[rank].child.added()

    def taken(self) -> list[EngineCoreOutputs]:
        outputs = list(self.replicas.outputs)
        self.replicas.outputs.clear()
        return outputs


def test_requests_are_spread_and_outputs_tell_whose_they_are():
    paper = PaperReplicas()
    assert paper.add("a", "b", "c") == [0, 1, 0]
    assert paper.has(0).keys() == {"a", "c"} and paper.has(1).keys() == {"b"}
    paper.say(1, EngineCoreOutput("b", [5]))
    paper.say(0, EngineCoreOutput("a", [6]))
    assert [(step.engine_index, step.outputs[0].request_id) for step in paper.taken()] == [(1, "b"), (0, "a")]


def test_an_abort_reaches_the_replica_that_has_the_request_and_no_other():
    paper = PaperReplicas()
    paper.add("a", "b")
    paper.replicas.abort_requests(["b"])
    assert paper.papers[1].child.sent[-1] == AbortRequests(["b"])
    assert not any(isinstance(message, AbortRequests) for message in paper.papers[0].child.sent)


def test_requests_of_a_dead_replica_go_on_at_once_at_the_others_with_their_tokens():
    paper = PaperReplicas()
    paper.add("a", "b", "c")
    paper.say(0, EngineCoreOutput("a", [5]), EngineCoreOutput("c", [7]))
    paper.die(0, ["a", "c"])
    assert paper.has(1) == {"b": [], "a": [5], "c": [7]}
    paper.say(1, EngineCoreOutput("a", [6], finish_reason=FinishReason.STOP))
    paper.become_ready(0)
    assert paper.has(0) == {}, "nothing is computed twice"
    assert paper.add("d") == [0]


def test_meanwhile_new_requests_go_to_those_that_serve_even_if_they_wish_otherwise():
    paper = PaperReplicas()
    paper.die(0)
    assert paper.add("a", "b") == [1, 1]
    assert paper.replicas.add_request(request("c"), rank=0) == 1


def test_without_any_core_requests_wait_for_the_first_that_is_there():
    paper = PaperReplicas()
    paper.add("a", "b")
    paper.say(0, EngineCoreOutput("a", [5]))
    paper.die(1)
    paper.say(0, EngineCoreOutput("b", [6]))  # else two deaths in a row were a reason to suspect it
    paper.die(0)
    assert paper.papers[0].supervisor.state is CoreState.STARTING
    assert not paper.replicas.is_ready and paper.replicas.dead_error is None
    paper.add("c", "d")
    paper.become_ready(1)
    assert paper.has(1) == {"a": [5], "b": [6], "c": [], "d": []}


def test_a_request_that_kills_every_replica_is_tried_alone_while_the_others_serve():
    paper = PaperReplicas(3, max_deaths_of_request=3)
    assert paper.add("bad", "x", "y") == [0, 1, 2]
    rank = 0
    num_deaths = 0
    trials = []
    while paper.replicas.supervisors[rank].dead_error is None:
        num_deaths += 1
        assert num_deaths < 9
        given = list(paper.has(rank))
        trials.append(given)
        paper.die(rank, given)
        assert not any(supervisor.dead_error for supervisor in paper.replicas.supervisors)
        serving = [r for r in range(3) if "bad" in paper.has(r) and paper.papers[r].supervisor.is_serving]
        if serving:
            rank = serving[0]
            continue
        ends = [output for step in paper.taken() for output in step.outputs if output.finish_reason is not None]
        if ends:
            break
        paper.become_ready(rank)
    assert [(end.request_id, end.finish_reason) for end in ends] == [("bad", FinishReason.ERROR)]
    assert trials[-2:] == [["bad"], ["bad"]], "it was alone when it was condemned"
    assert num_deaths <= 4
    live = {name for r in range(3) if r != rank for name in paper.has(r)}
    assert {"x", "y"} <= live, "the others were computed elsewhere meanwhile"


def test_a_suspect_stays_with_its_replica_which_gets_nothing_else():
    paper = PaperReplicas()
    paper.add("bad")
    paper.die(0, ["bad"])
    paper.become_ready(0)
    paper.die(1, ["bad"])
    assert paper.add("c", "d") == [0, 0]
    paper.become_ready(1)
    assert paper.has(1) == {"bad": []} and "bad" not in paper.has(0)
    assert paper.add("e") == [0]
    paper.say(1, EngineCoreOutput("bad", [5]))
    assert paper.add("f") == [1], "it is innocent"


def test_a_replica_that_dies_again_and_again_rests_while_others_serve():
    paper = PaperReplicas(max_deaths=1, window_s=60.0)
    first = paper.papers[0]
    paper.add("a", "b")
    paper.die(0)
    paper.become_ready(0)
    paper.die(0)
    assert first.supervisor.state is CoreState.WAITING and first.supervisor.attend_at == first.now + 60
    assert paper.has(1).keys() == {"a", "b"} and paper.add("c") == [1]
    first.now += 60
    paper.replicas.receive()
    paper.become_ready(0)
    assert paper.add("d") == [0]


def test_when_all_die_again_and_again_the_engine_is_given_up():
    paper = PaperReplicas(max_deaths=0)
    paper.die(0)
    assert paper.papers[0].supervisor.is_resting
    paper.add("a")
    paper.replicas.abort_requests(["a"])
    paper.die(1)
    assert paper.papers[1].supervisor.state is CoreState.DEAD and paper.replicas.dead_error is None
    assert paper.add("b") == [0], "the other will be tried once more"
    assert len(paper.replicas.call("resume", ())) == 1
    paper.papers[0].now += 60
    paper.replicas.receive()
    paper.become_ready(0)
    assert paper.has(0) == {"b": []}
    paper.replicas.abort_requests(["b"])
    paper.die(0)
    assert paper.replicas.dead_error is not None
    with pytest.raises(EngineDeadError, match="died more than 0 times"):
        paper.add("c")


def test_calls_reach_every_replica_and_answers_are_put_together():
    paper = PaperReplicas()
    futures = paper.replicas.call("reset_prefix_cache", (False,))
    for rank, answer in enumerate((True, False)):
        (call,) = [message for message in paper.papers[rank].child.sent if isinstance(message, CallService)]
        paper.papers[rank].child.messages.append(CallResult(call.call_id, answer))
    paper.replicas.receive()
    answers = [future.result(0) for future in futures]
    assert answers == [True, False]
    assert merged("reset_prefix_cache", answers) is False
    assert merged("reset_prefix_cache", [True, True]) is True
    assert merged("collective_rpc", [["a"], ["b", "c"]]) == ["a", "b", "c"]
    assert merged("pause", [None, None]) is None


def test_a_call_that_must_be_answered_at_once_leaves_out_who_cannot():
    paper = PaperReplicas()
    paper.die(1)
    assert len(paper.replicas.call("snapshot", (10,), serving_only=True)) == 1
    assert len(paper.replicas.call("resume", ())) == 2
    paper.become_ready(1)
    assert CallService(1, "resume", []) in paper.papers[1].child.sent


def test_all_end_together():
    paper = PaperReplicas()
    paper.replicas.close()
    assert all(supervisor.state is CoreState.CLOSED for supervisor in paper.replicas.supervisors)
    with pytest.raises(EngineDeadError, match="shut down"):
        paper.add("a")
