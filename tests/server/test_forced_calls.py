"""Calls that a request demands: a grammar forces them, so that even these models make valid ones."""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from tests.server.conftest import Engine, Server
from tests.server.scripted import CLOCK, TEMPLATE, WEATHER, added_up

TOOLS = [WEATHER, CLOCK]
NAMED = {"type": "function", "function": {"name": "weather"}}
HISTORY_CALL = {"id": "x", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
QUESTION = [{"role": "user", "content": "What is the weather in Paris, in Celsius?"}]
# a random model may well begin to reason, and never end
FIELDS: dict[str, Any] = {"messages": QUESTION, "temperature": 0, "max_tokens": 120, "reasoning_effort": "none"}


def ask(server: Server, **fields: Any) -> dict[str, Any]:
    """Return the only choice, after checking that the stream says the same."""
    fields = {**FIELDS, "tools": TOOLS, **fields}
    reply = server.post("/v1/chat/completions", **fields)
    assert reply.status == 200, reply.body
    (choice,) = reply.json["choices"]
    streamed = added_up(server.post("/v1/chat/completions", stream=True, **fields).events)
    told = [(call["name"], call["arguments"]) for call in streamed["tool_calls"]]
    assert told == [(c["function"]["name"], c["function"]["arguments"]) for c in choice["message"]["tool_calls"]]
    assert streamed["finish_reason"] == choice["finish_reason"]
    assert streamed["content"] == (choice["message"]["content"] or "")
    return choice


def check_weather(arguments: str) -> None:
    value = json.loads(arguments)
    assert set(value) <= {"city", "unit"} and isinstance(value["city"], str)
    assert value.get("unit", "C") in ("C", "F")


@pytest.mark.parametrize("server_name", ["real", "scripted"])
@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_demanded_call_is_valid_and_ends_with_tool_calls(request, server_name: str, choice: Any):
    """vllm#9209, #24509, #49216: wrong finish reasons, broken JSON, no call at all."""
    server = request.getfixturevalue(server_name)
    # a random model may write texts and arrays without end
    answer = ask(
        server, tool_choice=choice, tools=[bounded(WEATHER)], max_tokens=200, parallel_tool_calls=server_name == "real"
    )
    assert answer["finish_reason"] == "tool_calls" and answer["message"]["content"] is None
    calls = answer["message"]["tool_calls"]
    assert calls and len({call["id"] for call in calls}) == len(calls)
    for call in calls[: 1 if choice is NAMED else None]:
        assert call["function"]["name"] == "weather"
        check_weather(call["function"]["arguments"])
    if choice is NAMED:
        assert len(calls) == 1


def bounded(tool: dict[str, Any]) -> dict[str, Any]:
    """Return the tool with texts of at most 5 letters."""
    function = json.loads(json.dumps(tool["function"]))
    for schema in function["parameters"]["properties"].values():
        if schema.get("type") == "string":
            schema["pattern"] = "^[a-z]{0,5}$"
    return {"type": "function", "function": function}


def test_one_call_is_made_where_several_are_not_welcome(scripted: Server):
    for seed in range(5):
        fields = dict(tools=[bounded(WEATHER)], parallel_tool_calls=False, temperature=1, seed=seed, max_tokens=300)
        answer = ask(scripted, tool_choice="required", **fields)
        assert len(answer["message"]["tool_calls"]) == 1 and answer["finish_reason"] == "tool_calls"


def test_a_demanded_call_that_is_cut_ends_with_length(tiny: Server):
    """vllm#53255, #53363: never tool_calls without a call."""
    for max_tokens in (1, 2, 3, 5, 8, 13):
        for choice in ("required", NAMED):
            answer = ask(tiny, tool_choice=choice, max_tokens=max_tokens)
            assert answer["finish_reason"] == "length"
            assert len(answer["message"]["tool_calls"]) <= 1


def test_several_answers_each_have_a_valid_call(tiny: Server):
    fields = {**FIELDS, "tools": [bounded(WEATHER)], "n": 3, "temperature": 1, "seed": 3, "max_tokens": 200}
    choices = tiny.post("/v1/chat/completions", tool_choice=NAMED, **fields).json["choices"]
    events = tiny.post("/v1/chat/completions", tool_choice=NAMED, stream=True, **fields).events
    assert len(choices) == 3
    for choice in choices:
        (call,) = choice["message"]["tool_calls"]
        check_weather(call["function"]["arguments"])
        (streamed,) = added_up(events, choice["index"])["tool_calls"]
        assert streamed["arguments"] == call["function"]["arguments"]


def test_tools_are_described_even_where_the_template_has_no_place_for_them(tiny: Server, scripted: Server):
    fields = {**FIELDS, "tools": TOOLS, "tool_choice": "required", "max_tokens": 1, "return_prompt_text": True}
    prompt = tiny.post("/v1/chat/completions", **fields).json["prompt_text"]
    assert prompt.startswith("<|im_start|>system\n") and "Tells the weather." in prompt and '"clock"' in prompt
    native = scripted.post("/v1/chat/completions", **fields).json["prompt_text"]
    assert native.count("Tells the weather.") == 1 and "JSON array" not in native


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object", "required": ["a"]},
        {"type": "object", "required": ["a"], "properties": {}},
        {
            "type": "object",
            "properties": {"a": {"enum": [1]}},
            "additionalProperties": {"enum": [2]},
            "required": ["a"],
        },
        {
            "$ref": "#/$defs/x",
            "$defs": {"x": {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}},
        },
        {"type": "object", "allOf": [{"properties": {"a": {"enum": [1]}}}], "required": ["a"]},
    ],
)
def test_schemas_that_speak_of_other_keys_stay_as_they_are(tiny: Server, parameters: dict[str, Any]):
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    fields = {**FIELDS, "tools": [tool], "tool_choice": {"type": "function", "function": {"name": "f"}}}
    reply = tiny.post("/v1/chat/completions", **{**fields, "max_tokens": 3})
    assert reply.status == 200, reply.body


