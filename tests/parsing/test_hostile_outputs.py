"""Outputs that make a careless parser quadratic, recursive or greedy.

Nothing is timed: looking at the same text again and again would take hours at these sizes, and copying it again and
again is seen by the size of what is unread.
"""

from __future__ import annotations

import pytest

from octavo.parsing.interface import collect
from octavo.parsing.registry import TOOL_FORMATS
from tests.parsing.helpers import maker, whole

SIZE = 60_000
HUGE = 1_000_000
MAX_UNREAD = 64  # characters: what may still become a marker, however much was fed
FORMATS = ["hermes", "llama3_json", "json", "mistral", "pythonic", "qwen3_coder", "glm45", "functiongemma", "openai"]
BEGINNINGS = {
    "hermes": '<tool_call>{"name": "f", "arguments": ',
    "llama3_json": '{"name": "f", "parameters": ',
    "json": '{"name": "f", "arguments": ',
    "mistral": "[TOOL_CALLS]f[ARGS]",
    "pythonic": "[f(a=",
    "qwen3_coder": "<tool_call><function=say><parameter=text>",
    "glm45": "<tool_call>f\n<arg_key>a</arg_key><arg_value>",
    "functiongemma": "<start_function_call>call:f{a:",
    "openai": "<|channel|>commentary to=functions.f<|message|>",
}
FILLERS = ["{", "[", '"', "\\", "(", "<", "a", "'", "[{", '{"name', "<|"]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("filler", FILLERS)
def test_a_flood_is_read_in_one_go_and_nothing_is_lost(name: str, filler: str) -> None:
    flood = filler * (SIZE // len(filler))
    assert (whole(maker(name), flood).content or "") == flood
    result = whole(maker(name), BEGINNINGS[name] + flood)
    assert len(result.content or "") + sum(len(call[1]) for call in result.calls) >= len(flood) // 2


@pytest.mark.parametrize("name", FORMATS)
def test_markers_by_the_thousand_are_content_when_nothing_follows(name: str) -> None:
    tool_format = TOOL_FORMATS[name]
    for marker in (*tool_format.opening, *tool_format.bare, *tool_format.closing):
        flood = marker * (SIZE // len(marker))
        assert (whole(maker(name), flood).content or "") == flood


@pytest.mark.parametrize("name", FORMATS)
def test_calls_that_break_by_the_thousand_are_all_read(name: str) -> None:
    text = BEGINNINGS[name][:-2] * 3_000
    result = whole(maker(name), text)
    assert len(result.content or "") + sum(len(call[1]) for call in result.calls) >= 3_000


@pytest.mark.parametrize("filler", ["{", '"', "\\", "a", '\\"', "[{"])
def test_a_million_characters_of_arguments(filler: str) -> None:
    flood = filler * (HUGE // len(filler))
    result = whole(maker("hermes"), BEGINNINGS["hermes"] + '{"a":' + flood)
    arguments = "".join(call[1] for call in result.calls)
    assert arguments + (result.content or "") == '{"a":' + flood


@pytest.mark.parametrize("name", ["hermes", "pythonic", "qwen3_coder", "functiongemma"])
@pytest.mark.parametrize("filler", ["{", '"', "\\", "[", "a"])
def test_a_flood_comes_by_the_character(name: str, filler: str) -> None:
    parser = maker(name)()
    text = BEGINNINGS[name] + filler * 30_000
    events = []
    for character in text:
        events += parser.feed(character)
        assert len(parser._reader.text) - parser._reader.at < MAX_UNREAD
    message = collect([*events, *parser.finish()])
    one_go = whole(maker(name), text)
    assert message.content == one_go.content
    assert [call.arguments for call in message.tool_calls] == [call[1] for call in one_go.calls]


def test_arguments_before_the_name_are_held_without_being_copied_again_and_again() -> None:
    parser = maker("hermes")()
    text = '<tool_call>{"arguments": {"a": "' + "x" * 50_000 + '"}, "name": "f"}</tool_call>'
    events = []
    for start in range(0, len(text), 3):
        events += parser.feed(text[start : start + 3])
        assert len(parser._reader.text) - parser._reader.at < MAX_UNREAD
    message = collect([*events, *parser.finish()])
    assert message.tool_calls[0].arguments == '{"a": "' + "x" * 50_000 + '"}'


def test_nesting_is_bounded_and_ends_the_call() -> None:
    deep = '{"a":' * 150 + "1" + "}" * 150
    assert whole(maker("hermes"), f'<tool_call>{{"name": "f", "arguments": {deep}}}</tool_call>').calls[0][2]
    too_deep = '{"a":' * 500 + "1" + "}" * 500
    result = whole(maker("hermes"), f'<tool_call>{{"name": "f", "arguments": {too_deep}}}</tool_call>')
    assert result.calls[0][2] is False
    assert result.calls[0][1] + (result.content or "") == f"{too_deep}}}</tool_call>"
    python = "[" * 30 + "]" * 30
    assert whole(maker("pythonic"), f"[f(a={python})]").calls == (("f", f'{{"a": {python}}}', True),)
    assert not whole(maker("pythonic"), f"[f(a={'[' * 100}{']' * 100})]").calls[0][2]
