"""Outputs that a slow consumer has not read are merged, and say the same as if they had been read one by one."""

from __future__ import annotations

import asyncio

import pytest

from octavo import CompletionOutput, Logprob, RequestOutput, RequestOutputKind
from octavo.engine.output_collector import RequestOutputCollector
from octavo.errors import EngineDeadError


def output(text: str, *, index: int = 0, finished: bool = False, prompt_logprobs=None) -> RequestOutput:
    completion = CompletionOutput(
        index=index,
        text=text,
        token_ids=[ord(c) for c in text],
        cumulative_logprob=-float(len(text)),
        logprobs=[{ord(c): Logprob(-1.0)} for c in text],
        finish_reason="stop" if finished else None,
    )
    return RequestOutput("r", "p", [1], prompt_logprobs, [completion], finished)


def collect(kind: RequestOutputKind, *outputs: RequestOutput) -> RequestOutput:
    collector = RequestOutputCollector(kind)
    for one in outputs:
        collector.put(one)
    merged = collector.get_nowait()
    assert merged is not None
    assert collector.get_nowait() is None
    return merged


def test_deltas_are_joined():
    merged = collect(RequestOutputKind.DELTA, output("ab"), output("c"), output("de", finished=True))
    (completion,) = merged.outputs
    assert (completion.text, completion.token_ids) == ("abcde", list(b"abcde"))
    assert [list(position) for position in completion.logprobs] == [[c] for c in b"abcde"]
    assert (completion.finish_reason, completion.cumulative_logprob, merged.finished) == ("stop", -2.0, True)


def test_of_cumulative_outputs_the_last_counts():
    merged = collect(RequestOutputKind.CUMULATIVE, output("ab"), output("abc"))
    assert [completion.text for completion in merged.outputs] == ["abc"]


@pytest.mark.parametrize("kind, first", [(RequestOutputKind.DELTA, "bc"), (RequestOutputKind.CUMULATIVE, "c")])
def test_sequences_are_merged_each_with_its_own_and_ordered(kind, first):
    merged = collect(kind, output("x", index=2), output("b", index=0), output("c", index=0))
    assert [(completion.index, completion.text) for completion in merged.outputs] == [(0, first), (2, "x")]


def test_prompt_logprobs_that_are_told_once_survive():
    merged = collect(RequestOutputKind.DELTA, output("a", prompt_logprobs=[None]), output("b"))
    assert merged.prompt_logprobs == [None]


def test_an_output_that_was_read_never_changes():
    collector = RequestOutputCollector(RequestOutputKind.DELTA)
    collector.put(output("a"))
    read = collector.get_nowait()
    collector.put(output("b"))
    assert (read.outputs[0].text, read.outputs[0].token_ids) == ("a", [ord("a")])


def test_an_error_comes_after_what_is_unread_and_stays():
    collector = RequestOutputCollector(RequestOutputKind.DELTA)
    collector.put(output("a"))
    collector.fail(EngineDeadError("gone"))
    assert collector.get_nowait().outputs[0].text == "a"
    for _ in range(2):
        with pytest.raises(EngineDeadError, match="gone"):
            collector.get_nowait()


def test_a_waiting_consumer_gets_each_output_and_the_error():
    async def run() -> list[str]:
        collector = RequestOutputCollector(RequestOutputKind.DELTA)
        texts: list[str] = []

        async def read() -> None:
            while True:
                texts.append((await collector.get()).outputs[0].text)

        reader = asyncio.create_task(read())
        for letter in "abc":
            collector.put(output(letter))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        collector.fail(EngineDeadError("gone"))
        with pytest.raises(EngineDeadError):
            await reader
        return texts

    assert asyncio.run(run()) == ["a", "b", "c"]
