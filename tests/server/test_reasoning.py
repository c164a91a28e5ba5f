"""Reasoning in chat completions: apart from the content, in history, with a budget, and before a grammar."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.conftest import Engine, Server
from tests.server.scripted import CLOCK, END, TEMPLATE, added_up, call_text, say

HI = [{"role": "user", "content": "Hi"}]
THOUGHT = "<think>\nLet me see.\n</think>\n\nParis."
GREEDY: dict[str, Any] = {"temperature": 0}


def message_of(server: Server, text: str, **fields: Any) -> dict[str, Any]:
    """Return the whole answer's message, after checking that the stream says the same."""
    (choice,) = say(server, text, **GREEDY, **fields).json["choices"]
    streamed = added_up(say(server, text, stream=True, **GREEDY, **fields).events)
    assert streamed["content"] == (choice["message"]["content"] or "")
    assert streamed["reasoning"] == (choice["message"]["reasoning"] or "")
    return choice["message"]


def test_reasoning_is_apart_from_the_content(scripted: Server):
    message = message_of(scripted, THOUGHT)
    assert (message["reasoning"].strip(), message["content"].strip()) == ("Let me see.", "Paris.")
    assert "think" not in message["content"] + message["reasoning"]


def test_an_answer_without_reasoning_has_none(scripted: Server):
    message = message_of(scripted, "Paris.")
    assert message["reasoning"] is None and message["content"] == "Paris."


def test_an_answer_that_ends_inside_the_reasoning_has_no_content(scripted: Server):
    message = message_of(scripted, "<think>\nLet me")
    assert message["content"] is None and message["reasoning"].strip() == "Let me"


def test_reasoning_can_be_left_out(scripted: Server):
    message = message_of(scripted, THOUGHT, include_reasoning=False)
    assert message["reasoning"] is None and message["content"].strip() == "Paris."