def test_neither_parser_nor_flag_is_needed(scripted_engine: Engine):
    server = scripted_engine.serve(chat_template=TEMPLATE, tool_call_parser="none", enable_auto_tool_choice=False)
    answer = ask(server, tool_choice=NAMED, tools=[bounded(WEATHER)])
    assert answer["finish_reason"] == "tool_calls"


def test_ids_are_those_that_the_models_template_takes(scripted_engine: Engine):
    """Kimi's count over the conversation, Mistral's have nine letters and digits."""
    fields: dict[str, Any] = dict(tools=[bounded(WEATHER)], tool_choice=NAMED, temperature=0, reasoning_effort="none")
    earlier = [{"role": "assistant", "content": None, "tool_calls": [HISTORY_CALL, HISTORY_CALL]}]
    kimi = scripted_engine.serve(chat_template=TEMPLATE, tool_call_parser="kimi_k2")
    for turns, number in (([], 0), (earlier, 2)):
        reply = kimi.post("/v1/chat/completions", messages=[*QUESTION, *turns, *QUESTION], **fields).json
        assert reply["choices"][0]["message"]["tool_calls"][0]["id"] == f"functions.weather:{number}"
    mistral = scripted_engine.serve(chat_template=TEMPLATE, tool_call_parser="mistral")
    reply = mistral.post("/v1/chat/completions", messages=QUESTION, **fields).json
    call_id = reply["choices"][0]["message"]["tool_calls"][0]["id"]
    assert len(call_id) == 9 and call_id.isalnum()


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({"response_format": {"type": "json_object"}}, "tool_choice"),
        ({"use_beam_search": True, "n": 2}, "tool_choice"),
    ],
)
def test_what_contradicts_a_demanded_call_is_refused(tiny: Server, fields: dict[str, Any], parameter: str):
    reply = tiny.post("/v1/chat/completions", **{**FIELDS, "tools": TOOLS, "tool_choice": "required", **fields})
    assert (reply.status, reply.error["param"]) == (400, parameter), reply.body


def test_a_schema_that_cannot_be_enforced_is_refused_by_its_keyword(tiny: Server):
    parameters = {"type": "object", "properties": {"a": {"type": "string", "pattern": r"^(a*)b\1$"}}, "required": ["a"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    reply = tiny.post("/v1/chat/completions", **{**FIELDS, "tools": [tool], "tool_choice": "required"})
    assert reply.status == 400 and "pattern" in reply.error["message"]
    assert tiny.chat("Hi", max_tokens=1).status == 200


# -- the client that users have, and a real model ----------------------------------------------------------------------


class Weather(BaseModel):
    """Tells the weather of a city."""

    city: Literal["Paris", "Rome"]
    unit: Literal["celsius", "fahrenheit"]


class Add(BaseModel):
    """Adds two numbers."""

    a: int
    b: int


def test_the_openai_client_parses_calls_into_models(real: Server):
    client = real.client()
    completion = client.chat.completions.parse(
        model=real.model,
        messages=[{"role": "user", "content": "What is the weather in Rome in celsius?"}],
        tools=[openai.pydantic_function_tool(Weather, name="weather")],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        temperature=0,
    )
    (call,) = completion.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Weather) and completion.choices[0].finish_reason == "tool_calls"


def test_a_loop_of_calls_and_results_comes_to_an_answer(real: Server):
    """What an agent does: call, send the result, and again, until there is an answer."""
    client = real.client()
    tools = [openai.pydantic_function_tool(Add, name="add"), openai.pydantic_function_tool(Weather, name="weather")]
    messages: list[Any] = [{"role": "user", "content": "Add 2 and 3, then tell me the weather in Paris."}]
    for name, result in (("add", "5"), ("weather", "sunny, 21 degrees")):
        choice: Any = {"type": "function", "function": {"name": name}}
        completion = client.chat.completions.create(
            model=real.model, messages=messages, tools=tools, tool_choice=choice, temperature=0
        )
        message = completion.choices[0].message
        (call,) = message.tool_calls or []
        assert call.function.name == name and json.loads(call.function.arguments)
        messages += [message, {"role": "tool", "tool_call_id": call.id, "content": result}]
    final = client.chat.completions.create(
        model=real.model, messages=messages, tools=tools, tool_choice="none", temperature=0, max_tokens=40
    )
    assert final.choices[0].finish_reason in ("stop", "length") and final.choices[0].message.content
    assert not final.choices[0].message.tool_calls
