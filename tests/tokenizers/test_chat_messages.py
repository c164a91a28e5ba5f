"""Conversations in the OpenAI format -> plain messages for templates."""

from __future__ import annotations

import pytest

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.tokenizers.chat_messages import normalize_messages


def one(message, content_format="string"):
    return normalize_messages([message], content_format)[0]


def assistant(**fields):
    return {"role": "assistant", "content": "x", **fields}


def call(arguments):
    return {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def test_text_parts_become_one_string_or_stay_a_list():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert one({"role": "user", "content": parts})["content"] == "a\nb"
    assert one({"role": "user", "content": parts}, "openai")["content"] == parts
    assert one({"role": "user", "content": "a"}, "openai")["content"] == [{"type": "text", "text": "a"}]


@pytest.mark.parametrize("message", [{"role": "assistant"}, {"role": "assistant", "content": None}])
def test_missing_content_is_empty(message):
    assert one(message)["content"] == ""
    assert one(message, "openai")["content"] == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [('{"a": 1}', {"a": 1}), ({"a": 1}, {"a": 1}), ("", {}), (None, {}), ('{"é": ["x"]}', {"é": ["x"]})],
)
def test_tool_arguments_become_a_mapping(arguments, expected):
    """LocalAI#10256: templates that iterate over arguments got a string."""
    message = one(assistant(tool_calls=[call(arguments)]))
    assert message["tool_calls"][0]["function"]["arguments"] == expected


def test_a_call_that_was_put_together_from_a_stream_is_an_ordinary_one():
    streamed = one(assistant(tool_calls=[{**call("{}"), "index": 0}]))
    assert streamed == one(assistant(tool_calls=[call("{}")]))


@pytest.mark.parametrize("tool_calls", [[], None])
def test_empty_tool_calls_count_as_absent(tool_calls):
    assert "tool_calls" not in one(assistant(tool_calls=tool_calls))


def test_fields_that_are_none_are_dropped_and_others_kept():
    message = one(assistant(name=None, refusal=None, tool_call_id="t", custom={"k": (1, 2)}))
    assert message == {"role": "assistant", "content": "x", "tool_call_id": "t", "custom": {"k": [1, 2]}}


def test_reasoning_is_given_under_both_names():
    assert one(assistant(reasoning="r"))["reasoning_content"] == "r"
    assert one(assistant(reasoning_content="r"))["reasoning"] == "r"


def test_the_callers_messages_are_not_changed():
    original = assistant(tool_calls=[call('{"a": 1}')], content=[{"type": "text", "text": "a"}])
    one(original)
    assert original["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'
    assert original["content"] == [{"type": "text", "text": "a"}]


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([], "at least one message"),
        ("hi", "list of messages, got str"),
        ({"role": "user"}, "list of messages, got dict"),
        (["hi"], r"messages\[0\] must be an object"),
        ([{"content": "x"}], r"messages\[0\]\.role"),
        ([{"role": 3, "content": "x"}], r"messages\[0\]\.role"),
        ([{"role": "user", "content": 3}], r"messages\[0\]\.content must be"),
        ([{"role": "user", "content": [3]}], r"messages\[0\]\.content\[0\]"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"content\[0\]\.text must be a string"),
        ([{"role": "user", "content": "x", "name": 5}], r"messages\[0\]\.name must be a string, got 5"),
        ([{"role": "tool", "content": "x", "tool_call_id": 7}], r"\.tool_call_id must be a string"),
        ([assistant(reasoning=["a"])], r"\.reasoning must be a string"),
        ([assistant(tool_calls={})], r"tool_calls must be a list"),
        ([assistant(tool_calls=[{**call("{}"), "id": 5}])], r"tool_calls\[0\]\.id must be a string, got 5"),
        ([assistant(tool_calls=3)], r"tool_calls must be a list"),
        ([assistant(tool_calls=["x"])], r"tool_calls\[0\] must be an object"),
        ([assistant(tool_calls=[call("{broken")])], r"tool_calls\[0\]\.function\.arguments must be JSON"),
        ([assistant(tool_calls=[call('{"a": NaN}')])], "NaN is not a finite number"),
        ([assistant(tool_calls=[call('{"a": [-1e999]}')])], "-1e999 is not a finite number"),
        ([assistant(tool_calls=[call("[" * 100_000)])], r"tool_calls\[0\]\.function\.arguments must be JSON"),
        ([assistant(custom=nested(1000))], "nested deeper than 100 levels"),
        ([assistant(custom=object())], "plain JSON values, got object"),
    ],
)
def test_wrong_conversations_are_refused_with_the_place(messages, complaint):
    with pytest.raises(InvalidRequestError, match=complaint) as caught:
        normalize_messages(messages, "string")
    assert caught.value.parameter == "messages"


def test_a_part_whose_type_is_no_text_is_refused():
    with pytest.raises(UnsupportedError, match=r"content\[0\] has type \[\]"):
        normalize_messages([{"role": "user", "content": [{"type": [], "text": "a"}]}], "string")


def test_images_are_refused_as_unsupported():
    part = {"type": "image_url", "image_url": {"url": "data:,"}}
    with pytest.raises(UnsupportedError, match=r"image_url.*text only"):
        one({"role": "user", "content": [part]})
