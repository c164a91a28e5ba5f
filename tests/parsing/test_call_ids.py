"""Ids of calls: made up for most models, in the form that a model's template takes back, or the model's own."""

from __future__ import annotations

import re

import pytest

from octavo.parsing.interface import ParsedToolCall, collect
from tests.parsing.helpers import maker


def calls(name: str, text: str) -> tuple[ParsedToolCall, ...]:
    parser = maker(name)()
    return collect([*parser.feed(text), *parser.finish()]).tool_calls


def ids(name: str, text: str) -> list[str]:
    return [call.id for call in calls(name, text)]


def test_ids_are_made_up_and_differ() -> None:
    call = '<tool_call>{"id": "same", "name": "f", "arguments": {}}</tool_call>'
    found = ids("hermes", call * 3)
    assert len(set(found)) == 3
    assert all(re.fullmatch(r"chatcmpl-tool-[0-9a-f]{32}", one) for one in found)


def test_mistrals_ids_are_nine_letters_and_digits() -> None:
    found = ids("mistral", "[TOOL_CALLS]f{}[TOOL_CALLS]f[ARGS]{}")
    assert len(set(found)) == 2
    assert all(re.fullmatch(r"[A-Za-z0-9]{9}", one) for one in found)
    assert ids("mistral", "[TOOL_CALLS]f[CALL_ID]abcDEF123[ARGS]{}") == ["abcDEF123"]


@pytest.mark.parametrize(
    ("written", "call_id", "name"),
    [
        ("functions.f:0", "functions.f:0", "f"),
        ("functions.a.b:12", "functions.a.b:12", "a.b"),
        ("f:3", "f:3", "f"),
        ("functions.f", "functions.f:0", "f"),
        ("f", "functions.f:0", "f"),
    ],
)
def test_kimis_ids_are_the_models_own(written: str, call_id: str, name: str) -> None:
    text = f"<|tool_call_begin|>{written}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
    (call,) = calls("kimi_k2", text)
    assert (call.id, call.name) == (call_id, name)
