"""Mangled tools, choices and histories of three APIs: refused or answered, never a 5xx, never a dead engine."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest

from tests.server.conftest import JSON_TYPE, Server
from tests.server.scripted import CLOCK, WEATHER

NUM_REQUESTS = 300
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 3.5, 10**20, "", "x", "auto", "none", "required", "\u0000", "日本"),
    *([], [1], ["x"], [[]], [None], {}, {"a": 1}, {"type": "function"}, {"type": "function", "name": "weather"}),
    *({"type": "object"}, {"type": ["object", "null"]}, {"$ref": "#"}, {"type": "tool", "name": "clock"}),
)
NAMES = ("type", "name", "id", "content", "reasoning", "tool_calls", "strict", "input")

CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "x"}'}}
CHAT_MESSAGES = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": None, "reasoning": "r", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "y"}]},
]
CHAT = {
    "messages": CHAT_MESSAGES,
    "tools": [WEATHER, CLOCK],
    "tool_choice": {"type": "function", "function": {"name": "clock"}},
    "parallel_tool_calls": True,
    "max_tokens": 4,
    "include_reasoning": True,
    "reasoning_effort": "low",
    "chat_template_kwargs": {"enable_thinking": False},
    "thinking_token_budget": 2,
}
RESPONSE = {
    "input": [
        {"role": "user", "content": "Hi"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "x"}]},
        {"type": "function_call", "call_id": "a", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "x"},
    ],
    "tools": [{"type": "function", **tool["function"]} for tool in (WEATHER, CLOCK)],
    "tool_choice": {"type": "function", "name": "clock"},
    "max_output_tokens": 4,
    "reasoning": {"effort": "low"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
}
MESSAGES = {
    "messages": [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "x", "signature": ""},
                {"type": "tool_use", "id": "a", "name": "weather", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "x"}]},
                {"type": "text", "text": "x"},
            ],
        },
    ],
    "tools": [{"name": "weather", "input_schema": {"type": "object"}}, {"name": "clock", "input_schema": {}}],
    "tool_choice": {"type": "tool", "name": "clock", "disable_parallel_tool_use": True},
    "max_tokens": 4,
    "thinking": {"type": "adaptive"},
    "system": [{"type": "text", "text": "s"}],
    "output_config": {"effort": "low"},
}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/responses": RESPONSE,
    "/v1/messages": MESSAGES,
    "/tokenize": {"messages": CHAT_MESSAGES, "tools": [WEATHER, CLOCK]},
}


def places_of(value: Any) -> list[tuple[Any, Any]]:
    """Return every (container, key or index) inside a JSON value."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in ((value, key), *places_of(value[key]))]


def mangled(body: dict[str, Any], generator: random.Random) -> dict[str, Any]:
    """Return a copy with one to three values replaced, removed or added."""
    body = copy.deepcopy(body)
    for _ in range(generator.randint(1, 3)):
        places = places_of(body)
        container, key = generator.choice(places)
        value = copy.deepcopy(generator.choice(VALUES))
        kind = generator.random()
        if kind < 0.7:
            container[key] = value
        elif kind < 0.85:
            del container[key]
        elif isinstance(container, list):
            container.append(value)
        else:
            container[generator.choice(NAMES)] = value
    return body


@pytest.mark.parametrize("path", BODIES)
def test_no_mangled_request_with_tools_breaks_the_server(scripted: Server, path: str):
    generator = random.Random(path)
    statuses = []
    for number in range(NUM_REQUESTS):
        body = mangled(BODIES[path], generator)
        if number % 3 == 0 and path != "/tokenize":
            body["stream"] = True
        reply = scripted.request("POST", path, json.dumps(body).encode(), JSON_TYPE)
        statuses.append(reply.status)
        assert reply.status in (200, 400, 404), (body, reply.body)
        assert b"internal error" not in reply.body and b"response.failed" not in reply.body, (body, reply.body)
    assert statuses.count(200) >= NUM_REQUESTS // 20, "most were refused: the bodies are no good"
    assert scripted.chat("Hi", max_tokens=1).status == 200