def test_reasoning_tokens_are_counted(scripted: Server):
    usage = say(scripted, THOUGHT, **GREEDY).json["usage"]
    inside = scripted.post("/tokenize", prompt="\nLet me see.\n").json["count"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == pytest.approx(inside, abs=1)
    events = say(scripted, THOUGHT, stream=True, stream_options={"include_usage": True}, **GREEDY).events
    assert events[-1]["usage"] == usage
    assert say(scripted, "Paris.", **GREEDY).json["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0


def test_calls_may_follow_reasoning(scripted: Server):
    message = message_of(scripted, "<think>\nHm.\n</think>\n\n" + call_text("clock", "{}"), tools=[CLOCK])
    assert message["reasoning"].strip() == "Hm." and message["content"] is None
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["clock"]


# -- which format ------------------------------------------------------------------------------------------------------


def test_the_templates_format_is_known_unless_it_is_switched_off(tmp_path_factory, scripted_engine: Engine):
    unknown = scripted_engine.serve(chat_template="{{ messages[0].content }}")
    message = message_of(unknown, THOUGHT)
    assert message["content"] == THOUGHT and message["reasoning"] is None
    assert "completion_tokens_details" not in say(unknown, "x", **GREEDY).json["usage"]


@pytest.mark.parametrize(
    ("begun", "reasoning"), [("<think>\nHm.", "Let me see."), ("<think>\nHm.\n</think>\n\nIt", "")]
)
def test_a_continued_message_goes_on_inside_or_behind_its_reasoning(scripted: Server, begun: str, reasoning: str):
    messages = [*HI, {"role": "assistant", "content": begun}]
    text = "Let me see.\n</think>\n\nParis." if reasoning else "is Paris."
    message = message_of(scripted, text, messages=messages, add_generation_prompt=False, continue_final_message=True)
    assert (message["reasoning"] or "").strip() == reasoning
    assert message["content"].strip() == ("Paris." if reasoning else "is Paris.")


def test_a_template_that_opens_the_reasoning_is_understood(scripted_engine: Engine):
    opened = scripted_engine.serve(chat_template="{{ messages[0].content }}<think>\n")
    message = message_of(opened, "Let me see.\n</think>\n\nParis.")
    assert (message["reasoning"].strip(), message["content"].strip()) == ("Let me see.", "Paris.")


# -- what a request may say --------------------------------------------------------------------------------------------


def test_variables_and_effort_reach_the_template(scripted: Server, scripted_engine: Engine):
    def prompt(server: Server, **fields: Any) -> str:
        return say(server, "x", return_prompt_text=True, **fields).json["prompt_text"]

    closed = "<think>\n\n</think>\n\n"
    assert prompt(scripted).endswith("assistant\n")
    assert prompt(scripted, chat_template_kwargs={"enable_thinking": False}).endswith(closed)
    assert prompt(scripted, reasoning_effort="none").endswith(closed)
    assert prompt(scripted, reasoning_effort="high").endswith("assistant\n")
    wins = prompt(scripted, reasoning_effort="none", chat_template_kwargs={"enable_thinking": True})
    assert wins.endswith("assistant\n")
    by_default = scripted_engine.serve(chat_template=TEMPLATE, default_chat_template_kwargs={"enable_thinking": False})
    assert prompt(by_default).endswith(closed)
    assert prompt(by_default, chat_template_kwargs={"enable_thinking": True}).endswith("assistant\n")
    effort = scripted_engine.serve(chat_template="{{ reasoning_effort }}")
    assert prompt(effort, reasoning_effort="high") == "high"


def test_reasoning_of_earlier_turns_reaches_the_template(scripted: Server):
    for name in ("reasoning", "reasoning_content"):
        messages = [*HI, {"role": "assistant", name: "Hm.", "content": "Yes"}, *HI]
        prompt = say(scripted, "x", messages=messages, return_prompt_text=True).json["prompt_text"]
        assert "assistant\n<think>\nHm.\n</think>\n\nYes<|im_end|>" in prompt


# -- budget ------------------------------------------------------------------------------------------------------------


def opened_server(engine: Engine) -> Server:
    return engine.serve(chat_template="{{ messages[0].content }}<think>\n")


@pytest.mark.parametrize("budget", [0, 1, 7])
def test_a_budget_ends_the_reasoning_after_so_many_tokens(scripted_engine: Engine, budget: int):
    server = opened_server(scripted_engine)
    fields: dict[str, Any] = dict(temperature=1, seed=2, max_tokens=60, ignore_eos=True, thinking_token_budget=budget)
    reply = server.chat("Hi", return_token_ids=True, **fields).json
    ids = reply["choices"][0]["token_ids"]
    end = server.state.require_tokenizer().encode("</think>", add_special_tokens=False)
    assert ids[budget : budget + len(end)] == end
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == budget
    free = server.chat("Hi", return_token_ids=True, **{**fields, "thinking_token_budget": -1}).json
    assert ids[:budget] == free["choices"][0]["token_ids"][:budget]
    assert free["choices"][0]["message"]["content"] is None, "it would have gone on"


def test_a_budget_works_for_completions_as_well(scripted_engine: Engine):
    """The engine's own template shows no reasoning, so it has to be told."""
    server = opened_server(scripted_engine)
    reply = server.complete(prompt="Hi<think>\n", thinking_token_budget=3)
    assert (reply.status, reply.error["param"]) == (400, "thinking_token_budget")


def test_a_budget_of_a_model_without_reasoning_is_refused(tiny: Server):
    reply = tiny.chat("Hi", thinking_token_budget=3)
    assert (reply.status, reply.error["param"]) == (400, "thinking_token_budget")
    assert tiny.chat("Hi", thinking_token_budget=-1, max_tokens=1).status == 200


# -- grammars ----------------------------------------------------------------------------------------------------------


def test_a_grammar_begins_when_the_reasoning_has_ended(scripted_engine: Engine):
    server = opened_server(scripted_engine)
    fields = dict(temperature=1, seed=2, max_tokens=60, thinking_token_budget=5)
    wish = {"structured_outputs": {"choice": ["yes", "no"]}}
    choice = server.chat("Hi", **wish, **fields).json["choices"][0]
    assert choice["message"]["content"] in ("yes", "no") and choice["finish_reason"] == "stop"
    assert choice["message"]["reasoning"]


def test_a_demanded_call_comes_after_the_reasoning(scripted_engine: Engine):
    server = opened_server(scripted_engine)
    fields = dict(temperature=1, seed=2, max_tokens=60, thinking_token_budget=5, tools=[CLOCK])
    clock = json.loads(json.dumps(CLOCK))
    clock["function"]["parameters"]["additionalProperties"] = False
    fields["tools"] = [clock]
    choice = server.chat("Hi", tool_choice={"type": "function", "function": {"name": "clock"}}, **fields).json[
        "choices"
    ][0]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "clock", "arguments": "{}"} and choice["message"]["reasoning"]
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "clock"}}])
@pytest.mark.parametrize(("thought", "stop"), [("", None), ("Hm", None), ("Hm", [END])])
def test_a_model_that_would_end_within_its_reasoning_makes_the_demanded_call(
    scripted_engine: Engine, thought: str, stop: list[int] | None, choice: object, streams: bool
):
    server = opened_server(scripted_engine)
    fields: dict[str, Any] = dict(temperature=0, max_tokens=200, logit_bias={END: 100}, parallel_tool_calls=False)
    reply = say(server, thought, stream=streams, tools=[CLOCK], tool_choice=choice, stop_token_ids=stop, **fields)
    message = added_up(reply.events) if streams else reply.json["choices"][0]["message"]
    reason = message["finish_reason"] if streams else reply.json["choices"][0]["finish_reason"]
    assert (message["reasoning"] or "", reason, len(message["tool_calls"])) == (thought, "tool_calls", 1)


