"""The core's side of grammars: waiting, masks, places, ends, reasoning, recovery, drafts."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pytest

from octavo.errors import InvalidRequestError
from octavo.structured import manager as manager_module
from octavo.structured.guidance import GuidanceMatcher
from octavo.structured.limits import GrammarLimits
from octavo.structured.manager import StructuredOutputManager
from octavo.structured.source import lark_spec
from octavo.types.grammar import GrammarProgress, GrammarSpec
from tests.structured.grammars import job
from tests.structured.vocabularies import EOS, NUM_TOKENS, OTHER_EOS, SPECIAL, small_vocabulary, spell

CONTINUES, COMPLETE, REJECTED = GrammarProgress.CONTINUES, GrammarProgress.COMPLETE, GrammarProgress.REJECTED


@dataclass
class FakeRequest:
    request_id: str
    grammar: GrammarSpec | None
    all_token_ids: list[int] = field(default_factory=lambda: [1, 2, 3])
    num_prompt_tokens: int = 3
    eos_token_id: int | None = EOS
    reasoning_end_token_ids: list[int] | None = None
    reasoning_start_token_ids: list[int] | None = None
    call_start_token_ids: list[list[int]] = field(default_factory=list)


@pytest.fixture
def manager():
    manager = StructuredOutputManager("guidance")
    manager.load_vocabulary(small_vocabulary().pack())
    yield manager
    manager.close()


def request(name: str, pattern: str, **fields) -> FakeRequest:
    return FakeRequest(name, lark_spec(job("regex", pattern)), **fields)


def arrive(manager: StructuredOutputManager, *requests: FakeRequest) -> None:
    deadline = time.monotonic() + 30
    for one in requests:
        while not manager.is_ready(one):
            manager.wait(0.05)
            assert time.monotonic() < deadline


def masks(manager: StructuredOutputManager, *names: str, drafts=None) -> list[set[int]]:
    output = manager.bitmask(list(names), drafts or {})
    assert output is None or not output.late_request_ids
    return [] if output is None else rows(output.bitmask)


def rows(bitmask: bytes) -> list[set[int]]:
    words = np.frombuffer(bitmask, np.int32).reshape(-1, NUM_TOKENS // 32 + 1)
    return [set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()) for row in words]


def test_first_request_waits_and_a_known_grammar_is_there_at_once(manager: StructuredOutputManager):
    arrive(manager, request("a", "x+"))
    assert manager.is_ready(request("b", "x+")), "the same grammar again costs no wait"
    assert masks(manager, "a", "b") == [{ord("x")}, {ord("x")}]


def test_grammar_that_does_not_compile_fails_its_request_only(manager: StructuredOutputManager):
    arrive(manager, request("a", "x"))
    broken = FakeRequest("b", GrammarSpec("guidance", "lark", "start: missing"))
    with pytest.raises(InvalidRequestError, match="missing"):
        arrive(manager, broken)
    assert masks(manager, "a") == [{ord("x")}]


def test_a_grammar_waits_for_no_costly_one(manager: StructuredOutputManager):
    arrive(manager, request("warm", "w"))
    release = threading.Event()
    manager._costly_builder.submit(release.wait, 30)
    costly = request("costly", "c+")
    costly.grammar = msgspec.structs.replace(costly.grammar, is_costly=True)
    assert not manager.is_ready(costly)
    arrive(manager, request("a", "ab"))
    assert not manager.is_ready(costly)
    release.set()
    arrive(manager, costly)
    assert masks(manager, "costly", "a") == [{ord("c")}, {ord("a")}]


def test_masks_follow_each_request(manager: StructuredOutputManager):
    one, two = request("a", "xy"), request("b", "x[ab]")
    arrive(manager, one, two)
    assert manager.accept(one, ord("x")) is CONTINUES
    assert masks(manager, "a", "b") == [{ord("y")}, {ord("x")}]
    assert manager.accept(two, ord("x")) is CONTINUES
    assert masks(manager, "b", "a") == [set(b"ab"), {ord("y")}]


def test_masks_begun_early_are_those_that_are_asked_for(manager: StructuredOutputManager):
    requests = [request(name, f"{name}+") for name in "xyz"]
    arrive(manager, *requests)
    manager.start_masks(["x", "y", "z"], {})
    assert masks(manager, "x", "y", "z") == [{ord(name)} for name in "xyz"]
    manager.start_masks(["x", "y", "z"], {})
    manager.release(requests[1])  # aborted while the model computed
    assert masks(manager, "x", "z") == [{ord("x")}, {ord("z")}]
    manager.start_masks(["x"], {})  # of a step that failed
    manager.accept(requests[0], ord("x"))
    manager.start_masks(["x"], {})  # again, and all its requests have ended
    manager.start_masks(["z"], {})
    assert masks(manager, "z") == [{ord("z")}]


def test_masks_that_take_long_are_awaited_beside_the_steps(
    manager: StructuredOutputManager, monkeypatch: pytest.MonkeyPatch
):
    one, two = request("a", "xyz"), request("b", "xyz")
    arrive(manager, one, two)
    monkeypatch.setattr("octavo.structured.mask_filler._SLOW_MASK_S", -1)  # all of them
    assert masks(manager, "a", "b") == [{ord("x")}] * 2
    with HeldUp(manager, monkeypatch):
        for one_of_both in (one, two):
            assert manager.accept(one_of_both, ord("x")) is CONTINUES
            assert not manager.may_run(one_of_both) and manager.valid_drafts(one_of_both, [ord("y")]) == []
    wait_until(manager, lambda: manager.may_run(one) and manager.may_run(two))
    assert masks(manager, "a", "b") == [{ord("y")}] * 2
    monkeypatch.setattr("octavo.structured.mask_filler._SLOW_MASK_S", 1)
    for expected, answer in (("y", CONTINUES), ("z", COMPLETE)):
        assert manager.accept(one, ord(expected)) is answer
        wait_until(manager, lambda: manager.may_run(one))
    assert manager.accept(two, ord("y")) is CONTINUES  # whose last mask took long
    assert masks(manager, "b") == [{ord("z")}]
    assert manager.accept(two, ord("z")) is COMPLETE and manager.may_run(two)


def test_a_step_goes_on_without_a_mask_that_takes_too_long(
    manager: StructuredOutputManager, monkeypatch: pytest.MonkeyPatch
):
    slow, quick, other = request("slow", "xyz"), request("quick", "q{9}"), request("other", "o+")
    arrive(manager, slow, quick, other)
    with HeldUp(manager, monkeypatch, "slow"):
        for _ in range(2):  # drafts or not, at the first time and while it still takes
            output = manager.bitmask(["quick", "slow", "other"], {"slow": spell("xy")})
            assert (output.request_ids, output.late_request_ids) == (["quick", "other"], ["slow"])
            assert rows(output.bitmask) == [{ord("q")}, {ord("o")}]
            assert not manager.may_run(slow) and manager.may_run(quick) and manager.error(slow) is None
    wait_until(manager, lambda: manager.may_run(slow))
    assert masks(manager, "slow", "quick") == [{ord("x")}, {ord("q")}]
    wait_until(manager, lambda: manager.begin_accept(slow, ord("x")))
    assert manager.accept(slow, ord("x")) is CONTINUES and manager.accept(quick, ord("q")) is CONTINUES
    wait_until(manager, lambda: manager.may_run(slow))
    assert masks(manager, "slow", "quick", drafts={"quick": spell("q")}) == [{ord("y")}, {ord("q")}, {ord("q")}]


def test_a_token_behind_a_slow_mask_is_taken_beside_the_steps(
    manager: StructuredOutputManager, monkeypatch: pytest.MonkeyPatch
):
    """Whatever becomes of it: it goes on, ends the answer, or is rejected."""
    monkeypatch.setattr("octavo.structured.mask_filler._SLOW_MASK_S", -1)
    for token, end in (("x", CONTINUES), ("y", COMPLETE), ("z", REJECTED)):
        one = request(token, "xa|y", reasoning_end_token_ids=[SPECIAL])
        arrive(manager, one)
        assert manager.accept(one, SPECIAL) is CONTINUES
        manager._places[token].is_slow = True
        wait_until(manager, lambda one=one: manager.may_run(one))
        assert masks(manager, token) == [set(b"xy")]
        release = threading.Event()
        manager._aside.submit(release.wait, 30)  # its thread has other work
        assert not manager.begin_accept(one, ord(token)) and not manager.begin_accept(one, ord(token))
        assert not manager.may_run(one) and manager.error(one) is None
        release.set()
        wait_until(manager, lambda one=one, token=token: manager.begin_accept(one, ord(token)))
        assert manager.accept(one, ord(token)) is end
        assert (manager.error(one) is not None) == (end is REJECTED)
        manager.release(one)


def test_requests_end_while_their_mask_or_their_token_is_under_way(
    manager: StructuredOutputManager, monkeypatch: pytest.MonkeyPatch
):
    slow, quick = request("slow", "xyz"), request("quick", "q+")
    arrive(manager, slow, quick)
    with HeldUp(manager, monkeypatch, "slow"):
        assert manager.bitmask(["slow", "quick"], {}).late_request_ids == ["slow"]
        manager.release(slow)
        arrive(manager, slow)  # the same id again
        assert masks(manager, "quick") == [{ord("q")}]
        assert manager.may_run(slow)
    assert masks(manager, "slow", "quick") == [{ord("x")}, {ord("q")}]
    manager._places["slow"].is_slow = True
    wait_until(manager, lambda: manager.may_run(slow))
    release = threading.Event()
    manager._aside.submit(release.wait, 30)
    assert not manager.begin_accept(slow, ord("x"))
    manager.release(slow)
    release.set()
    arrive(manager, slow)
    assert masks(manager, "slow") == [{ord("x")}]


def test_many_slow_masks_in_one_step_hold_it_up_as_long_as_two(
    manager: StructuredOutputManager, monkeypatch: pytest.MonkeyPatch
):
    slow = [request(f"slow{i}", "x+") for i in range(6)]
    quick = request("quick", "q+")
    arrive(manager, *slow, quick)
    names = [one.request_id for one in slow]
    with HeldUp(manager, monkeypatch, *names):
        output = manager.bitmask([*names, "quick"], {})
        assert output.late_request_ids == [*names, "quick"] and output.bitmask == b""
        assert [manager.may_run(one) for one in (*slow, quick)] == [False] * 2 + [True] * 5
    wait_until(manager, lambda: all(map(manager.may_run, slow)))
    assert masks(manager, *names, "quick") == [{ord("x")}] * 6 + [{ord("q")}]


def test_a_first_mask_that_takes_long_is_made_before_the_request_is_scheduled(
    manager: StructuredOutputManager, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("octavo.structured.mask_filler._SLOW_MASK_S", -1)
    one = request("a", "xy")
    arrive(manager, one)
    wait_until(manager, lambda: manager.may_run(one))
    with HeldUp(manager, monkeypatch):
        assert masks(manager, "a") == [{ord("x")}], "nothing is left to be made in the step"


class HeldUp:
    """Until its end, masks of some places (of all, unless they are named) are not made."""

    def __init__(self, manager: StructuredOutputManager, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.release = threading.Event()
        held = [manager._places[name].matcher for name in names]
        backend = manager._ready_filler().backend
        fill = backend.fill_mask

        def fill_late(matcher, mask):
            if not names or any(matcher is one for one in held):
                assert self.release.wait(30)
            fill(matcher, mask)

        monkeypatch.setattr(backend, "fill_mask", fill_late)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self.release.set()


def wait_until(manager: StructuredOutputManager, condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        manager.wait(0.05)
        assert time.monotonic() < deadline


def test_grammar_ends_and_rejects(manager: StructuredOutputManager):
    one = request("a", "ab")
    arrive(manager, one)
    assert [manager.accept(one, token_id) for token_id in spell("ab")] == [CONTINUES, COMPLETE]
    two = request("b", "ab")
    arrive(manager, two)
    assert manager.error(two) is None
    assert manager.accept(two, ord("x")) is REJECTED
    assert manager.error(two)


def test_ends_of_sequence_are_forbidden_where_they_are_ignored(manager: StructuredOutputManager):
    arrive(manager, request("a", "x?y?"), request("b", "x?y?", eos_token_id=None))
    usual, ignoring = masks(manager, "a", "b")
    assert {EOS, OTHER_EOS} <= usual
    assert ignoring == usual - {EOS, OTHER_EOS} == set(b"xy")


def test_grammar_begins_after_reasoning(manager: StructuredOutputManager):
    one, plain = request("a", "x", reasoning_end_token_ids=[SPECIAL, 10]), request("b", "x")
    arrive(manager, one, plain)
    assert masks(manager, "a") == []
    for token_id in (ord("y"), SPECIAL, ord("y"), SPECIAL, SPECIAL):
        assert manager.accept(one, token_id) is CONTINUES
    assert masks(manager, "a", "b") == [{ord("x")}], "only of the other"
    assert manager.valid_drafts(one, spell("zz")) == spell("zz")
    # what would end the reasoning is not guessed: behind it tokens would need masks that nobody fills
    assert manager.valid_drafts(one, [*spell("z"), SPECIAL, 10, *spell("x")]) == [*spell("z"), SPECIAL]
    manager.accept(one, 10)
    assert masks(manager, "a") == [{ord("x")}]
    assert manager.accept(one, ord("x")) is COMPLETE


def test_a_grammar_begins_with_the_call_that_ends_the_reasoning(manager: StructuredOutputManager):
    marks = {"reasoning_end_token_ids": [SPECIAL], "call_start_token_ids": [spell("<t"), spell("zz")]}
    one, other = request("a", "<tx", **marks), request("b", "<tx", **marks)
    arrive(manager, one, other)
    assert manager.valid_drafts(one, spell("ab<tx")) == spell("ab<"), "behind it the grammar holds"
    for token_id in spell("ab<a<"):
        assert manager.accept(one, token_id) is CONTINUES
        assert masks(manager, "a") == []
    assert manager.valid_drafts(one, spell("tx")) == []
    assert manager.accept(one, ord("t")) is CONTINUES
    assert masks(manager, "a") == [{ord("x")}]
    assert manager.accept(one, ord("x")) is COMPLETE
    for token_id in (*spell("zz"), SPECIAL):  # the grammar does not allow zz, which is reasoning then
        assert manager.accept(other, token_id) is CONTINUES
    assert masks(manager, "b") == [{ord("<")}]


def test_reasoning_that_may_begin_is_allowed_to(manager: StructuredOutputManager):
    marks = {"reasoning_start_token_ids": [SPECIAL, 10], "reasoning_end_token_ids": [OTHER_EOS]}
    thinks, answers = request("a", "xy", **marks), request("b", "xy", **marks)
    arrive(manager, thinks, answers)
    assert masks(manager, "a", "b") == [{SPECIAL, ord("x")}] * 2
    manager.accept(thinks, SPECIAL)
    manager.accept(answers, ord("x"))
    assert masks(manager, "a", "b") == [{10}, {ord("y")}]
    for token_id in (10, ord("q"), OTHER_EOS):
        manager.accept(thinks, token_id)
    assert masks(manager, "a") == [{ord("x")}]


def test_an_answer_may_begin_like_the_reasoning(manager: StructuredOutputManager):
    """Markers of several tokens: "<think>" and a call begin with the same one."""
    marks = {"reasoning_start_token_ids": spell("<th"), "reasoning_end_token_ids": [SPECIAL]}
    thinks, answers = request("a", "<tool|yes", **marks), request("b", "<tool|yes", **marks)
    arrive(manager, thinks, answers)
    assert masks(manager, "a", "b") == [set(b"<y")] * 2
    for one in (thinks, answers):
        manager.accept(one, ord("<"))
    assert masks(manager, "a") == [set(b"t")]
    for one in (thinks, answers):
        manager.accept(one, ord("t"))
    assert masks(manager, "a", "b") == [set(b"ho")] * 2
    manager.accept(thinks, ord("h"))
    manager.accept(answers, ord("o"))
    assert masks(manager, "b") == [set(b"o")]
    for token_id in (ord("q"), SPECIAL):
        manager.accept(thinks, token_id)
    assert masks(manager, "a") == [set(b"<y")]


def test_request_that_goes_on_elsewhere_is_where_it_was(manager: StructuredOutputManager):
    tokens = [1, 2, 3, *spell("zz"), SPECIAL, *spell("ab")]
    one = request("a", "abc|abd", all_token_ids=tokens, reasoning_end_token_ids=[SPECIAL])
    arrive(manager, one)
    assert masks(manager, "a") == [set(b"cd")]
    wrong = request("b", "x", all_token_ids=[1, 2, 3, ord("y")])
    with pytest.raises(InvalidRequestError, match="do not follow"):
        arrive(manager, wrong)


def test_drafts_get_a_row_each_and_leave_the_place_as_it_was(manager: StructuredOutputManager):
    one, two = request("a", "abcd"), request("b", "x+")
    arrive(manager, one, two)
    assert manager.valid_drafts(one, spell("abx")) == spell("ab")
    rows = masks(manager, "a", "b", drafts={"a": spell("ab")})
    assert rows == [{ord("a")}, {ord("b")}, {ord("c")}, {ord("x")}]
    assert masks(manager, "a") == [{ord("a")}]
    rows = masks(manager, "a", drafts={"a": spell("xb")})
    assert rows[0] == {ord("a")} and not rows[1] and not rows[2], "nothing follows a draft that is not allowed"
    assert masks(manager, "a") == [{ord("a")}]


def test_grammar_that_gets_too_costly_allows_nothing_and_says_why():
    manager = StructuredOutputManager("guidance", GrammarLimits(step_fuel=10))
    manager.load_vocabulary(small_vocabulary().pack())
    costly, cheap = request("a", "(.*a){12}b"), request("b", "x")
    arrive(manager, costly, cheap)
    assert masks(manager, "a", "b") == [set(), {ord("x")}]
    assert manager.error(costly) and manager.error(cheap) is None
    manager.close()


class Raising:
    """A matcher of which some methods raise."""

    def __init__(self, inner, *broken: str) -> None:
        self.inner, self.broken = inner, broken

    def __getattr__(self, name: str):
        if name in self.broken:
            raise RecursionError("too deep")
        return getattr(self.inner, name)


def test_a_matcher_that_raises_ends_its_own_request_only(manager: StructuredOutputManager):
    """Whatever is asked of it: masks, with and without drafts, a token, drafts, and its place again."""
    good = request("good", "x+")
    arrive(manager, good)
    for broken in ("inner", "accept", "num_valid", "rollback"):
        bad = request(broken, "a+")
        arrive(manager, bad)
        matcher = manager._places[broken].matcher
        manager._places[broken].matcher = Raising(matcher, broken)
        drafts = {broken: spell("aa")}
        if broken == "inner":
            manager._places[broken].matcher = object()  # the backend does not know what it is
            assert masks(manager, broken, "good") == [set(), {ord("x")}]
        elif broken == "accept":
            assert manager.accept(bad, ord("a")) is REJECTED
        elif broken == "num_valid":
            assert manager.valid_drafts(bad, spell("aa")) == []
        else:
            assert masks(manager, broken, "good", drafts=drafts) == [set(), set(), set(), {ord("x")}]
        assert manager.error(bad) and manager.error(good) is None
        assert masks(manager, broken, "good") == [set(), {ord("x")}]
        manager.release(bad)
    assert manager.accept(good, ord("x")) is CONTINUES


def test_a_matcher_that_raises_while_its_place_is_sought_again_ends_its_request(
    manager: StructuredOutputManager, monkeypatch: pytest.MonkeyPatch
):
    def too_deep(*_: object) -> bool:
        raise RecursionError("too deep")

    monkeypatch.setattr(GuidanceMatcher, "accept", too_deep)
    with pytest.raises(InvalidRequestError, match="too deep"):
        arrive(manager, request("a", "x+", all_token_ids=[1, 2, 3, ord("x")]))
    arrive(manager, request("b", "x+"))


def test_released_requests_are_forgotten(manager: StructuredOutputManager):
    one = request("a", "xy")
    arrive(manager, one)
    manager.accept(one, ord("x"))
    manager.release(one)
    manager.release(one)
    arrive(manager, one)
    assert masks(manager, "a") == [{ord("x")}], "the same id again begins anew"


def test_old_grammars_are_forgotten_and_running_ones_go_on(manager: StructuredOutputManager):
    """What is kept is bounded by the size of the sources, whatever arrives."""
    first = request("a", "xy")
    arrive(manager, first)
    for i in range(9):
        large = FakeRequest(f"l{i}", GrammarSpec("guidance", "lark", f"start: /z{i}/\n// " + "c" * 200_000))
        arrive(manager, large)
        manager.release(large)
    assert sum(len(spec.source) for spec in manager._grammars) <= 2**20
    assert manager.accept(first, ord("x")) is CONTINUES
    assert masks(manager, "a") == [{ord("y")}]
    arrive(manager, request("b", "xy"))
    assert masks(manager, "b") == [{ord("x")}], "compiled again"


@pytest.mark.parametrize("beside_steps", [False, True])
def test_a_vocabulary_is_learnt_at_once_where_nobody_waits(monkeypatch, beside_steps: bool):
    learners: list[threading.Thread] = []
    load = manager_module._load

    def record(*args):
        learners.append(threading.current_thread())
        return load(*args)

    monkeypatch.setattr(manager_module, "_load", record)
    manager = StructuredOutputManager("guidance")
    manager.load_vocabulary(small_vocabulary().pack(), beside_steps)
    here = threading.current_thread()
    if not beside_steps:
        assert learners == [here]
    arrive(manager, request("a", "x"))
    manager.load_vocabulary(small_vocabulary().pack())
    assert len(learners) == 1 and (learners[0] is here) is not beside_steps
    manager.close()
