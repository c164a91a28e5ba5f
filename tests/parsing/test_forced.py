"""Calls that a request demands: the schema that forces them, and reading what it forces."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from octavo.errors import InvalidRequestError
from octavo.parsing.forced import forced_calls_format, forced_calls_schema
from octavo.parsing.interface import Tool
from octavo.parsing.parser import StreamParser, create_parser
from octavo.parsing.reasoning import REASONING_FORMATS
from tests.parsing.helpers import TOOLS, Result, cut, streamed, whole

POINT = {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}
DRAW = Tool(
    "draw",
    {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "points": {"type": "array", "items": {"$ref": "#/$defs/Point"}},
            "next": {"$ref": "#"},
            "$ref": {"const": {"$ref": "#/$defs/Point"}},
            "like": {"$ref": "#/properties/points"},
            "default": {"$ref": "#/$defs/Point"},
        },
        "$defs": {"Point": POINT},
    },
)


def forced(name: str | None, reasoning: str | None = None, *, is_reasoning: bool = False) -> StreamParser:
    return create_parser(
        forced_calls_format(name),
        REASONING_FORMATS[reasoning] if reasoning else None,
        tools=TOOLS,
        is_reasoning=is_reasoning,
    )


def test_a_named_call_has_the_functions_own_schema() -> None:
    tools = [Tool("f"), Tool("weather", POINT), Tool("open", {})]
    assert forced_calls_schema(tools, "weather") == POINT
    assert forced_calls_schema(tools, "f") == {"type": "object"}
    assert forced_calls_schema(tools, "open") == {"type": "object"}


def test_required_calls_are_an_array_of_names_with_their_own_parameters() -> None:
    schema = forced_calls_schema([Tool("f"), Tool("weather", POINT)], None)
    assert (schema["type"], schema["minItems"], "maxItems" in schema) == ("array", 1, False)
    branches = schema["items"]["anyOf"]
    assert [branch["properties"]["name"]["const"] for branch in branches] == ["f", "weather"]
    assert [branch["properties"]["parameters"] for branch in branches] == [{"type": "object"}, POINT]
    for branch in branches:
        assert branch["required"] == ["name", "parameters"]
        assert branch["additionalProperties"] is False
    assert forced_calls_schema([Tool("f")], None, parallel=False)["maxItems"] == 1


def resolve(schema: Any, reference: str) -> Any:
    for part in reference[2:].split("/"):
        schema = schema[part]
    return schema


def test_references_inside_parameters_still_point_where_they_did() -> None:
    schema = forced_calls_schema([Tool("f", {"$defs": {"Point": {"type": "string"}}}), DRAW], None)
    draw = resolve(schema, schema["items"]["anyOf"][1]["properties"]["parameters"]["$ref"])
    properties = draw["properties"]
    assert resolve(schema, properties["points"]["items"]["$ref"]) == POINT
    assert resolve(schema, properties["next"]["$ref"]) is draw
    assert resolve(schema, properties["like"]["$ref"]) is properties["points"]
    assert resolve(schema, properties["default"]["$ref"]) == POINT  # a property that is called like a keyword
    assert properties["$ref"] == {"const": {"$ref": "#/$defs/Point"}}  # a property of that name, and a mere value
    assert "$schema" not in draw
    assert forced_calls_schema([DRAW], "draw") == DRAW.parameters


def test_what_cannot_be_forced_is_refused() -> None:
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(200):
        deep = {"type": "object", "properties": {"a": deep}}
    with pytest.raises(InvalidRequestError, match="nested"):
        forced_calls_schema([Tool("f", deep)], None)


ARGUMENTS = '{"items":[{"id":1,"tags":["}","[{\\""]}],"note":"naïve 日本 🙂 \\\\","when":null}'
REQUIRED = [
    (f'[{{"name":"book","parameters":{ARGUMENTS}}}]', (("book", ARGUMENTS, True),)),
    (f'[{{"name": "book", "parameters": {ARGUMENTS}}}, {{"name":"now","parameters":{{}}}}]',
     (("book", ARGUMENTS, True), ("now", "{}", True))),
    ('\n[ {\n "parameters" : {"a": 1},\n "name" : "f" } ]\n', (("f", '{"a": 1}', True),)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "calls"), REQUIRED)
def test_required_calls_are_read_however_they_are_cut(text: str, calls: tuple[tuple[str, str, bool], ...]) -> None:
    expected = Result(None, None, calls)
    assert whole(lambda: forced(None), text) == expected
    assert streamed(lambda: forced(None), text) == expected
    generator = random.Random(1)
    for _ in range(300):
        assert streamed(lambda: forced(None), cut(text, generator)) == expected


def test_a_named_call_is_read_however_it_is_cut() -> None:
    expected = Result(None, None, (("book", ARGUMENTS, True),))
    generator = random.Random(1)
    for text in (ARGUMENTS, f" {ARGUMENTS}\n"):
        assert whole(lambda: forced("book"), text) == expected
        assert streamed(lambda: forced("book"), text) == expected
        for _ in range(300):
            assert streamed(lambda: forced("book"), cut(text, generator)) == expected


def test_what_follows_a_named_call_is_content() -> None:
    expected = Result(None, '{"b": 2}', (("f", '{"a": 1}', True),))
    assert whole(lambda: forced("f"), '{"a": 1}{"b": 2}') == expected
    assert streamed(lambda: forced("f"), '{"a": 1}{"b": 2}') == expected


@pytest.mark.parametrize("name", ["f", None])
@pytest.mark.parametrize("reasoning", [None, "qwen3", "openai_gptoss"])
def test_any_mixture_ends_and_is_the_same_however_it_is_cut(name: str | None, reasoning: str | None) -> None:
    generator = random.Random(2)
    pool = ["{", "}", "[", "]", '"', ",", ":", " ", '{"name":"f","parameters":{}}', '{"a": 1}', "x", "\\", "</think>"]
    pool += ["<think>", "<|end|>", "<|channel|>final<|message|>"]
    for _ in range(300):
        text = "".join(generator.choice(pool) for _ in range(generator.randrange(1, 15)))
        result = whole(lambda: forced(name, reasoning), text)
        assert streamed(lambda: forced(name, reasoning), text) == result, text
        assert streamed(lambda: forced(name, reasoning), cut(text, generator)) == result, text


def test_a_forced_call_that_does_not_end_is_incomplete() -> None:
    text = REQUIRED[1][0]
    for length in range(len(text)):
        result = whole(lambda: forced(None), text[:length])
        assert streamed(lambda: forced(None), text[:length]) == result
        assert not result.content  # what breaks off before or between calls is no text for anybody
    for length in range(1, len(ARGUMENTS)):
        result = whole(lambda: forced("book"), ARGUMENTS[:length])
        assert result == Result(None, None, (("book", ARGUMENTS[:length], False),))


@pytest.mark.parametrize("name", ["book", None])
def test_forced_calls_come_after_the_reasoning(name: str | None) -> None:
    output = ARGUMENTS if name else f'[{{"name":"book","parameters":{ARGUMENTS}}}]'
    expected = Result('Hm [{"name": 1}]', None, (("book", ARGUMENTS, True),))
    text = f'Hm [{{"name": 1}}]</think>\n\n{output}'
    assert streamed(lambda: forced(name, "qwen3", is_reasoning=True), text) == expected
    for header in ("<|start|>assistant<|channel|>final<|message|>", ""):
        text = f'<|channel|>analysis<|message|>Hm [{{"name": 1}}]<|end|>{header}{output}'
        assert whole(lambda: forced(name, "openai_gptoss"), text) == expected
        assert streamed(lambda: forced(name, "openai_gptoss"), text) == expected


def test_parameters_of_every_declared_type_come_out_as_json() -> None:
    for name, arguments in [("calc", {"x": 1.5}), ("say", {"text": '}"{'}), ("now", {})]:
        result = whole(lambda name=name: forced(name), json.dumps(arguments))  # type: ignore[misc]
        assert json.loads(result.calls[0][1]) == arguments
