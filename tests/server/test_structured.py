"""response_format, structured_outputs, text.format and output_config: followed, or refused with the field named."""

from __future__ import annotations

import json
import threading
from typing import Any

import anthropic
import pytest

from tests.server.conftest import Server, wait_until

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
ASK = "Describe a person as JSON."


def content(reply) -> str:
    assert reply.status == 200, reply.body
    return reply.json["choices"][0]["message"]["content"]


def assert_person(text: str) -> None:
    person = json.loads(text)
    assert set(person) == {"name", "age"} and 0 <= person["age"] <= 99 and len(person["name"]) <= 12


# -- followed ----------------------------------------------------------------------------------------------------------


def test_chats_follow_each_response_format(real: Server):
    reply = real.chat(ASK, response_format=FORMAT, temperature=0)
    assert_person(content(reply))
    assert reply.json["choices"][0]["finish_reason"] == "stop"
    assert content(real.chat(ASK, response_format={"type": "json_object"}, max_tokens=40)).startswith("{")
    assert content(real.chat("Hi", response_format={"type": "text"}, max_tokens=4))
    tag = {"begin": "<p>", "schema": PERSON, "end": "</p>"}
    free = content(
        real.chat(
            "Hi", response_format={"type": "structural_tag", "structures": [tag], "triggers": ["<p>"]}, max_tokens=4
        )
    )
    assert free


def test_streams_follow_a_response_format(real: Server):
    events = real.chat(ASK, response_format=FORMAT, temperature=0, stream=True).events
    text = "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
    assert_person(text)
    assert text == content(real.chat(ASK, response_format=FORMAT, temperature=0))


def test_completions_follow_structured_outputs(real: Server):
    def text(**fields: Any) -> str:
        reply = real.complete(prompt="Answer: ", max_tokens=40, temperature=1, **fields)
        assert reply.status == 200, reply.body
        return reply.json["choices"][0]["text"]

    assert text(structured_outputs={"choice": ["开心", "难过"]}) in ("开心", "难过")
    assert text(structured_outputs={"regex": "[0-9]{3}"}).isdigit()
    assert text(structured_outputs={"grammar": 'root ::= "yes" | "no"'}) in ("yes", "no")
    assert_person(text(structured_outputs={"json": PERSON}))
    assert_person(text(response_format=FORMAT))
    assert json.loads(text(structured_outputs={"json": {"enum": ["é"]}})) == "é"
    assert text(structured_outputs={}) and text(structured_outputs=None, response_format=None)


def test_white_space_can_be_switched_on(real: Server):
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    pretty = {"json": schema, "whitespace_pattern": "\n"}
    assert content(real.chat(ASK, structured_outputs={"json": schema}, temperature=0)) == '{"a":1}'
    assert content(real.chat(ASK, structured_outputs=pretty, temperature=0)).replace("\n", "") == '{"a":1}'


def test_several_answers_follow_the_format_each(real: Server):
    reply = real.chat(ASK, response_format=FORMAT, n=3, temperature=1.2, seed=5)
    texts = [choice["message"]["content"] for choice in reply.json["choices"]]
    assert len(set(texts)) > 1
    for text in texts:
        assert_person(text)


def test_openai_client_parses_into_models(real: Server):
    pydantic = pytest.importorskip("pydantic")

    class Person(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="forbid")
        name: str
        age: int

    completion = real.client().chat.completions.parse(
        model=real.model,
        messages=[{"role": "user", "content": ASK}],
        response_format=Person,
        temperature=0,
        max_tokens=200,
    )
    assert isinstance(completion.choices[0].message.parsed, Person)
    response = real.client().responses.parse(
        model=real.model, input=ASK, text_format=Person, temperature=0, max_output_tokens=200
    )
    assert isinstance(response.output_parsed, Person)


def test_responses_follow_structured_outputs(real: Server):
    reply = real.post("/v1/responses", input="Answer: ", structured_outputs={"choice": ["开心", "难过"]})
    assert reply.json["output"][0]["content"][0]["text"] in ("开心", "难过") and reply.json["status"] == "completed"


def test_messages_follow_output_config(real: Server):
    client = anthropic.Anthropic(base_url=real.url, api_key="none", max_retries=0)
    message = client.messages.create(
        model=real.model, max_tokens=60, messages=[{"role": "user", "content": ASK}],
        extra_body={"temperature": 0, "output_config": {"format": {"type": "json_schema", "schema": PERSON}}},
    )  # fmt: skip
    assert_person(message.content[0].text)
    assert message.stop_reason == "end_turn"


def test_limit_inside_a_value_is_told(real: Server):
    reply = real.chat(ASK, response_format=FORMAT, max_tokens=3)
    assert reply.json["choices"][0]["finish_reason"] == "length"


