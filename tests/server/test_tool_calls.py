"""Tool calls in chat completions that the model decides on: what it wrote is read, whole and streamed alike."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.conftest import Engine, Server
from tests.server.scripted import CLOCK, TEMPLATE, WEATHER, added_up, call_text, say

TOOLS = [WEATHER, CLOCK]
HI = [{"role": "user", "content": "Hi"}]
PARIS = call_text("weather", '{"city": "Paris"}')
NOW = call_text("clock", "{}")


def choice_of(server: Server, text: str, **fields: Any) -> dict[str, Any]:
    """Return the whole answer's choice, after checking that the stream says the same."""
    fields = {"tools": TOOLS, "temperature": 0, **fields}
    (choice,) = say(server, text, **fields).json["choices"]
    message = choice["message"]
    streamed = added_up(say(server, text, stream=True, **fields).events)
    assert streamed["content"] == (message["content"] or "")
    assert streamed["reasoning"] == (message["reasoning"] or "")
    assert [(call["name"], call["arguments"]) for call in streamed["tool_calls"]] == calls_of(choice)
    assert streamed["finish_reason"] == choice["finish_reason"]
    return choice


def calls_of(choice: dict[str, Any]) -> list[tuple[str, str]]:
    return [(call["function"]["name"], call["function"]["arguments"]) for call in choice["message"]["tool_calls"]]


# -- answers -----------------------------------------------------------------------------------------------------------


def test_a_call_is_read_and_ends_the_answer_with_tool_calls(scripted: Server):
    choice = choice_of(scripted, PARIS)
    assert calls_of(choice) == [("weather", '{"city": "Paris"}')]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function" and call["id"].startswith("chatcmpl-tool-")


def test_text_before_calls_is_content_and_several_calls_have_ids_of_their_own(scripted: Server):
    choice = choice_of(scripted, f"Let me look.\n{PARIS}\n{NOW}")
    assert calls_of(choice) == [("weather", '{"city": "Paris"}'), ("clock", "{}")]
    assert choice["message"]["content"].strip() == "Let me look."
    first, second = choice["message"]["tool_calls"]
    assert first["id"] != second["id"]


def test_an_answer_without_calls_is_an_answer(scripted: Server):
    choice = choice_of(scripted, "It rains { in [ Paris < 3.")
    assert choice["message"]["content"] == "It rains { in [ Paris < 3." and choice["finish_reason"] == "stop"
    assert choice["message"]["tool_calls"] == []


@pytest.mark.parametrize(
    ("stop", "reason"), [("}", "stop"), ('"Par', "stop"), ("</tool_call", "tool_calls"), ("zzz", "tool_calls")]
)
def test_a_call_that_a_stop_string_cuts_is_none_to_carry_out(scripted: Server, stop: str, reason: str):
    assert choice_of(scripted, PARIS, stop=stop)["finish_reason"] == reason
    assert choice_of(scripted, NOW + PARIS, stop=stop)["finish_reason"] == reason


def test_one_call_is_kept_where_several_are_not_welcome(scripted: Server):
    choice = choice_of(scripted, PARIS + NOW, parallel_tool_calls=False)
    assert calls_of(choice) == [("weather", '{"city": "Paris"}')] and choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    "arguments",
    [
        {"city": "mkdir test/{a,b"},
        {"city": 'say "}" and \\ and </tool_call'},
        {"list": [{"a": [1, {"b": "]}"}]}, {}]},
        {"città": "日本 🌧", "n": -1.5e3, "t": True, "z": None},
    ],
)
def test_arguments_come_through_whatever_they_hold(scripted: Server, arguments: dict[str, Any]):
    """vllm#21360, #19056, #21544, #32152: braces, quotes and unicode in arguments, in pieces."""
    text = json.dumps(arguments, ensure_ascii=False)
    choice = choice_of(scripted, call_text("weather", text) + call_text("clock", "{}"))
    assert json.loads(calls_of(choice)[0][1]) == arguments and len(calls_of(choice)) == 2


def test_an_answer_that_is_cut_inside_a_call_ends_with_length(scripted: Server):
    """vllm#53255: never tool_calls without calls."""
    for max_tokens in range(1, 40, 3):
        choice = choice_of(scripted, PARIS, max_tokens=max_tokens)
        assert choice["finish_reason"] == "length" or choice["message"]["tool_calls"]


