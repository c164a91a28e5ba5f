"""/v1/messages: the real Anthropic client, streams, stop reasons, and what is not built."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest

from tests.server.conftest import Engine, Reply, Server

HI = [{"role": "user", "content": "Hi"}]
GREEDY = {"temperature": 0, "max_tokens": 8}
GREEDILY = {"temperature": 0}  # the client has no such argument any more, the API has the field


def client_of(server: Server, key: str = "none") -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0, timeout=60)


def ask(server: Server, **fields: Any) -> Reply:
    return server.post("/v1/messages", **{"messages": HI, **GREEDY, **fields})


def refused(server: Server, status: int = 400, path: str = "/v1/messages", **fields: Any) -> dict[str, Any]:
    """Send what must be refused; return the error in Anthropic's shape."""
    body = {"messages": HI, **({} if path.endswith("count_tokens") else GREEDY), **fields}
    reply = server.post(path, **{name: value for name, value in body.items() if value is not ...})
    assert reply.status == status, reply.body
    assert reply.json["type"] == "error" and set(reply.json["error"]) == {"type", "message"}
    return reply.json["error"]


# -- the client that users have ----------------------------------------------------------------------------------------


def test_the_anthropic_client_gets_an_answer(real: Server):
    question = [{"role": "user", "content": "What is the capital of France?"}]
    message = client_of(real).messages.create(model=real.model, messages=question, max_tokens=32, extra_body=GREEDILY)
    (block,) = message.content
    assert "Paris" in block.text and (message.role, message.type) == ("assistant", "message")
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    counted = client_of(real).messages.count_tokens(model=real.model, messages=question)
    assert counted.input_tokens == message.usage.input_tokens > 0
    chat = real.chat("What is the capital of France?", temperature=0, max_tokens=32).json
    assert block.text == chat["choices"][0]["message"]["content"]
    assert message.usage.output_tokens == chat["usage"]["completion_tokens"]


def test_the_anthropic_client_streams_what_it_would_get_whole(real: Server):
    fields: dict[str, Any] = dict(model=real.model, messages=HI, max_tokens=20, system="Be brief.", extra_body=GREEDILY)
    whole = client_of(real).messages.create(**fields)
    with client_of(real).messages.stream(**fields) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.usage == whole.usage and final.stop_reason == whole.stop_reason


def test_system_prompt_and_turns_reach_the_template(tiny: Server):
    turns = [
        *HI,
        {"role": "assistant", "content": [{"type": "text", "text": "Yes?"}]},
        {"role": "user", "content": "x"},
    ]
    system = [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}]
    as_chat = [{"role": "system", "content": "Be kind."}, HI[0], {"role": "assistant", "content": "Yes?"}, turns[2]]
    count = tiny.post("/v1/messages/count_tokens", messages=turns, system=system).json
    assert count == {"input_tokens": tiny.post("/tokenize", messages=as_chat).json["count"]}
    answer = ask(tiny, messages=turns, system=system).json
    chat = tiny.post("/v1/chat/completions", messages=as_chat, **GREEDY).json["choices"][0]
    assert answer["content"] == [{"type": "text", "text": chat["message"]["content"]}]
    assert answer["usage"]["input_tokens"] == count["input_tokens"]


def test_system_messages_between_the_turns_stay_where_they_are(tiny: Server):
    """Claude Code adds reminders after each turn: refused they end its session, moved to the top they break caching."""
    between = {"role": "system", "content": [{"type": "text", "text": "Be quick."}]}
    turns = [*HI, {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "x"}, between]
    chat = tiny.post("/tokenize", messages=[*turns[:3], {"role": "system", "content": "Be quick."}]).json
    assert tiny.post("/v1/messages/count_tokens", messages=turns).json == {"input_tokens": chat["count"]}
    assert ask(tiny, messages=turns).json["usage"]["input_tokens"] == chat["count"]


