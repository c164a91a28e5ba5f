"""/v1/responses: the real OpenAI client, conversations that go on, streams, background, and a store with limits."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from octavo.entrypoints.openai.protocol.responses import ResponseObject
from octavo.entrypoints.openai.response_store import ResponseStore, StoredResponse
from tests.server.conftest import Engine, Reply, Server, wait_until

GREEDY = {"temperature": 0, "max_output_tokens": 8}
HI = [{"role": "user", "content": "Hi"}]


def ask(server: Server, **fields: Any) -> Reply:
    return server.post("/v1/responses", **{"input": "Hi", "ignore_eos": True, **GREEDY, **fields})


def text_of(response: dict[str, Any]) -> str:
    (item,) = response["output"]
    (part,) = item["content"]
    return part["text"]


def chat_text(server: Server, messages: list[dict[str, Any]], **fields: Any) -> str:
    fields = {"temperature": 0, "max_tokens": 8, "ignore_eos": True, **fields}
    return server.post("/v1/chat/completions", messages=messages, **fields).json["choices"][0]["message"]["content"]


# -- the client that users have ----------------------------------------------------------------------------------------


def test_the_openai_client_gets_an_answer_and_goes_on(real: Server):
    client = real.client()
    first = client.responses.create(model=real.model, input="What is the capital of France?", temperature=0)
    assert "Paris" in first.output_text and first.status == "completed" and first.error is None
    assert first.usage and first.usage.total_tokens == first.usage.input_tokens + first.usage.output_tokens
    second = client.responses.create(
        model=real.model, input="And of Italy?", previous_response_id=first.id, temperature=0, max_output_tokens=20
    )
    turns = [{"role": "user", "content": "What is the capital of France?"}]
    turns += [{"role": "assistant", "content": first.output_text}, {"role": "user", "content": "And of Italy?"}]
    assert second.output_text == chat_text(real, turns, max_tokens=20, ignore_eos=False)
    assert client.responses.retrieve(second.id).output_text == second.output_text
    client.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(second.id)


def test_the_openai_client_streams_what_it_would_get_whole(real: Server):
    client = real.client()
    fields: dict[str, Any] = dict(model=real.model, input="What is the capital of France?", temperature=0)
    whole = client.responses.create(**fields)
    with client.responses.stream(**fields) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == whole.output_text and final.usage.output_tokens == whole.usage.output_tokens


# -- answers -----------------------------------------------------------------------------------------------------------


def test_input_comes_as_text_or_messages_and_instructions_are_the_system_prompt(tiny: Server):
    expected = chat_text(tiny, [{"role": "system", "content": "Be kind."}, *HI])
    parts = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]
    for given in ("Hi", HI, parts):
        answer = ask(tiny, input=given, instructions="Be kind.").json
        assert text_of(answer) == expected and answer["instructions"] == "Be kind."


def test_instructions_do_not_go_on_with_the_conversation(tiny: Server):
    first = ask(tiny, instructions="Be kind.").json
    second = ask(tiny, input="x", previous_response_id=first["id"]).json
    turns = [*HI, {"role": "assistant", "content": text_of(first)}, {"role": "user", "content": "x"}]
    assert text_of(second) == chat_text(tiny, turns)
    assert second["previous_response_id"] == first["id"] and second["instructions"] is None


def test_an_answer_that_was_cut_is_incomplete(tiny: Server):
    answer = ask(tiny, metadata={"k": "v"}).json
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert answer["output"][0]["status"] == "incomplete" and answer["usage"]["output_tokens"] == 8
    assert answer["metadata"] == {"k": "v"} and answer["temperature"] == 0 and answer["max_output_tokens"] == 8


def test_logprobs_when_included(tiny: Server):
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    (part,) = ask(tiny, **fields).json["output"][0]["content"]
    assert len(part["logprobs"]) == 8 and all(len(entry["top_logprobs"]) == 2 for entry in part["logprobs"])
    events = stream_events(ask(tiny, stream=True, **fields))
    told = [entry for event in events if event["type"].endswith("text.delta") for entry in event["logprobs"]]
    assert told == part["logprobs"]


def stream_events(reply: Reply) -> list[dict[str, Any]]:
    events = []
    for piece in reply.body.decode().strip().split("\n\n"):
        name, data = piece.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def test_events_come_in_openais_order_and_are_numbered(tiny: Server):
    events = stream_events(ask(tiny, stream=True))
    kinds = [event["type"].removeprefix("response.") for event in events]
    deltas = kinds.count("output_text.delta")
    assert kinds == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *["output_text.delta"] * deltas,
        *("output_text.done", "content_part.done", "output_item.done", "incomplete"),
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[0]["response"]["status"] == "in_progress" and events[0]["response"]["output"] == []
    final = events[-1]["response"]
    assert text_of(final) == "".join(event["delta"] for event in events if event["type"].endswith("text.delta"))
    assert tiny.get(f"/v1/responses/{final['id']}").json == final


# -- storing and background --------------------------------------------------------------------------------------------


def test_what_is_not_to_be_stored_is_not(tiny: Server):
    answer = ask(tiny, store=False).json
    assert tiny.get(f"/v1/responses/{answer['id']}").status == 404
    reply = ask(tiny, previous_response_id=answer["id"])
    assert (reply.status, reply.error["param"]) == (404, "previous_response_id")


def test_a_response_in_the_background_is_found_when_it_is_done(tiny: Server):
    started = ask(tiny, background=True).json
    assert (started["status"], started["background"], started["output"]) == ("queued", True, [])
    path = f"/v1/responses/{started['id']}"
    wait_until(lambda: tiny.get(path).json["status"] not in ("queued", "in_progress"))
    assert text_of(tiny.get(path).json) == text_of(ask(tiny).json)


def test_a_response_in_the_background_can_be_cancelled(tiny: Server, tiny_engine: Engine):
    tiny_engine.call(tiny_engine.llm.pause_generation(mode="keep"))  # it cannot be over before it is cancelled
    try:
        started = ask(tiny, background=True, max_output_tokens=480).json
        path = f"/v1/responses/{started['id']}"
        assert ask(tiny, previous_response_id=started["id"]).error["param"] == "previous_response_id"
        cancelled = tiny.request("POST", f"{path}/cancel").json
    finally:
        tiny_engine.call(tiny_engine.llm.resume_generation())
    assert cancelled["status"] == "cancelled" and tiny.get(path).json == cancelled
    assert tiny.request("POST", f"{path}/cancel").json == cancelled
    wait_until(lambda: tiny.get("/load").json["server_load"] == 0)
    other = ask(tiny).json
    assert tiny.request("POST", f"/v1/responses/{other['id']}/cancel").status == 400


def stored(name: str, size_bytes: int) -> StoredResponse:
    response = ResponseObject(id=name, created_at=0, model="m", status="completed", output=[])
    return StoredResponse(response, (), size_bytes)


def test_the_store_forgets_the_least_recently_used():
    store = ResponseStore(max_responses=2, max_bytes=1000)
    store.put(stored("a", 10))
    store.put(stored("b", 10))
    store.get("a")
    store.put(stored("c", 10))
    assert store.get("a") and store.get("c")
    assert store.get("b") is None
    store.put(stored("big", 995))
    assert store.get("big")
    for name in ("a", "c"):
        assert store.get(name) is None
    store.put(stored("d", 5))
    assert store.get("big") and store.get("d")


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({"input": []}, "input"),
        ({"input": 7}, "input"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input"),
        ({"input": [{"type": "function_call", "call_id": "a", "name": "f"}]}, "input"),
        ({"input": [{"type": "reasoning", "content": [7]}]}, "input[0].content"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input"),
        ({"input": ["x"]}, "input[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
        ({"input": [{"role": "user", "content": [{"type": ["input_text"], "text": "x"}]}]}, "input[0].content[0]"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning"),
        ({"reasoning": {"effort": 3}}, "reasoning"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"regex": "a"}, "text": {"format": {"type": "json_object"}}}, "structured_outputs"),
        ({"max_tokens": 3}, "max_tokens"),
        ({"previous_input_messages": [{"role": "user"}]}, "previous_input_messages"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"conversation": "c"}, "conversation"),
        ({"background": True, "store": False}, "background"),
        ({"background": True, "stream": True}, "background"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"metadata": {"k": 1}}, "metadata"),
    ],
)
def test_what_is_wrong_or_not_built_is_refused_by_name(tiny: Server, fields: dict[str, Any], parameter: str):
    reply = ask(tiny, **fields)
    assert (reply.status, reply.error["param"]) == (400, parameter)


def test_what_asks_for_nothing_is_accepted(tiny: Server, tiny_engine: Engine):
    neutral = {"tools": [], "tool_choice": "auto", "text": {"format": {"type": "text"}}, "truncation": "disabled"}
    neutral |= {"reasoning": {}, "include": [], "service_tier": "auto", "parallel_tool_calls": True}
    assert text_of(ask(tiny, **neutral).json) == text_of(ask(tiny).json)