def test_several_answers_have_calls_of_their_own(scripted: Server):
    fields = dict(tools=TOOLS, n=3, temperature=1, seed=1)
    whole = say(scripted, PARIS, **fields).json["choices"]
    events = say(scripted, PARIS, stream=True, **fields).events
    for choice in whole:
        assert calls_of(choice) == [("weather", '{"city": "Paris"}')]
        streamed = added_up(events, choice["index"])
        assert [call["arguments"] for call in streamed["tool_calls"]] == ['{"city": "Paris"}']
    assert len({call["id"] for choice in whole for call in choice["message"]["tool_calls"]}) == 3


def test_logprobs_and_usage_count_the_calls_tokens(scripted: Server):
    fields = dict(tools=TOOLS, temperature=0, logprobs=True, top_logprobs=1)
    whole = say(scripted, PARIS, **fields).json
    entries = whole["choices"][0]["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries[:-1]) == PARIS
    assert len(entries) == whole["usage"]["completion_tokens"]
    events = say(scripted, PARIS, stream=True, stream_options={"include_usage": True}, **fields).events
    told = [e for event in events for c in event["choices"] if c["logprobs"] for e in c["logprobs"]["content"]]
    assert [entry["token"] for entry in told] == [entry["token"] for entry in entries]
    assert events[-1]["usage"]["completion_tokens"] == len(entries)


# -- which format ------------------------------------------------------------------------------------------------------


def test_the_format_is_the_templates_unless_it_is_named(scripted_engine: Engine, scripted: Server):
    other = '[weather(city="Paris")]'
    named = scripted_engine.serve(chat_template=TEMPLATE, tool_call_parser="pythonic")
    assert calls_of(choice_of(named, other)) == [("weather", '{"city": "Paris"}')]
    assert choice_of(scripted, other)["message"]["content"] == other
    assert choice_of(named, PARIS)["message"]["content"] == PARIS


def test_a_template_that_shows_no_format_is_refused_unless_it_is_named(scripted_engine: Engine):
    template = (
        "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    unknown = scripted_engine.serve(chat_template=template)
    reply = say(unknown, PARIS, tools=TOOLS)
    assert (reply.status, reply.error["param"]) == (400, "tools") and "--tool-call-parser" in reply.error["message"]
    named = scripted_engine.serve(chat_template=template, tool_call_parser="hermes")
    assert calls_of(choice_of(named, PARIS)) == [("weather", '{"city": "Paris"}')]


def test_tools_that_the_template_would_drop_are_refused(tiny: Server):
    reply = tiny.chat("Hi", tools=TOOLS)
    assert (reply.status, reply.error["param"]) == (400, "tools")
    assert tiny.chat("Hi", tools=TOOLS, tool_choice="none", max_tokens=1).status == 200


def test_the_operator_can_forbid_the_models_choice(scripted_engine: Engine):
    server = scripted_engine.serve(chat_template=TEMPLATE, enable_auto_tool_choice=False)
    reply = say(server, PARIS, tools=TOOLS)
    assert (reply.status, reply.error["param"]) == (400, "tool_choice")
    assert say(server, PARIS, tools=TOOLS, tool_choice="none").status == 200


def test_a_plugin_brings_its_own_format(scripted_engine: Engine, tmp_path):
    from octavo.parsing.registry import load_plugin

    plugin = tmp_path / "arrows.py"
    plugin.write_text(
        "from octavo.parsing.formats import ToolFormat\n"
        "from octavo.parsing.json_calls import JsonCalls\n"
        "from octavo.parsing.registry import register_tool_format\n"
        "register_tool_format(ToolFormat('arrows', JsonCalls(), opening=('==>',), closing=('<==',)))\n"
    )
    load_plugin(plugin)
    server = scripted_engine.serve(chat_template=TEMPLATE, tool_call_parser="arrows")
    choice = choice_of(server, 'Hm. ==>{"name": "clock", "arguments": {}}<==')
    assert calls_of(choice) == [("clock", "{}")] and choice["message"]["content"].strip() == "Hm."


def test_markers_that_are_special_tokens_are_seen_and_other_special_tokens_are_not_shown(scripted_engine: Engine):
    """Mistral's, Granite's, Kimi's and DeepSeek's markers are special tokens, which are left out of the text."""
    from octavo.parsing.formats import ToolFormat
    from octavo.parsing.json_calls import JsonCalls
    from octavo.parsing.registry import register_tool_format

    register_tool_format(ToolFormat("special", JsonCalls(), opening=("<|im_start|>",)))
    server = scripted_engine.serve(chat_template=TEMPLATE, tool_call_parser="special")
    choice = choice_of(server, 'A<|im_end|>B.<|im_start|>{"name": "clock", "arguments": {}}<|im_end|>')
    assert calls_of(choice) == [("clock", "{}")] and choice["message"]["content"] == "AB."
    plain = choice_of(server, "A<|im_start|>B<|im_end|>C", tool_choice="none")
    assert plain["message"]["content"] == "ABC"


# -- tool_choice none --------------------------------------------------------------------------------------------------


def test_with_tool_choice_none_nothing_is_a_call(scripted: Server, scripted_engine: Engine):
    choice = choice_of(scripted, PARIS, tool_choice="none")
    assert choice["message"]["content"] == PARIS and choice["finish_reason"] == "stop"
    described = say(scripted, "x", tools=TOOLS, tool_choice="none", return_prompt_text=True).json["prompt_text"]
    assert '"weather"' in described
    hiding = scripted_engine.serve(chat_template=TEMPLATE, exclude_tools_when_tool_choice_none=True)
    hidden = say(hiding, "x", tools=TOOLS, tool_choice="none", return_prompt_text=True).json["prompt_text"]
    assert "weather" not in hidden
    assert '"weather"' in say(hiding, "x", tools=TOOLS, return_prompt_text=True).json["prompt_text"]


# -- conversations -----------------------------------------------------------------------------------------------------


def test_a_conversation_with_calls_and_results_reaches_the_template(scripted: Server):
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Málaga"}'}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        *HI,
        {"role": "assistant", "content": None, "reasoning": "Look it up.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "sunny"}]},
    ]
    fields = dict(messages=messages, tools=TOOLS, return_prompt_text=True)
    prompt = say(scripted, "x", **fields).json["prompt_text"]
    assert prompt.endswith(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        '<think>\nLook it up.\n</think>\n\n<tool_call>\n{"name": "weather", "arguments": {"city": "Málaga"}}\n'
        "</tool_call><|im_end|>\n<|im_start|>tool\nsunny<|im_end|>\n<|im_start|>assistant\n"
    )
    counted = scripted.post("/tokenize", messages=messages, tools=TOOLS).json["count"]
    assert counted == say(scripted, "x", **fields).json["usage"]["prompt_tokens"]


@pytest.mark.parametrize("arguments", ['{"city": ', "[1]", "Paris"])
def test_malformed_arguments_in_a_conversation_are_refused_with_their_place(scripted: Server, arguments: str):
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    messages = [*HI, {"role": "assistant", "content": None, "tool_calls": [call]}, *HI]
    reply = say(scripted, "x", messages=messages)
    assert (reply.status, reply.error["param"]) == (400, "messages")
    assert "messages[1].tool_calls[0].function.arguments" in reply.error["message"]


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({"tools": []}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools"),
        ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nobody"}}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": 3}, "tool_choice"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"functions": [{"name": "f"}]}, "functions"),
    ],
)
def test_what_is_wrong_about_tools_is_refused_by_name(scripted: Server, fields: dict[str, Any], parameter: str):
    reply = scripted.chat("Hi", **fields)
    assert (reply.status, reply.error["param"]) == (400, parameter), reply.body


