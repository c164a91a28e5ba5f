"""What requests say of tools in three APIs: one common form, and refusals that name the place."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.entrypoints.tool_requests import NO_TOOLS, ToolWish, chat_tools, message_tools, response_tools
from octavo.errors import InvalidRequestError

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "weather", "description": "Tells the weather.", "parameters": SCHEMA}
CLOCK = {"name": "clock"}
AS_TOOLS = (
    {"type": "function", "function": WEATHER},
    {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}},
)


def chat(choice: Any = None, parallel: bool | None = None, **changes: Any) -> ToolWish:
    first = {"type": "function", "function": {**WEATHER, **changes}}
    return chat_tools([first, {"type": "function", "function": CLOCK}], choice, parallel)


def test_three_apis_say_the_same():
    flat = [{"type": "function", **WEATHER}, {"type": "function", **CLOCK}]
    anthropic = [
        {"name": "weather", "description": "Tells the weather.", "input_schema": SCHEMA},
        {"type": "custom", "name": "clock", "input_schema": None},
    ]
    expected = {
        "auto": ToolWish(AS_TOOLS, "auto"),
        "none": ToolWish(AS_TOOLS, "none"),
        "required": ToolWish(AS_TOOLS, "required"),
    }
    for choice, wish in expected.items():
        assert chat(choice) == response_tools(flat, choice, None) == wish
        kind = {"required": "any"}.get(choice, choice)
        assert message_tools(anthropic, {"type": kind}) == wish
    assert chat() == response_tools(flat, None, None) == message_tools(anthropic, None) == expected["auto"]
    named = ToolWish(AS_TOOLS, "function", "clock", parallel=False)
    assert chat({"type": "function", "function": {"name": "clock"}}) == named
    assert response_tools(flat, {"type": "function", "name": "clock"}, None) == named
    assert message_tools(anthropic, {"type": "tool", "name": "clock"}) == named


def test_several_calls_are_welcome_unless_a_request_says_otherwise():
    assert chat(parallel=True).parallel and chat(parallel=None).parallel
    assert not chat(parallel=False).parallel
    tools = [{"name": "clock", "input_schema": {"type": "object"}}]
    assert not message_tools(tools, {"type": "auto", "disable_parallel_tool_use": True}).parallel


def test_strict_functions_are_known_and_the_model_is_not_bothered_with_it():
    wish = chat(strict=True)
    assert wish.strict == {"weather"} and wish.tools == AS_TOOLS


def test_allowed_tools_leave_the_others_out():
    entry = {"type": "function", "function": {"name": "clock"}}
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [entry]}}
    assert chat(choice) == ToolWish(AS_TOOLS[1:], "required")
    flat = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "clock"}]}
    tools = [{"type": "function", **WEATHER}, {"type": "function", **CLOCK}]
    assert response_tools(tools, flat, None) == ToolWish(AS_TOOLS[1:], "auto")


def test_no_tools_are_no_wish():
    assert chat_tools(None, None, None) is chat_tools(None, "none", True) is NO_TOOLS
    assert response_tools([], "auto", True) is response_tools(None, None, None) is NO_TOOLS
    assert message_tools(None, {"type": "auto"}) == message_tools([], None) == NO_TOOLS


@pytest.mark.parametrize(
    ("tools", "choice", "complaint", "parameter"),
    [
        ([], None, "must not be an empty list", "tools"),
        (["x"], None, r"tools\[0\] must be an object", "tools"),
        ([{"type": "web_search"}], None, r"tools\[0\]: tools of type web_search are not supported", "tools"),
        ([{"type": "function"}], None, r"tools\[0\]\.function must be an object", "tools"),
        ([{"type": "function", "function": {}}], None, r"tools\[0\]\.function\.name must be", "tools"),
        ([{"type": "function", "function": {"name": "a\nb"}}], None, "printable", "tools"),
        ([{"type": "function", "function": {"name": "f", "parameters": []}}], None, r"parameters must be", "tools"),
        ([{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}], None, "object", "tools"),
        (
            [{"type": "function", "function": {"name": "f", "parameters": {"properties": 1}}}],
            None,
            "properties",
            "tools",
        ),
        (
            [{"type": "function", "function": {"name": "f", "parameters": {"required": [[]]}}}],
            None,
            "required",
            "tools",
        ),
        ([{"type": "function", "function": {"name": "f", "strict": 1}}], None, "strict must be true or false", "tools"),
        ([{"type": "function", "function": {"name": "f", "description": 1}}], None, "description must be", "tools"),
        ([{"type": "function", "function": CLOCK}] * 2, None, "two functions named 'clock'", "tools"),
        (None, "auto", "needs tools", "tool_choice"),
        (None, "required", "needs tools", "tool_choice"),
        ([{"type": "function", "function": CLOCK}], "always", "tool_choice must be none, auto", "tool_choice"),
        ([{"type": "function", "function": CLOCK}], {"type": "function"}, "one of the tools", "tool_choice"),
        (
            [{"type": "function", "function": CLOCK}],
            {"type": "function", "function": {"name": "other"}},
            r"one of the tools \(clock\), got 'other'",
            "tool_choice",
        ),
        ([{"type": "function", "function": CLOCK}], {"type": "allowed_tools"}, "allowed_tools with", "tool_choice"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(tools: Any, choice: Any, complaint: str, parameter: str):
    with pytest.raises(InvalidRequestError, match=complaint) as caught:
        chat_tools(tools, choice, None)
    assert caught.value.parameter == parameter


@pytest.mark.parametrize(
    ("tools", "choice", "complaint"),
    [
        ([{"type": "web_search_20250305", "name": "web_search"}], None, "type web_search_20250305 are not supported"),
        ([{"name": "f", "input_schema": 3}], None, r"tools\[0\]\.input_schema must be"),
        ([{"name": "f"}], {"type": "tool", "name": "g"}, "one of the tools"),
        ([{"name": "f"}], {"type": "must"}, "auto, any, tool or none"),
        ([], {"type": "any"}, "needs tools"),
    ],
)
def test_anthropics_tools_are_checked_too(tools: Any, choice: Any, complaint: str):
    with pytest.raises(InvalidRequestError, match=complaint):
        message_tools(tools, choice)
