"""Tools and thinking in /v1/messages: blocks, events, and what the next turn is given."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.conftest import Engine, Reply, Server
from tests.server.scripted import call_text, script
from tests.server.test_messages import client_of

WEATHER = {
    "name": "weather",
    "description": "Tells the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]},
}
CLOCK = {"name": "clock", "input_schema": {"type": "object", "properties": {}, "additionalProperties": False}}
TOOLS = [WEATHER, CLOCK]
HI = [{"role": "user", "content": "Hi"}]
PARIS = call_text("weather", '{"city": "Paris"}')
ALL = f"<think>\nHm.\n</think>\n\nLet me see.\n{PARIS}" + call_text("clock", "{}")


def ask(server: Server, text: str | None = None, **fields: Any) -> Reply:
    said = script(server, text) if text is not None else {}
    body = {"messages": HI, "temperature": 0, "max_tokens": 400, "tools": TOOLS, **said, **fields}
    return server.post("/v1/messages", **body)


def shown(blocks: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    """Return the blocks in short."""
    found: list[tuple[str, Any]] = []
    for block in blocks:
        kind = block["type"]
        found.append((kind, (block["name"], block["input"]) if kind == "tool_use" else block[kind].strip()))
    return found


EXPECTED = [
    ("thinking", "Hm."),
    ("text", "Let me see."),
    ("tool_use", ("weather", {"city": "Paris"})),
    ("tool_use", ("clock", {})),
]


def test_thinking_text_and_uses_of_tools_are_blocks(scripted: Server):
    message = ask(scripted, ALL).json
    assert shown(message["content"]) == EXPECTED
    assert (message["stop_reason"], message["stop_sequence"]) == ("tool_use", None)
    assert message["content"][0]["signature"] == ""
    ids = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
    assert len(set(ids)) == 2


def test_events_add_up_to_the_blocks(scripted: Server):
    reply = ask(scripted, ALL, stream=True)
    events = [
        json.loads(piece.split("\n")[1].removeprefix("data: ")) for piece in reply.body.decode().split("\n\n")[:-1]
    ]
    assert events[0]["type"] == "message_start" and events[-1]["type"] == "message_stop"
    texts: list[str] = []
    kinds: list[str] = []
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(texts)
            kinds.append(event["content_block"]["type"])
            texts.append("")
            assert event["content_block"].get("input", {}) == {}
        elif event["type"] == "content_block_delta":
            assert event["index"] == len(texts) - 1
            delta = event["delta"]
            expected = {"thinking": "thinking_delta", "text": "text_delta", "tool_use": "input_json_delta"}[kinds[-1]]
            assert delta["type"] == expected
            texts[-1] += delta.get("text") or delta.get("thinking") or delta.get("partial_json") or ""
        elif event["type"] == "content_block_stop":
            assert event["index"] == len(texts) - 1
    assert kinds == [kind for kind, _ in EXPECTED]
    assert [texts[0].strip(), texts[1].strip()] == ["Hm.", "Let me see."]
    assert [json.loads(text) for text in texts[2:]] == [{"city": "Paris"}, {}]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


def test_the_anthropic_client_streams_what_it_would_get_whole(scripted: Server):
    client = client_of(scripted)
    fields: dict[str, Any] = dict(
        model="scripted",
        messages=HI,
        max_tokens=400,
        tools=TOOLS,
        extra_body={"temperature": 0, **script(scripted, ALL)},
    )
    whole = client.messages.create(**fields)
    with client.messages.stream(**fields) as stream:
        for _ in stream:
            pass
        final = stream.get_final_message()
    assert [block.type for block in final.content] == [block.type for block in whole.content]
    assert final.content[2].input == whole.content[2].input == {"city": "Paris"}
    assert final.stop_reason == whole.stop_reason == "tool_use" and final.usage == whole.usage


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ({"type": "any", "disable_parallel_tool_use": True}, {"weather", "clock"}),
        ({"type": "tool", "name": "weather"}, {"weather"}),
        ({"type": "tool", "name": "clock"}, {"clock"}),
    ],
)
def test_demanded_uses(scripted: Server, choice: dict[str, Any], names: set[str]):
    message = ask(scripted, tool_choice=choice, thinking={"type": "disabled"}).json
    (block,) = message["content"]
    assert block["name"] in names and message["stop_reason"] == "tool_use"
    assert block["input"].get("city", "Paris") in ("Paris", "Rome")


def test_a_choice_of_none_and_of_one_at_a_time(scripted: Server):
    none = ask(scripted, PARIS, tool_choice={"type": "none"}).json
    assert shown(none["content"]) == [("text", PARIS)] and none["stop_reason"] == "end_turn"
    one = ask(scripted, ALL, tool_choice={"type": "auto", "disable_parallel_tool_use": True}).json
    assert shown(one["content"]) == EXPECTED[:3]


def test_a_use_that_is_cut_has_no_input(scripted: Server):
    message = ask(scripted, PARIS, max_tokens=40).json
    assert message["stop_reason"] == "max_tokens"
    assert all(block["input"] == {} for block in message["content"] if block["type"] == "tool_use")


def test_a_conversation_with_uses_and_results_reaches_the_template(scripted: Server):
    first = ask(scripted, ALL).json
    results = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": [{"type": "text", "text": "sunny"}]}
        for block in first["content"]
        if block["type"] == "tool_use"
    ]
    results[1] = {**results[1], "content": "no clock", "is_error": True}
    turns = [
        *HI,
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": [*results, {"type": "text", "text": "And now?"}]},
    ]
    as_chat = [
        *HI,
        {
            "role": "assistant",
            "content": first["content"][1]["text"],
            "reasoning": first["content"][0]["thinking"],
            "tool_calls": [
                {"id": b["id"], "type": "function", "function": {"name": b["name"], "arguments": b["input"]}}
                for b in first["content"][2:]
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "sunny"},
        {"role": "tool", "tool_call_id": "b", "content": "Error: no clock"},
        {"role": "user", "content": "And now?"},
    ]
    tools = [
        {"type": "function", "function": {"name": t["name"], "parameters": t["input_schema"]}}
        | {"function": {k: v for k, v in (("name", t["name"]), ("description", t.get("description"))) if v}
           | {"parameters": t["input_schema"]}}
        for t in TOOLS
    ]  # fmt: skip
    counted = scripted.post("/v1/messages/count_tokens", messages=turns, tools=TOOLS).json["input_tokens"]
    assert counted == scripted.post("/tokenize", messages=as_chat, tools=tools).json["count"]
    answer = ask(scripted, "It is sunny.", messages=turns).json
    assert answer["usage"]["input_tokens"] == counted and shown(answer["content"]) == [("text", "It is sunny.")]


def test_a_last_turn_with_uses_needs_their_results(scripted: Server):
    use = {"type": "tool_use", "id": "a", "name": "clock", "input": {}}
    reply = ask(scripted, "x", messages=[*HI, {"role": "assistant", "content": [use]}])
    assert reply.status == 400 and "tool_result" in reply.json["error"]["message"]


# -- thinking ----------------------------------------------------------------------------------------------------------


def test_thinking_has_a_budget(scripted_engine: Engine):
    server = scripted_engine.serve(chat_template="{{ messages[0].content }}<think>\n")
    thinking = {"type": "enabled", "budget_tokens": 1024}
    fields = dict(messages=HI, thinking=thinking, max_tokens=1100, temperature=1, seed=2)
    message = server.post("/v1/messages", **fields).json
    assert message["content"][0]["type"] == "thinking"
    if message["stop_reason"] == "max_tokens":  # the model would not have ended: its budget did
        assert message["content"][1]["type"] == "text"
    for wrong in ({"type": "enabled"}, {"type": "enabled", "budget_tokens": 3}, {**thinking, "budget_tokens": 5000}):
        reply = server.post("/v1/messages", **{**fields, "thinking": wrong})
        assert reply.status == 400 and "budget_tokens" in reply.json["error"]["message"]


def test_thinking_is_switched_off_in_the_template(scripted: Server):
    def num_tokens(**fields: Any) -> int:
        return ask(scripted, "x", **fields).json["usage"]["input_tokens"]

    closed = scripted.post("/tokenize", prompt="<think>\n\n</think>\n\n").json["count"]
    assert num_tokens(thinking={"type": "disabled"}) == num_tokens() + closed
    assert num_tokens(thinking={"type": "adaptive"}) == num_tokens(output_config={"effort": "high"}) == num_tokens()


def test_a_loop_of_uses_and_results_comes_to_an_answer(real: Server):
    client = client_of(real)
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    fields: dict[str, Any] = dict(model=real.model, max_tokens=100, tools=TOOLS, extra_body={"temperature": 0})
    message = client.messages.create(messages=messages, tool_choice={"type": "tool", "name": "weather"}, **fields)
    (use,) = message.content
    assert use.type == "tool_use" and use.input["city"] in ("Paris", "Rome")
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "sunny, 21 degrees"}
    messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    final = client.messages.create(messages=messages, tool_choice={"type": "none"}, **fields)
    assert final.content[0].type == "text" and final.content[0].text
