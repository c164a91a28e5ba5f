"""Grammars on the front end's side: verdicts, and the processes that may be lost on the way to them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from octavo.config import StructuredOutputsConfig
from octavo.errors import InvalidRequestError, OverloadedError
from octavo.structured import compiler_pool
from octavo.structured.checker import GrammarChecker
from octavo.structured.limits import GrammarLimits
from octavo.structured.messages import TimedJob
from octavo.types.structured_params import StructuredOutputsParams as Wish
from tests.structured.vocabularies import small_vocabulary

# llguidance 1.9 dies of signal 11 on it
KILLER = 'start: %json {"const": -9223372036854775808}'


@pytest.fixture(scope="module")
def checker() -> Iterator[GrammarChecker]:
    checker = GrammarChecker(StructuredOutputsConfig(), small_vocabulary)
    yield checker
    checker.close()


# more than 0.1 s on any machine: too much for the quick lane
SLOW = "root ::= " + '("a" | "b")*' * 700


def pool(checker: GrammarChecker) -> compiler_pool.CompilerPool:
    assert checker._pool is not None
    return checker._pool


def processes(checker: GrammarChecker) -> list[int]:
    return pool(checker).quick.process_ids + pool(checker).slow.process_ids


def forks(process_id: int) -> list[int]:
    """Return the processes that a process has started; waits until there is one."""
    while True:
        found = Path(f"/proc/{process_id}/task/{process_id}/children").read_text().split()
        if found:
            return list(map(int, found))
        time.sleep(0.002)


def has_ended(process_id: int) -> bool:
    path = Path(f"/proc/{process_id}/stat")
    return not path.exists() or " Z " in path.read_text()


def test_who_would_wait_too_long_is_told_so(checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compiler_pool, "_QUEUE_TIMEOUT_S", 0.01)
    with checker._compilers().quick.slot, pytest.raises(OverloadedError, match="try again"):
        checker.check(Wish(regex="waits"))
    assert checker.check(Wish(regex="waits")).kind == "lark"


def test_grammars_pass_and_are_known_afterwards(checker: GrammarChecker):
    wish = Wish(json={"type": "object", "properties": {"a": {"type": "integer"}}})
    assert not checker.is_known(wish)
    spec = checker.check(wish)
    assert (spec.backend, spec.kind) == ("guidance", "schema") and "%json" in spec.source
    assert checker.is_known(wish) and checker.is_known(
        Wish(json='{"type": "object", "properties": {"a": {"type": "integer"}}}')
    )
    assert checker.check(wish) is spec and not spec.is_costly
    schema: dict[str, object] = {}
    for _ in range(10):
        schema = {"type": "object", "properties": {"a": schema, "b": schema}}
    assert checker.check(Wish(json=schema)).is_costly, "so that others need not wait behind it in the engine either"


@pytest.mark.parametrize(
    ("wish", "parameter", "reason"),
    [
        (Wish(regex="(?=a)b"), "structured_outputs.regex", "look-around"),
        (Wish(regex=r"(a)\1"), "structured_outputs.regex", "backreferences"),
        (Wish(regex=r"[^\s\S]"), "structured_outputs.regex", "no text satisfies it"),
        (Wish(grammar="root ::= root"), "structured_outputs.grammar", "no text satisfies it"),
        (Wish(json={"items": {"multipleOf": 0.01}}), "structured_outputs.json", "'multipleOf' at #/items"),
        (Wish(grammar="start: missing"), "structured_outputs.grammar", "missing"),
        (Wish(structural_tag={"format": {"type": "x"}}), "structured_outputs.structural_tag", "'x'"),
        (Wish(json={"const": -9223372036854775808}), "structured_outputs.json", "-9223372036854775808"),
    ],
)
def test_refusals_name_the_parameter_and_the_reason(checker: GrammarChecker, wish, parameter, reason):
    for _ in range(2):  # the second time from memory
        with pytest.raises(InvalidRequestError, match=reason) as error:
            checker.check(wish)
        assert error.value.parameter == parameter


def test_crash_of_the_library_costs_one_grammar(checker: GrammarChecker):
    checker.check(Wish(regex="warm"))
    before = processes(checker)
    with pytest.raises(InvalidRequestError, match="crashes"):
        checker.check(Wish(grammar=KILLER))
    assert checker.check(Wish(regex="after the crash"))
    with pytest.raises(InvalidRequestError, match="crashes"):
        checker.check(Wish(grammar=KILLER))
    assert checker.check(Wish(regex="after the memory of the crash"))
    assert processes(checker) == before  # a fork was lost, not what took half a second to start


@pytest.mark.parametrize("whose", ["process", "fork"])
def test_process_that_was_killed_while_idle_is_replaced(checker: GrammarChecker, whose: str):
    checker.check(Wish(regex="idle"))
    (process_id,) = pool(checker).quick.process_ids
    for victim in [process_id] if whose == "process" else forks(process_id):
        os.kill(victim, signal.SIGSEGV)  # as if a library had crashed: yet no grammar is to blame
        while not has_ended(victim):
            time.sleep(0.01)
    for i in range(3):
        assert f"{whose} {i}" in checker.check(Wish(regex=f"after the {whose} {i}")).source


@pytest.mark.parametrize("moment", ["start", "answer"])
def test_interrupt_while_a_process_is_waited_for_leaves_no_answer_for_the_next(
    moment: str, monkeypatch: pytest.MonkeyPatch
):
    checker = GrammarChecker(StructuredOutputsConfig(), small_vocabulary)
    receive = compiler_pool.receive_frame

    def interrupt(*args: object) -> bytes:
        monkeypatch.setattr(compiler_pool, "receive_frame", receive)
        raise KeyboardInterrupt

    try:
        if moment == "answer":
            checker.warm_up()
        monkeypatch.setattr(compiler_pool, "receive_frame", interrupt)
        with pytest.raises(KeyboardInterrupt):
            checker.check(Wish(regex="first"))
        assert "second" in checker.check(Wish(regex="second")).source
    finally:
        checker.close()


@pytest.mark.parametrize("whose", ["process", "fork"])
def test_grammar_whose_process_is_killed_from_outside_passes(whose: str):
    checker = GrammarChecker(StructuredOutputsConfig(), small_vocabulary)
    wish = Wish(regex="innocent")
    try:
        checker.check(Wish(regex="warm"))
        (process_id,) = processes(checker)
        (fork,) = forks(process_id)
        os.kill(fork, signal.SIGSTOP)  # so that it is in the middle of the grammar when it is killed
        thread = threading.Thread(target=lambda: checker.check(wish))
        thread.start()
        while pool(checker).quick.slot._value:
            time.sleep(0.002)
        time.sleep(0.05)  # the grammar is on its way
        os.kill(process_id if whose == "process" else fork, signal.SIGKILL)
        if whose == "process":
            os.kill(fork, signal.SIGKILL)
        thread.join(30)
        assert checker.is_known(wish) and "innocent" in checker.check(wish).source
        assert "another" in checker.check(Wish(regex="another")).source  # not the answer to the grammar before
    finally:
        checker.close()


def test_machine_that_lets_nothing_compile_is_to_blame_and_not_the_grammar(monkeypatch: pytest.MonkeyPatch):
    checker = GrammarChecker(StructuredOutputsConfig(), small_vocabulary)
    wish = Wish(regex="innocent too")
    try:
        checker.check(Wish(regex="warm"))
        pool(checker).slow.warm_up()
        for process_id in processes(checker):
            for fork in forks(process_id):
                os.kill(fork, signal.SIGSTOP)
        monkeypatch.setattr(TimedJob, "elapsed_s", 0.1)
        monkeypatch.setattr(compiler_pool, "_ALARM_DELAY_S", 0)
        with pytest.raises(OverloadedError, match="too busy"):
            checker.check(wish)
        monkeypatch.undo()
        assert not checker.is_known(wish) and checker.check(wish)
    finally:
        checker.close()


def test_grammar_that_takes_too_long_is_refused_for_a_while(monkeypatch: pytest.MonkeyPatch):
    checker = GrammarChecker(StructuredOutputsConfig(), small_vocabulary, GrammarLimits(compile_timeout_s=0.05))
    slow = Wish(grammar=SLOW)
    try:
        for _ in range(2):  # the second time from memory
            with pytest.raises(InvalidRequestError, match=r"more than 0\.05 s"):
                checker.check(slow)
        assert checker.check(Wish(regex="quick"))
        assert checker.is_known(slow)
        now = time.monotonic()
        monkeypatch.setattr("octavo.structured.checker.time.monotonic", lambda: now + 61)
        assert not checker.is_known(slow)
    finally:
        checker.close()


def test_process_whose_front_end_is_gone_ends_in_the_middle_of_a_grammar():
    code = (
        "import sys, threading, time\n"
        "from tests.structured.test_checker import *\n"
        "checker = GrammarChecker(StructuredOutputsConfig(), small_vocabulary, GrammarLimits(compile_timeout_s=1))\n"
        "checker.check(Wish(regex='warm'))\n"
        "slow = Wish(grammar='root ::= ' + '(\"a\" | \"b\")*' * 70000)\n"
        "threading.Thread(target=checker.check, args=(slow,), daemon=True).start()\n"
        "time.sleep(0.3)\n"
        "print(forks(processes(checker)[0])[0], flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    front = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert front.returncode == -signal.SIGKILL, front.stderr
    pid = int(front.stdout)
    deadline = time.monotonic() + 30
    while not has_ended(pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_slow_grammars_do_not_hold_up_quick_ones():
    checker = GrammarChecker(StructuredOutputsConfig(), small_vocabulary)
    slow = [Wish(grammar=f'{SLOW} "{i}"') for i in range(4)]
    threads = [threading.Thread(target=_ignoring_refusals(checker, wish), daemon=True) for wish in slow]
    try:
        checker.check(Wish(regex="warm"))
        with pool(checker).slow.slot:  # a grammar that takes for ever
            for thread in threads:
                thread.start()
            for i in range(3):
                assert checker.check(Wish(regex=f"quick {i}"))
            assert not any(map(checker.is_known, slow))
        for thread in threads:
            thread.join(30)
        assert all(map(checker.is_known, slow))
    finally:
        checker.close()


def _ignoring_refusals(checker: GrammarChecker, wish: Wish) -> Callable[[], None]:
    def check() -> None:
        with contextlib.suppress(InvalidRequestError):
            checker.check(wish)

    return check


def test_options_of_the_engine_hold_where_a_request_says_nothing():
    config = StructuredOutputsConfig(disable_any_whitespace=False, disable_additional_properties=True)
    checker = GrammarChecker(config, small_vocabulary)
    try:
        schema = {"type": "object", "properties": {"a": {"type": "null"}}}
        loose = checker.check(Wish(json=schema)).source
        strict = checker.check(
            Wish(json=schema, disable_any_whitespace=True, disable_additional_properties=False)
        ).source
        assert '"whitespace_flexible": true' in loose and '"additionalProperties": false' in loose
        assert '"whitespace_flexible": false' in strict and '"additionalProperties": false' not in strict
    finally:
        checker.close()


def test_nothing_is_started_before_it_is_needed_and_nothing_is_left():
    checker = GrammarChecker(StructuredOutputsConfig(), small_vocabulary)
    assert checker._pool is None
    checker.warm_up()
    (pid,) = processes(checker)
    checker.close()
    checker.close()
    assert not os.path.exists(f"/proc/{pid}")


def test_grammar_that_takes_too_much_memory_is_refused_and_the_next_one_passes():
    checker = GrammarChecker(StructuredOutputsConfig(), small_vocabulary, GrammarLimits(compiler_bytes=2**20))
    try:
        with pytest.raises(InvalidRequestError, match=r"crashes|memory"):
            checker.check(Wish(choice=[f"choice {i} {'x' * 40}" for i in range(15_000)]))
        assert checker.check(Wish(regex="small"))
    finally:
        checker.close()
