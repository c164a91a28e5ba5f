"""/v1/chat/completions: roles, streams, logprobs, templates, and the real OpenAI client."""

from __future__ import annotations

import pytest

from tests.server.conftest import Engine, Server

GREEDY = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
HI = [{"role": "user", "content": "Hi"}]


def contents(events: list[dict], index: int = 0) -> str:
    choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def prompt_ids(server: Server, **fields) -> list[int]:
    return server.post("/v1/chat/completions", return_token_ids=True, max_tokens=1, **fields).json["prompt_token_ids"]


# -- the client that users have ----------------------------------------------------------------------------------------


def test_the_openai_client_chats(real: Server):
    answer = real.client().chat.completions.create(
        model=real.model, messages=[{"role": "user", "content": "What is the capital of France?"}], temperature=0
    )
    (choice,) = answer.choices
    assert "Paris" in choice.message.content and choice.message.role == "assistant"
    assert choice.finish_reason == "stop" and "<|im_end|>" not in choice.message.content
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_the_openai_client_streams_what_it_would_get_whole(real: Server):
    client = real.client()
    fields = dict(model=real.model, messages=HI, temperature=0, max_tokens=24, logprobs=True, top_logprobs=2)
    whole = client.chat.completions.create(**fields)
    chunks = list(client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    pieces = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert pieces[0].delta.role == "assistant" and all(piece.delta.role is None for piece in pieces[1:])
    assert "".join(piece.delta.content or "" for piece in pieces) == whole.choices[0].message.content
    assert pieces[-1].finish_reason == whole.choices[0].finish_reason
    tokens = [entry.token for piece in pieces if piece.logprobs for entry in piece.logprobs.content]
    assert tokens == [entry.token for entry in whole.choices[0].logprobs.content]
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens


def test_the_openai_client_completes_and_lists_models(real: Server):
    client = real.client()
    answer = client.completions.create(model=real.model, prompt="The capital of France is", max_tokens=3, temperature=0)
    streamed = client.completions.create(
        model=real.model, prompt="The capital of France is", max_tokens=3, temperature=0, stream=True
    )
    assert answer.choices[0].text.startswith(" Paris")
    assert "".join(chunk.choices[0].text for chunk in streamed) == answer.choices[0].text
    assert [model.id for model in client.models.list()] == [real.model]
    assert client.models.retrieve(real.model).id == real.model


# -- answers -----------------------------------------------------------------------------------------------------------


def test_several_answers_stream_each_with_role_text_and_reason(tiny: Server):
    fields = dict(n=3, seed=5, temperature=1, max_tokens=10, ignore_eos=True)
    whole = tiny.chat("Hi", **fields).json
    events = tiny.chat("Hi", **fields, stream=True).events
    for choice in whole["choices"]:
        index = choice["index"]
        pieces = [c for event in events for c in event["choices"] if c["index"] == index]
        assert pieces[0]["delta"] == {"role": "assistant", "content": ""}
        assert contents(events, index) == choice["message"]["content"]
        assert pieces[-1]["finish_reason"] == "length"


def test_max_completion_tokens_wins_over_max_tokens(tiny: Server):
    answer = tiny.chat("Hi", max_tokens=20, max_completion_tokens=3, ignore_eos=True).json
    assert answer["usage"]["completion_tokens"] == 3


def test_without_a_limit_an_answer_may_fill_the_context(tiny: Server):
    answer = tiny.chat("Hi", temperature=0, ignore_eos=True).json
    assert answer["usage"]["total_tokens"] == 512 and answer["choices"][0]["finish_reason"] == "length"


def test_logprobs_have_readable_tokens_and_true_bytes(tiny: Server):
    """The bytes of a part of a character are its own, not those of a replacement character."""
    fields = dict(temperature=2, seed=3, max_tokens=120, ignore_eos=True, logit_bias={"0": -100, "1": -100, "2": -100})
    answer = tiny.chat("日本", logprobs=True, top_logprobs=5, **fields).json
    entries = answer["choices"][0]["logprobs"]["content"]
    assert len(entries) == answer["usage"]["completion_tokens"]
    data = bytes(byte for entry in entries for byte in entry["bytes"])
    assert data.decode("utf-8", "replace") == answer["choices"][0]["message"]["content"]
    assert not any(entry["bytes"] == [239, 191, 189] for entry in entries)
    assert any(entry["bytes"] and entry["bytes"][0] >= 128 for entry in entries), "the sample should have partial bytes"
    for entry in entries:
        assert len(entry["top_logprobs"]) == 5
        values = [candidate["logprob"] for candidate in entry["top_logprobs"]]
        assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("fields", [{}, {"top_logprobs": 0}])
def test_logprobs_without_candidates_have_only_the_tokens_own(tiny: Server, fields: dict):
    answer = tiny.chat("Hi", logprobs=True, **fields, **GREEDY).json
    entries = answer["choices"][0]["logprobs"]["content"]
    assert len(entries) == 8 and all(entry["top_logprobs"] == [] and entry["logprob"] <= 0 for entry in entries)


def test_candidates_need_logprobs(tiny: Server):
    reply = tiny.chat("Hi", top_logprobs=2)
    assert (reply.status, reply.error["param"]) == (400, "top_logprobs")


# -- templates ---------------------------------------------------------------------------------------------------------


def test_a_template_writes_the_beginning_once_and_both_ways_agree(real: Server):
    tokenized = real.post("/tokenize", messages=HI).json["tokens"]
    assert prompt_ids(real, messages=HI) == tokenized
    assert tokenized[0] == 1 and tokenized.count(1) == 3  # <|im_start|>: the default system turn, the user, the answer


def test_a_final_message_is_continued_without_a_new_turn(tiny: Server):
    messages = [*HI, {"role": "assistant", "content": "Hello the"}]
    wishes = {"add_generation_prompt": False, "continue_final_message": True}
    tokens = tiny.post("/tokenize", messages=messages, **wishes).json["tokens"]
    assert prompt_ids(tiny, messages=messages, **wishes) == tokens
    assert tiny.post("/detokenize", tokens=tokens).json["prompt"].endswith("<|im_start|>assistant\nHello the")
    both = tiny.post("/v1/chat/completions", messages=messages, add_generation_prompt=True, continue_final_message=True)
    assert (both.status, both.error["param"]) == (400, "continue_final_message")


def test_no_generation_prompt_leaves_the_header_out_and_echo_repeats_the_last_message(tiny: Server):
    messages = [*HI, {"role": "assistant", "content": "Hello the"}]
    fields = dict(messages=messages, add_generation_prompt=False)
    tokens = prompt_ids(tiny, **fields)
    assert tiny.post("/detokenize", tokens=tokens).json["prompt"].endswith("Hello the<|im_end|>\n")
    plain = tiny.post("/v1/chat/completions", **fields, **GREEDY).json["choices"][0]["message"]
    echoed = tiny.post("/v1/chat/completions", **fields, echo=True, **GREEDY).json["choices"][0]["message"]
    assert echoed["content"] == "Hello the" + plain["content"] and echoed["role"] == "assistant"
    streamed = tiny.post("/v1/chat/completions", **fields, echo=True, stream=True, **GREEDY).events
    assert contents(streamed) == echoed["content"]


def test_internals_of_the_renderer_are_out_of_reach(tiny: Server):
    for kwargs in ({"tokenize": True}, {"chat_template": "x"}, {"messages": []}):
        reply = tiny.chat("Hi", chat_template_kwargs=kwargs)
        assert (reply.status, reply.error["param"]) == (400, "chat_template_kwargs")


def test_a_template_in_a_request_needs_the_servers_trust(tiny: Server, tiny_engine: Engine):
    template = "{{ messages[0].content }}|{{ colour }}"
    refused = tiny.chat("Hi", chat_template=template)
    assert (refused.status, refused.error["param"]) == (400, "chat_template")
    trusting = tiny_engine.serve(trust_request_chat_template=True, default_chat_template_kwargs={"colour": "red"})
    fields = dict(chat_template=template, return_prompt_text=True, max_tokens=1)
    assert trusting.chat("Hi", **fields).json["prompt_text"] == "Hi|red"
    assert trusting.chat("Hi", chat_template_kwargs={"colour": "blue"}, **fields).json["prompt_text"] == "Hi|blue"


def test_an_endless_template_is_stopped_and_delays_nobody(tiny_engine: Engine):
    trusting = tiny_engine.serve(trust_request_chat_template=True)
    bomb = "{% for i in range(10**9) %}x{% endfor %}"
    assert trusting.chat("Hi", chat_template=bomb).status == 400
    assert trusting.chat("Hi", **GREEDY).status == 200


def test_the_servers_template_replaces_the_models(tiny_engine: Engine):
    server = tiny_engine.serve(chat_template="{{ messages[-1].content }}!")
    assert server.chat("Hi", return_prompt_text=True, max_tokens=1).json["prompt_text"] == "Hi!"


# -- messages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "x", "tool_calls": []},
        {
            "role": "assistant",
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "assistant", "content": None},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "tool", "content": "3", "tool_call_id": "1"},
        {"role": "developer", "content": "be brief"},
    ],
)
def test_histories_of_every_kind_are_accepted(tiny: Server, message: dict):
    assert tiny.post("/v1/chat/completions", messages=[*HI, message, *HI], **GREEDY).status == 200


@pytest.mark.parametrize(
    ("messages", "name"),
    [
        ([], "messages"),
        ("Hi", "messages"),
        (None, "messages"),
        ([1], "messages"),
        ([{"content": "x"}], "messages"),
        ([{"role": "user", "content": 3}], "messages"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages"),
    ],
)
def test_what_is_no_conversation_is_refused(tiny: Server, messages, name: str):
    reply = tiny.post("/v1/chat/completions", messages=messages)
    assert (reply.status, reply.error["param"]) == (400, name)


def test_a_conversation_is_required(tiny: Server):
    reply = tiny.post("/v1/chat/completions", max_tokens=3)
    assert (reply.status, reply.error["param"]) == (400, "messages") and "messages" in reply.error["message"]


def test_pictures_and_sounds_are_refused_by_name(tiny: Server):
    for part in ({"type": "image_url", "image_url": {"url": "data:,"}}, {"type": "input_audio", "input_audio": {}}):
        reply = tiny.post("/v1/chat/completions", messages=[{"role": "user", "content": [part]}])
        assert reply.status == 400 and part["type"] in reply.error["message"]