def test_a_last_turn_of_the_assistant_is_continued(tiny: Server):
    messages = [*HI, {"role": "assistant", "content": "Hello the"}]
    wishes = {"add_generation_prompt": False, "continue_final_message": True}
    continued = tiny.post("/v1/chat/completions", messages=messages, **wishes, **GREEDY).json
    assert ask(tiny, messages=messages).json["content"][0]["text"] == continued["choices"][0]["message"]["content"]


# -- stop reasons and streams ------------------------------------------------------------------------------------------


def test_the_end_has_anthropics_reasons(tiny: Server):
    full = ask(tiny, max_tokens=12).json
    assert (full["stop_reason"], full["usage"]["output_tokens"]) == ("max_tokens", 12)
    stop = full["content"][0]["text"][3:5]
    stopped = ask(tiny, max_tokens=12, stop_sequences=[stop]).json
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", stop)
    assert stopped["content"][0]["text"] == full["content"][0]["text"].partition(stop)[0]


def test_events_come_in_anthropics_order(tiny: Server):
    reply = ask(tiny, stream=True, max_tokens=6)
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = []
    for piece in reply.body.decode().strip().split("\n\n"):
        name, data = piece.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    kinds = [one["type"] for one in events]
    deltas = kinds.count("content_block_delta")
    assert kinds == [
        *("message_start", "content_block_start"),
        *["content_block_delta"] * deltas,
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    assert events[0]["message"]["content"] == [] and events[0]["message"]["stop_reason"] is None
    text = "".join(one["delta"]["text"] for one in events if one["type"] == "content_block_delta")
    assert text == ask(tiny, max_tokens=6).json["content"][0]["text"]
    assert events[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] == 6


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"max_tokens": ...}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "role"),
        ({"stop_sequences": list("abcdef")}, "stop_sequences must be"),
        ({"messages": [{"role": "user", "content": 7}]}, "content"),
        ({"messages": [{"role": "user", "content": []}]}, "content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "text"),
        ({"messages": [{"role": "user", "content": [{"type": {}}]}]}, "text"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "multimodal"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id"),
        ({"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}]}, "encrypted"),
        ({"system": [{"type": "image"}]}, "multimodal"),
        ({"tools": [{"name": "f", "input_schema": {}}]}, "chat template"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "bash_20250124"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000}, "thinking"),
        ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": "yes"}}, "disable_parallel_tool_use"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "is_error": "no"}]}
                ]
            },
            "is_error",
        ),
        ({"thinking": {"type": "deep"}}, "thinking.type"),
        ({"output_config": {"effort": 3}}, "effort"),
        ({"top_p": 2}, "top_p"),
        ({"temperature": "hot"}, "temperature"),
        ({"stop_sequences": ["a"] * 9}, "stop"),
    ],
)
def test_what_is_wrong_or_not_built_is_refused_in_anthropics_shape(tiny: Server, fields: dict[str, Any], word: str):
    error = refused(tiny, **fields)
    assert error["type"] == "invalid_request_error" and word in error["message"]


def test_what_asks_for_nothing_is_accepted(tiny: Server):
    fields = {"tools": [], "thinking": {"type": "disabled"}, "metadata": {"user_id": "u"}, "stop_sequences": []}
    assert ask(tiny, **fields).json["content"] == ask(tiny).json["content"]


def test_other_models_and_counting_are_refused_alike(tiny: Server):
    assert refused(tiny, 404, model="other")["type"] == "not_found_error"
    path = "/v1/messages/count_tokens"
    assert "multimodal" in refused(tiny, path=path, system=[{"type": "image"}])["message"]
    assert "messages" in refused(tiny, path=path, messages=...)["message"]


def test_the_clients_key_is_checked(tiny_engine: Engine):
    server = tiny_engine.serve(api_key=["secret"])
    with pytest.raises(anthropic.AuthenticationError):
        client_of(server, "wrong").messages.create(model="tiny", messages=HI, max_tokens=1)
    assert client_of(server, "secret").messages.create(model="tiny", messages=HI, max_tokens=1).type == "message"