def test_a_model_that_would_end_within_its_reasoning_gives_the_demanded_format(scripted_engine: Engine):
    server = opened_server(scripted_engine)
    fields = dict(temperature=0, max_tokens=60, logit_bias={END: 100})
    choice = server.chat("Hi", structured_outputs={"choice": ["yes", "no"]}, **fields).json["choices"][0]
    assert choice["message"]["content"] in ("yes", "no") and choice["finish_reason"] == "stop"
    free = server.chat("Hi", **fields).json["choices"][0]
    assert not free["message"]["content"] and free["finish_reason"] == "stop", "nothing has to follow"


def test_reasoning_that_never_ends_leaves_no_room_for_the_demanded_call(scripted_engine: Engine):
    server = opened_server(scripted_engine)
    fields = dict(temperature=0, max_tokens=30, ignore_eos=True, tools=[CLOCK], tool_choice="required")
    choice = server.chat("Hi", **fields).json["choices"][0]
    assert choice["finish_reason"] == "length" and choice["message"]["reasoning"]
    assert not choice["message"].get("tool_calls") and choice["message"]["content"] is None


def test_a_grammar_begins_at_once_where_reasoning_is_switched_off(scripted: Server):
    fields = dict(temperature=1, seed=2, max_tokens=20, chat_template_kwargs={"enable_thinking": False})
    choice = scripted.chat("Hi", structured_outputs={"choice": ["yes", "no"]}, **fields).json["choices"][0]
    assert choice["message"]["content"] in ("yes", "no") and choice["message"]["reasoning"] is None


def test_a_grammar_begins_at_once_where_the_model_does_not_begin_to_reason(scripted: Server):
    """A model that leaves its reasoning out must not thereby escape the grammar."""
    answers = []
    for seed in range(8):
        fields = dict(temperature=1, seed=seed, max_tokens=20, structured_outputs={"choice": ["yes", "no"]})
        message = scripted.chat("Hi", **fields).json["choices"][0]["message"]
        assert message["reasoning"] is not None or message["content"] in ("yes", "no")
        answers.append(message["content"])
    assert "yes" in answers or "no" in answers