# -- the client that users have ----------------------------------------------------------------------------------------


def test_the_openai_client_accumulates_a_stream_into_the_whole(scripted: Server):
    from tests.server.scripted import script

    client = scripted.client()
    fields: dict[str, Any] = dict(
        model="scripted", messages=HI, tools=TOOLS, extra_body=script(scripted, f"Well.\n{PARIS}{NOW}")
    )
    whole = client.chat.completions.create(**fields)
    with client.chat.completions.stream(**fields) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    calls = whole.choices[0].message.tool_calls
    streamed = final.choices[0].message.tool_calls
    assert calls and streamed
    assert [c.function.name for c in streamed] == [c.function.name for c in calls] == ["weather", "clock"]
    assert [c.function.arguments for c in streamed] == [c.function.arguments for c in calls]
    assert final.choices[0].finish_reason == whole.choices[0].finish_reason == "tool_calls"


# -- strict functions, and answers with a format of their own ----------------------------------------------------------

# this model's "<think>" begins with the same token as its calls, so it may not reason here
DIRECT: dict[str, Any] = {"reasoning_effort": "none"}
GREEDILY: dict[str, Any] = {**DIRECT, "temperature": 0, "max_tokens": 80}

BIT = {
    "type": "function",
    "function": {
        "name": "bit",
        "strict": True,
        "parameters": {"type": "object", "properties": {"x": {"enum": [0, 1]}}, "required": ["x"]},
    },
}
BIT["function"]["parameters"]["additionalProperties"] = False  # type: ignore[index]


