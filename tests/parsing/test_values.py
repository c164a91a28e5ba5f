"""Values that are no JSON in the output: typed by schema, and Python literals."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.parsing.interface import Tool
from octavo.parsing.schema_types import ANY_TYPE, ONLY_STRING, json_of_text, parameter_types
from tests.parsing.encoders import braces, python_call
from tests.parsing.helpers import cut, maker, streamed, whole

TYPED = [
    ({"type": "string"}, "5", "5"),
    ({"type": "string"}, "null", "null"),
    ({"type": "string"}, ' a\n"b" ', ' a\n"b" '),
    ({"type": "integer"}, " 5\n", 5),
    ({"type": "integer"}, "-123456789012345678901234567890", -123456789012345678901234567890),
    ({"type": "integer"}, "007", 7),
    ({"type": "integer"}, "five", "five"),
    ({"type": "number"}, "1e-3", 0.001),
    ({"type": "number"}, "5", 5),
    ({"type": "number"}, ".5", 0.5),
    ({"type": "number"}, "nan", "nan"),
    ({"type": "boolean"}, "True", True),
    ({"type": "boolean"}, "false", False),
    ({"type": "boolean"}, "maybe", "maybe"),
    ({"type": "null"}, "None", None),
    ({"type": "object"}, '{"a": [1, "}"]}', {"a": [1, "}"]}),
    ({"type": "object"}, "{'a': None, 'b': (1,)}", {"a": None, "b": [1]}),
    ({"type": "object"}, "{broken", "{broken"),
    ({"type": "object"}, "[1]", "[1]"),
    ({"type": "object"}, '{"a": "x\n\ty"}', {"a": "x\n\ty"}),
    ({"type": "array"}, "[NaN]", "[NaN]"),
    ({"type": "array"}, "[1, [true]]", [1, [True]]),
    ({"type": "array"}, "[" * 100_000, "[" * 100_000),
    ({"type": ["string", "null"]}, "null", None),
    ({"type": ["string", "null"]}, "text", "text"),
    ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "5", 5),
    ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "5 m", "5 m"),
    ({"oneOf": [{"$ref": "#/$defs/T"}, {"type": "null"}]}, '{"x": 1}', {"x": 1}),
    ({"$ref": "#/$defs/T"}, '{"x": 1}', {"x": 1}),
    ({"$ref": "#/$defs/loop"}, "5", "5"),
    ({"enum": ["1", "2"]}, "1", "1"),
    ({"enum": [1, 2]}, "1", 1),
    ({"const": True}, "true", True),
    ({}, "5", "5"),
    (True, "5", "5"),
]


@pytest.mark.parametrize(("schema", "text", "value"), TYPED)
def test_a_parameters_text_gets_the_type_that_the_schema_gives_it(schema: Any, text: str, value: object) -> None:
    definitions = {"T": {"type": "object"}, "loop": {"$ref": "#/$defs/loop"}}
    tool = Tool("t", {"properties": {"p": schema}, "$defs": definitions})
    types = parameter_types(tool, "p", ONLY_STRING)
    found = json.dumps(text) if types == ONLY_STRING else json_of_text(text, types)
    assert json.loads(found) == value
    assert type(json.loads(found)) is type(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("null", None),
        (" None\n", None),
        ("", ""),
        ("nul", "nul"),
        ("nullable text", "nullable text"),
        ('a\n "long" text', 'a\n "long" text'),
        (" " * 200 + "x", " " * 200 + "x"),
    ],
)
def test_text_that_may_be_null_is_streamed_once_it_cannot_be(value: str, expected: str | None) -> None:
    text = f"<tool_call>\n<function=book>\n<parameter=note>\n{value}\n</parameter>\n</function>\n</tool_call>"
    result = whole(maker("qwen3_coder"), text)
    assert json.loads(result.calls[0][1]) == {"note": expected}
    assert streamed(maker("qwen3_coder"), text) == result
    parser = maker("qwen3_coder")()
    parser.feed("<tool_call>\n<function=book>\n<parameter=note>\n")
    assert not parser.feed("nul")
    assert parser.feed("lable")
    cut_off = text[: text.index("</parameter>") - 1]
    assert streamed(maker("qwen3_coder"), cut_off) == whole(maker("qwen3_coder"), cut_off)


def test_undeclared_parameters_have_the_formats_usual_types() -> None:
    for tool in (None, Tool("t"), Tool("t", {}), Tool("t", {"properties": {"q": {"type": "integer"}}})):
        assert parameter_types(tool, "p", ANY_TYPE) == ANY_TYPE
        assert parameter_types(tool, "p", ONLY_STRING) == ONLY_STRING


literals = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4),
    max_leaves=12,
)
KEYS = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)


@settings(max_examples=150, deadline=None)
@given(arguments=st.dictionaries(KEYS, literals, max_size=4), seed=st.integers(0, 1000))
def test_python_literals_of_every_kind_become_their_json(arguments: dict[str, Any], seed: int) -> None:
    text = f"[{python_call(('f', arguments))}]"
    result = whole(maker("pythonic"), text)
    assert [call[2] for call in result.calls] == [True], text
    assert json.loads(result.calls[0][1]) == arguments
    assert streamed(maker("pythonic"), cut(text, random.Random(seed))) == result


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        (r"'it\'s'", "it's"),
        ('"""a "quoted"\ntext"""', 'a "quoted"\ntext'),
        ("'''x'''", "x"),
        ("''", ""),
        ('""', ""),
        (r"'\x41\u00e9\U0001f642\101\0'", "Aé🙂A\0"),
        (r"'\ud83d\ude42'", "🙂"),
        (r"'\d \w'", r"\d \w"),
        (r"'\x4 \u12g'", r"\x4 \u12g"),
        ("'a\\\nb'", "ab"),
        ("(1, 2)", [1, 2]),
        ("()", []),
        ("[1, 2,]", [1, 2]),
        ("{'a': 1,}", {"a": 1}),
        ("{1: 2, None: 3}", {"1": 2, "null": 3}),
        ("0x1F", 31),
        ("1_000", 1000),
        ("+5", 5),
        ("-.5", -0.5),
        ("true", True),
        ("null", None),
    ],
)
def test_spellings_of_python_literals(literal: str, value: object) -> None:
    text = f"[f(a = {literal} , b=1)]"
    result = whole(maker("pythonic"), text)
    assert json.loads(result.calls[0][1]) == {"a": value, "b": 1}
    assert streamed(maker("pythonic"), text) == result


@settings(max_examples=100, deadline=None)
@given(
    arguments=st.dictionaries(
        KEYS,
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_characters="<")),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
            max_leaves=8,
        ),
        max_size=4,
    ),
    seed=st.integers(0, 1000),
)
def test_brace_objects_of_every_kind_become_their_json(arguments: dict[str, Any], seed: int) -> None:
    text = f"<start_function_call>call:f{braces(arguments, '<escape>')}<end_function_call>"
    result = whole(maker("functiongemma"), text)
    assert [call[2] for call in result.calls] == [True], text
    assert json.loads(result.calls[0][1]) == arguments
    assert streamed(maker("functiongemma"), cut(text, random.Random(seed))) == result


@settings(max_examples=200, deadline=None)
@given(arguments=st.dictionaries(st.text(), literals, max_size=4), ascii_only=st.booleans(), seed=st.integers(0, 1000))
def test_json_of_every_kind_is_passed_on_as_it_is(arguments: dict[str, Any], ascii_only: bool, seed: int) -> None:
    raw = json.dumps(arguments, ensure_ascii=ascii_only)
    text = f'<tool_call>{{"name": "f", "arguments": {raw}}}</tool_call>'
    assert whole(maker("hermes"), text).calls == (("f", raw, True),)
    assert streamed(maker("hermes"), cut(text, random.Random(seed))).calls == (("f", raw, True),)


@settings(max_examples=150, deadline=None)
@given(value=st.text(st.characters(exclude_characters="\r")), seed=st.integers(0, 1000))
def test_any_text_survives_in_a_tag(value: str, seed: int) -> None:
    text = f"<tool_call>\n<function=say>\n<parameter=text>\n{value}\n</parameter>\n</function>\n</tool_call>"
    result = streamed(maker("qwen3_coder"), cut(text, random.Random(seed)))
    if "</parameter>" not in value:
        assert json.loads(result.calls[0][1]) == {"text": value}
