"""What cannot be enforced is refused with its keyword and place; no schema takes the preparation or a process down."""

from __future__ import annotations

import copy
import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from octavo.errors import InvalidRequestError
from octavo.structured.backend import GrammarError
from octavo.structured.json_schema import SchemaRefusedError, prepare_schema
from octavo.structured.messages import GrammarJob, JsonStyle
from octavo.structured.source import lark_spec
from tests.structured.json_schema.random_schemas import random_document

REFUSED: list[tuple[Any, str, str]] = [
    ({"properties": {"a": {"anyOf": [{"type": "array", "uniqueItems": True}, {"items": {"const": 1}, "minItems": 2}]}}},
     "uniqueItems", "/properties/a"),
    ({"$ref": "https://example.com/other.json"}, "$ref", ""),
    ({"$ref": "#/$defs/absent"}, "$ref", ""),
    ({"$ref": "#"}, "$ref", ""),
    ({"allOf": [{"anyOf": [{"$ref": "#"}]}]}, "$ref", ""),
    ({"items": {"pattern": r"(a)\1"}}, "pattern", "/items"),
    ({"items": {"pattern": "(a"}}, "pattern", "/items"),
    ({"type": "text"}, "type", ""),
    ({"required": "a"}, "required", ""),
    ({"minLength": -1}, "minLength", ""),
    ({"maximum": "3"}, "maximum", ""),
    ({"anyOf": []}, "anyOf", ""),
    ({"properties": {"a~b/c": {"type": 3}}}, "type", "/properties/a~0b~1c"),
    ({"type": "number", "multipleOf": 0.01}, "multipleOf", ""),
    ({"type": "number", "multipleOf": 0}, "multipleOf", ""),
    ({"not": {"type": "integer"}}, "not", ""),
    ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "oneOf", ""),
    ({"type": "object", "minProperties": 2}, "minProperties", ""),
    ({"const": -(2**63)}, "enum", ""),
    ({"enum": [2**53 + 1]}, "enum", ""),
    ({"const": "\x00"}, "enum", ""),
    ({"$schema": "http://json-schema.org/draft-03/schema#"}, "$schema", ""),
    (False, "", ""),
    ({"type": "object", "properties": {"a": {"type": "string", "minLength": 3, "maxLength": 2}}, "required": ["a"]},
     "type, minLength, maxLength", "/properties/a"),
    ({"$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"]}},
      "$ref": "#/$defs/n"}, "type, properties, required", "/$defs/n"),
    ({"const": float("nan")}, "", "/const"),
    ({"const": "\ud800"}, "", "/const"),
    ([], "", ""),
    ({"maximum": 10**5000}, "", "/maximum"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "keyword", "pointer"), REFUSED, ids=[str(index) for index in range(len(REFUSED))])
def test_refusal_names_keyword_and_place(schema: Any, keyword: str, pointer: str) -> None:
    with pytest.raises(SchemaRefusedError) as caught:
        prepare_schema(schema)
    assert isinstance(caught.value, InvalidRequestError)
    assert (caught.value.keyword, caught.value.pointer) == (keyword, pointer)
    assert keyword in str(caught.value)
    assert f"#{pointer}" in str(caught.value)


@pytest.mark.parametrize("seed", range(4))
def test_every_refusal_names_a_keyword_and_its_place(seed: int) -> None:
    """Whatever is refused: the suite's schemas, and random ones in which every keyword meets every other."""
    lines = (Path(__file__).parent / "data" / "suite.jsonl").read_text(encoding="utf-8").splitlines()
    schemas = [{"$schema": line[1], **line[2]} for line in map(json.loads, lines[seed::4]) if isinstance(line[2], dict)]
    schemas += [random_document(random.Random(10_000 * seed + index)) for index in range(150)]
    num_refused = 0
    for schema in schemas:
        try:
            lark_spec(GrammarJob("json", json.dumps(schema), JsonStyle()))
        except GrammarError as error:
            num_refused += 1
            assert re.match(r"keyword '[$\w, ]+' at #", str(error)), (schema, error)
    assert num_refused > 10


def nested(depth: int, wrap: str) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = {"items": schema} if wrap == "items" else {wrap: [schema, {"type": "null"}]}
    return schema


def chain(length: int) -> Any:
    definitions: dict[str, Any] = {f"d{i}": {"items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(length)}
    return {"$defs": {**definitions, f"d{length}": {"type": "null"}}, "$ref": "#/$defs/d0"}


def in_place_chain(length: int) -> Any:
    definitions: dict[str, Any] = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}]} for i in range(length)}
    return {"$defs": {**definitions, f"d{length}": {"type": "null"}}, "$ref": "#/$defs/d0"}


