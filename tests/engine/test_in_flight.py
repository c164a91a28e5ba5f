"""The journal of requests: what a new core is given after a death, and who is taken to be its cause."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from octavo import SamplingParams
from octavo.engine.in_flight import InFlightRequests
from octavo.types.messages import EngineCoreOutput
from octavo.types.request import EngineCoreRequest, FinishReason

MAX_STRIKES = 3


def request(name: str, output: list[int] | None = None) -> EngineCoreRequest:
    return EngineCoreRequest(name, [1, 2], SamplingParams(), 0.0, 7, output_token_ids=output or [])


def journal_of(*names: str) -> InFlightRequests:
    journal = InFlightRequests(MAX_STRIKES)
    for name in names:
        journal.add(request(name))
    return journal


def sent(journal: InFlightRequests) -> dict[str, list[int]]:
    return {r.request_id: r.output_token_ids for r in journal.take_unsent()}


def die(journal: InFlightRequests, admitted: str) -> list[str]:
    journal.admitted(list(admitted))
    return journal.core_died(by_itself=True)


def test_a_request_is_sent_once_and_again_after_a_death_with_its_tokens_in_order_of_arrival():
    journal = journal_of("a", "b")
    assert sent(journal) == {"a": [], "b": []}
    assert sent(journal) == {}
    journal.record([EngineCoreOutput("b", [5]), EngineCoreOutput("a", [6])])
    journal.record([EngineCoreOutput("b", [7, 8])])
    journal.add(request("c"))
    assert journal.core_died(by_itself=True) == []
    assert list(sent(journal).items()) == [("a", [6]), ("b", [5, 7, 8]), ("c", [])]


def test_tokens_that_a_request_came_with_are_kept():
    journal = InFlightRequests(MAX_STRIKES)
    journal.add(request("a", output=[3]))
    assert sent(journal) == {"a": [3]}
    journal.record([EngineCoreOutput("a", [4])])
    journal.core_died(by_itself=True)
    assert sent(journal) == {"a": [3, 4]}


def test_finished_and_aborted_requests_are_forgotten():
    journal = journal_of("a", "b", "c")
    sent(journal)
    journal.record([EngineCoreOutput("a", [5], finish_reason=FinishReason.STOP)])
    assert journal.remove(["b", "unknown"]) == ["b"]
    journal.record([EngineCoreOutput("b", [5])])  # on its way when it was aborted
    journal.core_died(by_itself=True)
    assert sent(journal) == {"c": []}
    assert len(journal) == 1


def test_a_request_that_the_core_does_not_have_need_not_be_aborted_there():
    journal = journal_of("a")
    assert journal.remove(["a"]) == []
    assert sent(journal) == {}


def test_deaths_in_a_row_condemn_the_one_that_was_alone_at_the_last_two():
    journal = journal_of("a", "b", "c")
    sent(journal)
    assert die(journal, "abc") == []
    assert list(sent(journal)) == ["a", "b", "c"]
    assert die(journal, "abc") == []
    assert list(sent(journal)) == ["a"]  # the first suspect is on trial
    assert sent(journal) == {}
    assert journal.record([EngineCoreOutput("a", [1])])
    assert list(sent(journal)) == ["b"]  # a is cleared and runs on
    assert die(journal, "ab") == []  # for it may have been a
    for _ in range(2):
        assert list(sent(journal)) == ["b"]
        condemned = die(journal, "b")
    assert condemned == ["b"]
    assert list(sent(journal)) == ["c"]
    assert journal.record([EngineCoreOutput("c", [1])])
    assert list(sent(journal)) == ["a"]


def test_a_token_between_two_deaths_clears_a_request():
    journal = journal_of("a")
    for token_id in range(10):
        sent(journal)
        journal.record([EngineCoreOutput("a", [token_id])])
        assert die(journal, "a") == []
    assert sent(journal) == {"a": list(range(10))}


def test_a_request_that_dies_alone_at_three_deaths_is_condemned_at_the_third():
    journal = journal_of("a")
    for _ in range(2):
        sent(journal)
        assert die(journal, "a") == []
    sent(journal)
    assert die(journal, "a") == ["a"]


def test_a_long_prompt_that_gets_farther_each_time_is_not_condemned_so_fast():
    """Kills from outside hit it after 10, 40, 20, 70, ... steps; a request that kills does it at one place."""
    journal = journal_of("a")
    for num_steps in (10, 40, 20, 70, 30):
        sent(journal)
        journal.admitted(["a"])
        for _ in range(num_steps):
            journal.record([])
        assert journal.core_died(by_itself=True) == []
    sent(journal)
    journal.record([EngineCoreOutput("a", [1])])
    for num_steps in (0, 10, 0, 10, 0):
        assert die(journal, "a") == []
        sent(journal)
        for _ in range(num_steps):
            journal.record([])
    assert die(journal, "a") == ["a"]  # but not for ever


def test_a_core_that_somebody_kills_condemns_only_who_is_alone_many_times_in_a_row():
    journal = journal_of("a", "b")
    deaths = []
    for _ in range(8):
        journal.admitted(sent(journal))
        deaths.append(journal.core_died(by_itself=False))
    assert deaths == [[]] * 7 + [["a"]]
    assert list(sent(journal)) == ["b"]


def test_deaths_in_company_condemn_nobody_however_many():
    journal = journal_of("a", "b")
    for _ in range(20):
        sent(journal)
        assert die(journal, "ab") == []
        sent(journal)
        journal.record([EngineCoreOutput("a", [1])])  # cleared, and goes on beside b
        sent(journal)
        assert die(journal, "ab") == []
        sent(journal)
        journal.record([EngineCoreOutput("b", [1])])


def test_requests_that_only_waited_at_a_death_are_no_suspects():
    journal = journal_of("a", "b")
    for _ in range(3):
        sent(journal)
        assert die(journal, "a") == []
    assert list(sent(journal)) == ["a"]
    assert die(journal, "a") == ["a"]
    assert sent(journal) == {"b": []}


def test_when_the_core_dies_before_it_says_what_it_computes_all_that_it_had_are_suspects():
    journal = journal_of("a")
    for _ in range(2):
        sent(journal)
        assert journal.core_died(by_itself=True) == []
    sent(journal)
    assert journal.core_died(by_itself=True) == ["a"]


def test_new_requests_wait_while_one_is_on_trial_and_go_when_it_is_aborted():
    journal = journal_of("a")
    for _ in range(2):
        sent(journal)
        die(journal, "a")
    assert list(sent(journal)) == ["a"]
    journal.add(request("new"))
    assert sent(journal) == {}
    assert journal.remove(["a"]) == ["a"]
    assert list(sent(journal)) == ["new"]


EVENTS = st.lists(st.tuples(st.sampled_from(["add", "token", "finish", "abort", "die", "send"]), st.integers(0, 4)))


@given(EVENTS)
def test_whatever_happens_each_request_is_in_the_core_at_most_once_with_exactly_its_tokens(events):
    journal = InFlightRequests(MAX_STRIKES)
    tokens: dict[str, list[int]] = {}  # of live requests
    in_core: set[str] = set()
    for number, (event, index) in enumerate(events):
        live = list(tokens)
        chosen = live[index % len(live)] if live else None
        if event == "add":
            tokens[f"r{number}"] = []
            journal.add(request(f"r{number}"))
        elif event == "die":
            journal.admitted(list(in_core)[: index + 1])
            for condemned in journal.core_died(by_itself=True):
                assert condemned in in_core
                del tokens[condemned]
            in_core.clear()
        elif event == "send":
            for one in journal.take_unsent():
                assert one.request_id not in in_core
                assert one.output_token_ids == tokens[one.request_id]
                in_core.add(one.request_id)
        elif chosen is None:
            continue
        elif event == "abort":
            assert journal.remove([chosen]) == [chosen] * (chosen in in_core)
            del tokens[chosen]
            in_core.discard(chosen)
        elif chosen in in_core:
            journal.record(
                [EngineCoreOutput(chosen, [number], finish_reason=FinishReason.STOP if event == "finish" else None)]
            )
            tokens[chosen].append(number)
            if event == "finish":
                del tokens[chosen]
                in_core.discard(chosen)
        assert len(journal) == len(tokens)
    # without further deaths everything is sent in the end
    for _ in range(len(tokens) + 1):
        for one in journal.take_unsent():
            in_core.add(one.request_id)
        journal.record([EngineCoreOutput(request_id, [0]) for request_id in in_core])
    assert in_core == tokens.keys()