def test_request_whose_own_parameters_leave_nothing_is_its_authors_fault(real: Server):
    cases = [
        ({"structured_outputs": {"choice": ["yes"]}, "allowed_token_ids": [0]}, "no token is left"),
        ({"structured_outputs": {"json_object": True}, "bad_words": ["{"], "allowed_token_ids": [0]}, "no token is"),
        # passes the trial when it is compiled, and grows beyond the limits of a step later on
        ({"structured_outputs": {"regex": r"(\p{L}+\p{N}*\P{L}?){1,300}x"}, "max_tokens": 60}, "cannot be enforced"),
    ]
    for fields, reason in cases:
        reply = real.chat("Hi", temperature=0, **fields)
        assert reply.status == 400 and reason in reply.error["message"], reply.body
        streamed = real.chat("Hi", temperature=0, stream=True, **fields)
        failure = streamed.json if streamed.status == 400 else streamed.events[-1]
        assert failure["error"]["code"] == 400 and reason in failure["error"]["message"]
    assert content(real.chat("Hi", structured_outputs={"choice": ["yes"]})) == "yes"


# -- refused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        ("/v1/responses", "text", {"formats": {"type": "json_object"}}),
        ("/v1/responses", "reasoning", {"efforts": "low"}),
        ("/v1/messages", "output_config", {"schema": PERSON}),
    ],
)
def test_members_that_nobody_reads_are_refused_unless_they_ask_for_nothing(tiny: Server, path, field, value):
    turns = {"input": "Hi", "max_output_tokens": 16}
    if path == "/v1/messages":
        turns = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    reply = tiny.post(path, model=tiny.model, **turns, **{field: value})
    assert reply.status == 400 and f"{field}.{next(iter(value))}" in reply.json["error"]["message"]
    assert tiny.post(path, model=tiny.model, **turns, **{field: dict.fromkeys(value)}).status == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema", "schema": PERSON}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": None}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}}}, "response_format"),
        ({"response_format": {"type": "foo"}}, "response_format.type"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": FORMAT, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"response_format": {"type": "structural_tag"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {"regexp": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": "a+"}, "structured_outputs"),
        ({"structured_outputs": {"regex": "(?=a)b"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": r"(a)\1"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": "a" * 2**20}}, "structured_outputs.regex"),
        ({"structured_outputs": {"grammar": "start: missing"}}, "structured_outputs.grammar"),
        (
            {"structured_outputs": {"grammar": 'start: %json {"const": -9223372036854775808}'}},
            "structured_outputs.grammar",
        ),
        ({"structured_outputs": {"json": {"items": {"multipleOf": 0.01}}}}, "structured_outputs.json"),
        ({"structured_outputs": {"regex": "a"}, "use_beam_search": True, "n": 2}, "structured_outputs"),
        ({"guided_regex": "a+"}, "guided_regex"),
    ],
)
def test_what_cannot_be_followed_is_refused_before_it_runs(tiny: Server, fields, param):
    for stream in (False, True):
        if stream and fields.get("use_beam_search"):
            continue
        for endpoint in (tiny.complete, tiny.chat):
            prompt = {"prompt": "x"} if endpoint == tiny.complete else {}
            reply = endpoint(**prompt, max_tokens=2, stream=stream, **fields)
            assert reply.status == 400, reply.body
            assert reply.error["param"] == param
    assert tiny.complete(prompt="x", max_tokens=1).status == 200


def test_deeply_nested_schema_is_refused(tiny: Server):
    schema: dict[str, Any] = {}
    for _ in range(200):
        schema = {"items": schema}
    reply = tiny.complete(prompt="x", max_tokens=2, structured_outputs={"json": schema})
    assert reply.status == 400 and "nested" in reply.error["message"]


@pytest.mark.parametrize(
    "wish", [{"type": "json_object"}, {"type": "json_schema"}, {"type": "json_schema", "schema": 5}, "text"]
)
def test_wrong_output_configs_are_refused(tiny: Server, wish):
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "output_config": {"format": wish}}
    assert tiny.post("/v1/messages", **body).status == 400


def test_bombs_leave_others_alone(tiny: Server):
    """While grammars that crash or take long are compiled, plain requests and known grammars are answered."""
    known = {"regex": "[ab]{4}"}
    assert tiny.complete(prompt="x", max_tokens=8, structured_outputs=known).status == 200
    slow = {"grammar": "root ::= " + '("a" | "b")*' * 4000}
    replies: list[int] = []
    bombs = [
        threading.Thread(target=lambda: replies.append(tiny.complete(prompt="x", structured_outputs=slow).status))
        for _ in range(2)
    ]
    for bomb in bombs:
        bomb.start()
    wait_until(lambda: any(bomb.is_alive() for bomb in bombs))
    assert tiny.complete(prompt="x", max_tokens=4).status == 200
    assert tiny.complete(prompt="x", max_tokens=8, structured_outputs=known).status == 200
    for bomb in bombs:
        bomb.join(60)
    assert replies == [400, 400]