def product(count: int, keyword: str) -> Any:
    return {"allOf": [{keyword: [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(count)]}


BOMBS: dict[str, Any] = {
    "deep items": nested(100_000, "items"),
    "deep anyOf": nested(120, "anyOf"),
    "deep oneOf": nested(120, "oneOf"),
    "long chain of items": chain(3000),
    "long chain in place": in_place_chain(3000),
    "anyOf product": product(40, "anyOf"),
    "oneOf product": product(40, "oneOf"),
    "wide oneOf": {"oneOf": [{"properties": {f"p{i}": {"type": "string"}}} for i in range(400)]},
    "many dependencies": {"dependentRequired": {f"a{i}": [f"b{i}"] for i in range(60)}},
    "doubling references": {
        "$defs": {f"d{i}": {"anyOf": [{"items": {"$ref": f"#/$defs/d{i + 1}"}}] * 2} for i in range(60)}
        | {"d60": {"type": "null"}},
        "$ref": "#/$defs/d0",
    },
    "huge enum": {"enum": list(range(300_000))},
    "many properties with minProperties": {"properties": {f"p{i}": {} for i in range(60)}, "minProperties": 30},
    "pattern bomb": {"type": "string", "pattern": "(x{1,1000}){1,1000}", "enum": ["x" * 1000]},
    "pattern exponential in re": {"enum": ["a" * 5000 + "b"], "pattern": "^(a+)+$"},
    "pattern of one megabyte": {"pattern": "a" * 1_000_000},
    "nested groups": {"pattern": "(" * 5000 + "a" + ")" * 5000},
    "negated large pattern": {"type": "string", "not": {"pattern": "a.{12}b.{12}c"}},
    "looks around": {"pattern": "".join(f"(?=.*{chr(97 + i)}{{5}})" for i in range(20))},
    "contained many": {"type": "array", "contains": {"minimum": 1}, "minContains": 500},
    "contained many of more": {"type": "array", "contains": {"const": 1}, "minContains": 30, "maxItems": 400},
    "unique permutations": {"type": "array", "uniqueItems": True, "items": {"enum": list(range(200))}},
    "overlapping patterns": {"patternProperties": {f"{chr(97 + i)}.*x": {"minimum": i} for i in range(20)}},
    "references in a circle": {
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        "items": {"$ref": "#/$defs/a"},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_bomb_is_prepared_or_refused(name: str) -> None:
    """Work is counted, so that this comes to an end; a result, if any, is of bounded size."""
    try:
        prepared = prepare_schema(BOMBS[name])
    except SchemaRefusedError:
        return
    assert len(json.dumps(prepared)) < 3_000_000


EXTREMES: list[Any] = [
    *({"type": kind, "minimum": bound} for kind in ("integer", "number") for bound in (-(2**63), 2**63, 1e300, -1e300)),
    *(
        {"type": kind, "maximum": bound}
        for kind in ("integer", "number")
        for bound in (-(2**63), 2**64, 5e-324, -1e300)
    ),
    *({"const": value} for value in (-(2**63), 2**63, 1e300, 1e-300, -0.0, 10**400)),
    *({"type": "integer", "multipleOf": step} for step in (2**32, 10**18, 1e-300, 0.5)),
    {"type": "integer", "minimum": -(2**63), "maximum": -(2**63)},
    *({"type": "string", keyword: 10**12} for keyword in ("minLength", "maxLength")),
    *({"type": "array", keyword: 10**12} for keyword in ("minItems", "maxItems")),
    *({"type": "object", keyword: 10**12} for keyword in ("minProperties", "maxProperties")),
    chain(390),
    nested(60, "items"),
]


def test_nothing_that_is_prepared_ends_the_backend() -> None:
    """In another process, since llguidance ends its own on some integers and on deep references."""
    prepared = []
    for schema in EXTREMES:
        try:
            prepared.append(prepare_schema(schema))
        except SchemaRefusedError:
            continue
    assert len(prepared) >= 15
    code = (
        "import json, sys, llguidance\n"
        "for line in sys.stdin:\n"
        "    grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(json.loads(line)))\n"
        "    print(llguidance.LLMatcher.validate_grammar(grammar) or 'ok')\n"
    )
    lines = "".join(json.dumps(schema) + "\n" for schema in prepared)
    result = subprocess.run([sys.executable, "-c", code], input=lines, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split("\n")[:-1] == ["ok"] * len(prepared)


def test_preparation_is_a_pure_function() -> None:
    schema: Any = {
        "properties": {"b": {"oneOf": [{"type": "string"}, {"$ref": "#/$defs/x"}]}, "a": {"const": [1]}},
        "$defs": {"x": {"type": "object", "properties": {"self": {"$ref": "#"}}}},
    }
    before = copy.deepcopy(schema)
    first = prepare_schema(schema)
    assert schema == before
    assert json.dumps(prepare_schema(schema)) == json.dumps(first)
    first["x-guidance"] = None
    assert prepare_schema(schema)["x-guidance"] is not None


def test_closing_objects_leaves_what_the_schema_speaks_of() -> None:
    schema: Any = {
        "properties": {
            "closed": {"type": "object", "properties": {"a": {"type": "string"}}},
            "map": {"type": "object", "additionalProperties": {"type": "integer"}},
            "free": {"type": "object"},
        }
    }
    by_name = prepare_schema(schema, disable_additional_properties=True)["anyOf"][-1]["properties"]  # type: ignore[index,call-overload]
    assert by_name["closed"]["additionalProperties"] is False  # type: ignore[index,call-overload]
    assert by_name["map"]["additionalProperties"] == {"type": "integer"}  # type: ignore[index,call-overload]
    assert by_name["free"]["additionalProperties"] == {}  # type: ignore[index,call-overload]
