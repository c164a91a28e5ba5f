"""Grammars on the front end's side: verdicts, and the processes that may be lost on the way to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.config import StructuredOutputsConfig
from octavo.errors import InvalidRequestError, OverloadedError
from octavo.structured import compiler_pool
from octavo.structured.checker import GrammarChecker
from octavo.structured.limits import GrammarLimits
from octavo.types.structured_params import StructuredOutputsParams as Wish
from tests.structured.vocabularies import small_vocabulary

# llguidance 1.9 dies of signal 11 on it
KILLER = 'start: %json {"const": -9223372036854775808}'


@pytest.fixture(scope="module")
def checker() -> Iterator[GrammarChecker]:
    checker = GrammarChecker(StructuredOutputsConfig(), small_vocabulary)
    yield checker
    checker.close()


def processes(checker: GrammarChecker) -> list[int]:
    assert checker._pool is not None
    return [compiler._process.pid for compiler in checker._pool._live]


def test_who_would_wait_too_long_is_told_so(checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compiler_pool, "_QUEUE_TIMEOUT_S", 0.01)
    slots = checker._compilers()._slots
    num_taken = 0
    while slots.acquire(blocking=False):
        num_taken += 1
    with pytest.raises(OverloadedError, match="try again"):
        checker.check(Wish(regex="waits"))
    slots.release(num_taken)
    assert checker.check(Wish(regex="waits")).kind == "lark"


def test_grammars_pass_and_are_known_afterwards(checker: GrammarChecker):
    wish = Wish(json={"type": "object", "properties": {"a": {"type": "integer"}}})
    assert not checker.is_known(wish)
    spec = checker.check(wish)
    assert (spec.backend, spec.kind) == ("guidance", "schema") and "%json" in spec.source
    assert checker.is_known(wish) and checker.is_known(
        Wish(json='{"type": "object", "properties": {"a": {"type": "integer"}}}')
    )
    assert checker.check(wish) is spec


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
    with pytest.raises(InvalidRequestError, match="crashed"):
        checker.check(Wish(grammar=KILLER))
    assert checker.check(Wish(regex="after the crash"))
    assert processes(checker) != before
    with pytest.raises(InvalidRequestError, match="crashed"):
        checker.check(Wish(grammar=KILLER))
    assert checker.check(Wish(regex="after the memory of the crash"))


def test_process_that_was_killed_while_idle_is_replaced(checker: GrammarChecker):
    checker.check(Wish(regex="idle"))
    for pid in processes(checker):
        os.kill(pid, signal.SIGKILL)
        while " Z " not in Path(f"/proc/{pid}/stat").read_text():
            time.sleep(0.01)
    assert checker.check(Wish(regex="after the kill"))


def test_grammar_whose_process_is_killed_from_outside_passes():
    checker = GrammarChecker(StructuredOutputsConfig(), small_vocabulary)
    wish = Wish(regex="innocent")
    try:
        checker.check(Wish(regex="warm"))
        (pid,) = processes(checker)
        os.kill(pid, signal.SIGSTOP)  # so that it is in the middle of the grammar when it is killed
        thread = threading.Thread(target=lambda: checker.check(wish))
        thread.start()
        while checker._pool._idle:  # type: ignore[union-attr]
            time.sleep(0.002)
        os.kill(pid, signal.SIGKILL)
        thread.join(30)
        assert checker.is_known(wish) and checker.check(wish)
        assert pid not in processes(checker)
    finally:
        checker.close()


def test_refusal_that_may_be_the_machines_doing_is_not_for_ever(monkeypatch: pytest.MonkeyPatch):
    checker = GrammarChecker(StructuredOutputsConfig(), small_vocabulary, GrammarLimits(compile_timeout_s=1))
    wish = Wish(regex="innocent too")
    try:
        checker.check(Wish(regex="warm"))
        os.kill(processes(checker)[0], signal.SIGSTOP)  # as on a machine that is busy with something else
        for _ in range(2):  # the second time from memory
            with pytest.raises(InvalidRequestError, match="more than 1 s"):
                checker.check(wish)
        assert checker.is_known(wish)
        now = time.monotonic()
        monkeypatch.setattr("octavo.structured.checker.time.monotonic", lambda: now + 61)
        assert not checker.is_known(wish)
        monkeypatch.undo()
        assert checker.check(wish)
    finally:
        checker.close()


def test_grammar_that_takes_too_long_is_refused_and_the_next_one_passes():
    checker = GrammarChecker(StructuredOutputsConfig(), small_vocabulary, GrammarLimits(compile_timeout_s=0.5))
    try:
        slow = Wish(grammar="root ::= " + '("a" | "b")*' * 20000)
        with pytest.raises(InvalidRequestError, match=r"more than 0\.5 s"):
            checker.check(slow)
        assert checker.check(Wish(regex="quick"))
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
        "print(processes(checker)[0], flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    front = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert front.returncode == -signal.SIGKILL, front.stderr
    pid = int(front.stdout)
    deadline = time.monotonic() + 30
    while os.path.exists(f"/proc/{pid}") and " Z " not in Path(f"/proc/{pid}/stat").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_slow_grammar_does_not_hold_up_another():
    checker = GrammarChecker(StructuredOutputsConfig(), small_vocabulary, GrammarLimits(compile_timeout_s=30))
    try:
        checker.check(Wish(regex="warm"))
        pid = processes(checker)[0]
        os.kill(pid, signal.SIGSTOP)
        stopped = threading.Thread(target=lambda: checker.check(Wish(regex="behind the stopped process")))
        stopped.start()
        while not checker._pool._live or checker._pool._idle:  # type: ignore[union-attr]
            time.sleep(0.005)
        assert checker.check(Wish(regex="meanwhile"))
        os.kill(pid, signal.SIGCONT)
        stopped.join(30)
        assert checker.is_known(Wish(regex="behind the stopped process"))
    finally:
        checker.close()


def test_large_grammars_leave_room_for_small_ones():
    checker = GrammarChecker(StructuredOutputsConfig(), small_vocabulary, GrammarLimits(compile_timeout_s=30))
    large = [Wish(choice=[f"{i} {'x' * 20_000}"]) for i in range(3)]
    try:
        checker.check(Wish(regex="warm"))
        (pid,) = processes(checker)
        os.kill(pid, signal.SIGSTOP)
        threads = [threading.Thread(target=checker.check, args=(wish,)) for wish in large]
        for thread in threads:
            thread.start()
        while checker._pool._idle:  # type: ignore[union-attr]
            time.sleep(0.005)
        for i in range(3):
            assert checker.check(Wish(regex=f"small {i}"))
        assert not any(map(checker.is_known, large))
        os.kill(pid, signal.SIGCONT)
        for thread in threads:
            thread.join(30)
        assert all(map(checker.is_known, large))
    finally:
        checker.close()


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
        with pytest.raises(InvalidRequestError, match=r"crashed|memory"):
            checker.check(Wish(choice=[f"choice {i} {'x' * 40}" for i in range(15_000)]))
        assert checker.check(Wish(regex="small"))
    finally:
        checker.close()