def lax(tool: dict[str, Any]) -> dict[str, Any]:
    return {**tool, "function": {**tool["function"], "strict": False}}


def test_arguments_of_strict_functions_follow_their_schema(scripted: Server):
    """The model begins a call with a wrong argument: the grammar has it another way."""
    begin = '<tool_call>\n{"name": "bit", "arguments": {"x": '
    for wrong in ("7", '"a"', "null", "true"):
        choice = choice_of(scripted, f"{begin}{wrong}}}}}\n</tool_call>", tools=[BIT], **GREEDILY)
        ((_, arguments),) = calls_of(choice)
        assert json.loads(arguments) in ({"x": 0}, {"x": 1})
        (free,) = calls_of(choice_of(scripted, f"{begin}{wrong}}}}}\n</tool_call>", tools=[lax(BIT)], **GREEDILY))
        assert json.loads(free[1]) == {"x": json.loads(wrong)}
    for right in ('{"x":1}', '{"x": 1}'):
        choice = choice_of(scripted, call_text("bit", right), tools=[BIT], **DIRECT)
        assert calls_of(choice) == [("bit", right)]
    assert choice_of(scripted, "No call.", tools=[BIT], **DIRECT)["message"]["content"] == "No call."


def test_a_call_that_ends_the_reasoning_follows_its_schema_too(scripted_engine: Engine):
    """Qwen 3 does not always close its reasoning before it calls."""
    server = scripted_engine.serve(chat_template=TEMPLATE + "{% if add_generation_prompt %}<think>\n{% endif %}")
    wrong = '<tool_call>\n{"name": "bit", "arguments": {"x": 7}}\n</tool_call>'
    for thought in ("Hm, <tool> x.", "Hm.</think>"):
        choice = choice_of(server, thought + wrong, tools=[BIT], temperature=0, max_tokens=80)
        ((_, arguments),) = calls_of(choice)
        assert json.loads(arguments) in ({"x": 0}, {"x": 1})
        assert choice["message"]["reasoning"] == thought.removesuffix("</think>")


def test_strict_functions_of_a_format_that_no_grammar_describes_are_refused(scripted_engine: Engine):
    fields: dict[str, Any] = dict(chat_template=TEMPLATE, tool_call_parser="qwen3_coder")
    server = scripted_engine.serve(**fields)
    reply = say(server, "x", tools=[BIT])
    assert (reply.status, reply.error["param"]) == (400, "tools") and "strict" in reply.error["message"]
    assert say(server, "x", tools=[CLOCK]).status == 200
    lenient = scripted_engine.serve(**fields, tool_strict_level="none")
    assert say(lenient, "x", tools=[BIT]).status == 200


def test_a_beam_search_has_no_strict_functions(scripted: Server):
    search: dict[str, Any] = dict(messages=[{"role": "user", "content": "Hi"}], use_beam_search=True, n=2, max_tokens=2)
    assert scripted.post("/v1/chat/completions", tools=[lax(BIT)], **search).status == 200
    reply = scripted.post("/v1/chat/completions", tools=[BIT], **search)
    assert (reply.status, reply.error["param"]) == (400, "tool_choice")


def test_an_answer_is_of_its_format_or_made_of_calls(scripted: Server, scripted_engine: Engine):
    wish = {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["yes", "no"]}}}}
    assert choice_of(scripted, '"yes"', tools=[BIT], **DIRECT, **wish)["message"]["content"] == '"yes"'
    right = call_text("bit", '{"x":1}')
    assert calls_of(choice_of(scripted, right, tools=[BIT], **DIRECT, **wish)) == [("bit", '{"x":1}')]
    other = say(scripted, "Well.", tools=[BIT], **GREEDILY, **wish).json["choices"][0]
    assert other["message"]["content"] != "Well." and other["finish_reason"] != "stop"
    coder = scripted_engine.serve(chat_template=TEMPLATE, tool_call_parser="qwen3_coder")
    reply = say(coder, "x", tools=[CLOCK], **wish)
    assert (reply.status, reply.error["param"]) == (400, "response_format")
