"""Function calls and reasoning in /v1/responses: items, events, and what the next turn is given."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from tests.server.conftest import Reply, Server
from tests.server.scripted import call_text, script
from tests.server.test_responses import stream_events

WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "Tells the weather.",
    "parameters": {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]},
}
CLOCK = {"type": "function", "name": "clock"}
TOOLS = [WEATHER, CLOCK]
PARIS = call_text("weather", '{"city": "Paris"}')
NOW = call_text("clock", "{}")
ALL = f"<think>\nHm.\n</think>\n\nLet me see.\n{PARIS}{NOW}"


def ask(server: Server, text: str | None = None, **fields: Any) -> Reply:
    said = script(server, text) if text is not None else {}
    return server.post("/v1/responses", **{"input": "Hi", "temperature": 0, "tools": TOOLS, **said, **fields})


def shown(items: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the items in short."""
    texts = {"reasoning": lambda item: item["content"][0]["text"], "message": lambda item: item["content"][0]["text"]}
    texts["function_call"] = lambda item: f"{item['name']}{item['arguments']}"
    return [(item["type"], texts[item["type"]](item).strip()) for item in items]


EXPECTED = [
    ("reasoning", "Hm."),
    ("message", "Let me see."),
    ("function_call", 'weather{"city": "Paris"}'),
    ("function_call", "clock{}"),
]


def test_reasoning_text_and_calls_are_items(scripted: Server):
    response = ask(scripted, ALL).json
    assert shown(response["output"]) == EXPECTED and response["status"] == "completed"
    assert len({item["id"] for item in response["output"]}) == 4
    assert all(item["status"] == "completed" for item in response["output"])
    calls = [item for item in response["output"] if item["type"] == "function_call"]
    assert len({call["call_id"] for call in calls}) == 2
    assert response["tools"] == TOOLS and response["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


def test_events_add_up_to_the_items(scripted: Server):
    events = stream_events(ask(scripted, ALL, stream=True))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    items: list[dict[str, Any]] = []
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert event["output_index"] == len(items) and event["item"]["status"] == "in_progress"
            items.append({"id": event["item"]["id"], "type": event["item"]["type"], "text": ""})
            assert not event["item"].get("content") and not event["item"].get("arguments")
        elif kind.endswith(".delta"):
            assert event["item_id"] == items[event["output_index"]]["id"]
            items[event["output_index"]]["text"] += event["delta"]
        elif kind == "output_item.done":
            item = event["item"]
            text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
            assert items[event["output_index"]]["text"] == text and item["status"] == "completed"
    assert shown(events[-1]["response"]["output"]) == EXPECTED and len(items) == 4
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds.count("reasoning_text.done") == 1 and kinds.count("function_call_arguments.done") == 2
    assert kinds.count("content_part.added") == kinds.count("content_part.done") == 2
    done = next(event for event in events if event["type"].endswith("arguments.done"))
    assert (done["name"], done["arguments"]) == ("weather", '{"city": "Paris"}')


def test_a_call_that_is_cut_is_incomplete(scripted: Server):
    response = ask(scripted, PARIS, max_output_tokens=30).json
    assert response["status"] == "incomplete" and response["output"][-1]["status"] == "incomplete"


@pytest.mark.parametrize("stored", [True, False])
def test_results_go_back_with_the_items_or_with_the_stored_response(scripted: Server, stored: bool):
    first = ask(scripted, ALL).json
    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "sunny"}
        for item in first["output"]
        if item["type"] == "function_call"
    ]
    if stored:
        fields: dict[str, Any] = {"input": results, "previous_response_id": first["id"]}
    else:
        fields = {"input": [{"role": "user", "content": "Hi"}, *first["output"], *results], "store": False}
    second = ask(scripted, "It is sunny.", **fields).json
    assert shown(second["output"]) == [("message", "It is sunny.")]
    message = {
        "role": "assistant",
        "content": first["output"][1]["content"][0]["text"],
        "reasoning": first["output"][0]["content"][0]["text"],
        "tool_calls": [
            {"id": item["call_id"], "type": "function", "function": {k: item[k] for k in ("name", "arguments")}}
            for item in first["output"][2:]
        ],
    }
    tools = [{"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}} for tool in TOOLS]
    answers = [{"role": "tool", "tool_call_id": one["call_id"], "content": one["output"]} for one in results]
    messages = [{"role": "user", "content": "Hi"}, message, *answers]
    as_chat = scripted.post("/tokenize", messages=messages, tools=tools).json["count"]
    assert second["usage"]["input_tokens"] == as_chat


def test_demanded_calls(scripted: Server):
    for choice in ("required", {"type": "function", "name": "weather"}):
        fields = dict(tools=[WEATHER], parallel_tool_calls=False, reasoning={"effort": "none"})
        response = ask(scripted, tool_choice=choice, **fields).json
        (item,) = response["output"]
        assert item["name"] == "weather" and json.loads(item["arguments"])["city"] in ("Paris", "Rome")
        assert response["tool_choice"] == choice


def test_hosted_tools_are_refused_by_their_type(scripted: Server):
    for kind in ("web_search", "file_search", "code_interpreter", "mcp", "custom"):
        reply = ask(scripted, tools=[{"type": kind}])
        assert (reply.status, reply.error["param"]) == (400, "tools") and kind in reply.error["message"]


def test_what_agents_send_along_is_accepted(scripted: Server):
    """Codex asks for encrypted reasoning, summaries as the model likes, and no store."""
    fields = {"include": ["reasoning.encrypted_content"], "reasoning": {"effort": "low", "summary": "auto"}}
    response = ask(scripted, "Yes.", store=False, parallel_tool_calls=False, max_tool_calls=3, **fields).json
    assert shown(response["output"]) == [("message", "Yes.")]


class Paris(BaseModel):
    """Tells the weather."""

    city: str


def test_the_openai_client_streams_and_parses_calls(scripted: Server):
    from openai import pydantic_function_tool

    client = scripted.client()
    tool: Any = pydantic_function_tool(Paris, name="weather")
    fields: dict[str, Any] = dict(model="scripted", input="Hi", tools=[tool], extra_body=script(scripted, ALL))
    parsed = client.responses.parse(**fields)
    call = next(item for item in parsed.output if item.type == "function_call")
    assert call.arguments == '{"city": "Paris"}' and call.parsed_arguments == Paris(city="Paris")
    with client.responses.stream(**fields) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert "response.function_call_arguments.delta" in kinds and "response.reasoning_text.delta" in kinds
    assert [item.type for item in final.output] == [item.type for item in parsed.output]
