"""No text that the grammar of a prepared schema admits is an invalid instance of the schema."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import jsonschema.validators
import pytest

from tests.structured.json_schema.oracle import Oracle
from tests.structured.json_schema.random_schemas import random_document, random_value

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle()


def test_the_suite_finds_no_leak(oracle: Oracle) -> None:
    counts: Counter[str] = Counter()
    for line in (DATA / "suite.jsonl").read_text(encoding="utf-8").splitlines():
        name, address, schema, tests = json.loads(line)
        if isinstance(schema, dict):
            schema = {"$schema": address, **schema}
        result = oracle.judge({"schema": schema, "instances": [data for data, _ in tests]}, num_walks=4)
        assert not result["leaks"], (name, result["leaks"])
        counts["prepared" if result["prepared"] else "refused"] += 1
        for (data, valid), accepted in zip(tests, result.get("accepted", ()), strict=False):
            assert valid or not accepted, (name, data)
            counts[f"{'valid' if valid else 'invalid'} {'accepted' if accepted else 'rejected'}"] += 1
    assert counts["prepared"] > 560
    assert counts["valid accepted"] > 20 * counts["valid rejected"]


@pytest.mark.parametrize("seed", range(6))
def test_random_schemas_do_not_leak(oracle: Oracle, seed: int) -> None:
    """Every keyword in combination with every other one, judged by random walks and by random instances."""
    counts: Counter[str] = Counter()
    for index in range(120):
        chooser = random.Random(1_000 * seed + index)
        schema = random_document(chooser)
        validator_class = jsonschema.validators.validator_for(schema)
        try:
            validator_class.check_schema(schema)
            grammar = oracle.grammar(schema)
        except jsonschema.SchemaError:
            continue
        if grammar.error:
            continue
        counts["prepared"] += 1
        validator = validator_class(schema)
        walks = oracle.walk_all(grammar, validator, 5, seed=index)
        assert not walks["leaks"], (schema, walks["leaks"])
        for instance in (random_value(chooser) for _ in range(12)):
            try:
                valid = validator.is_valid(instance)
            except BaseException:  # the validator does not see that a schema refers to itself
                break
            accepted = oracle.accepts(grammar, instance)
            assert valid or not accepted, (schema, instance)
            counts["valid"] += valid
            counts["valid and accepted"] += valid and accepted
    assert counts["prepared"] > 40
    assert counts["valid and accepted"] > 0.9 * counts["valid"]


def accepted_by(oracle: Oracle, schema: Any, *texts: str) -> list[bool]:
    grammar = oracle.grammar(schema)
    assert not grammar.error
    return [oracle.accepts_text(grammar, text) for text in texts]


# (schema, texts that must be accepted, texts that must be rejected)
CASES: list[tuple[Any, list[str], list[str]]] = [
    ({"properties": {"a": {"type": "integer"}}}, ['{"a":1}', '{"b":"x"}'], ['{"a":"x"}', r'{"\u0061":"x"}']),
    ({"type": "object", "minProperties": 1}, ['{"a":1}'], ["{}"]),
    ({"type": "integer", "minimum": 0}, ["0", "7"], ["-1", "1.5", "007"]),
    ({"type": "number", "exclusiveMaximum": 1}, ["0.5", "-3"], ["1", "1.0", "0.99999999999999999999"]),
    ({"type": "number", "exclusiveMinimum": 0}, ["0.001", "3"], ["0", "0.0", "0." + "0" * 400 + "1"]),
    ({"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.1}, ["0", "0.1", "1"], ["0.15", "0.30000001"]),
    ({"type": "number", "multipleOf": 0.5}, ["1.5", "2", "-0.5"], ["0.3", "1.25"]),
    ({"type": "integer", "multipleOf": 7}, ["14", "0", "-7"], ["15"]),
    ({"type": "string", "not": {"enum": ["a", "b"]}}, ['"c"', '""', '"ab"'], ['"a"', '"b"']),
    ({"type": "string", "not": {"pattern": "^a"}}, ['"ba"', '""'], ['"ab"']),
    ({"type": "string", "pattern": "^a|b$"}, ['"ax"', '"xb"'], ['"xbx"']),
    ({"type": "string", "pattern": r"^(?=.*\d)(?!0).{2,3}$"}, ['"a1"', '"12"'], ['"01"', '"ab"', '"1234"']),
    ({"type": "string", "pattern": r"\bcat\b"}, ['"a cat"', '"cat"'], ['"cats"']),
    ({"type": "string", "pattern": r"\x00|b"}, ['"b"', '"ab"'], ['"a"', '""']),  # nothing writes U+0000
    ({"type": "string", "pattern": r"^((?!-)[a-z-]{1,63}(?<!-)\.)+[a-z]{2}$"}, ['"a-b.c.de"'], ['"a-.de"', '"-a.de"']),
    ({"type": "string", "pattern": "^((?!ab|c$).)*$"}, ['"acb"', '""', '"b"'], ['"xaby"', '"ac"']),
    ({"type": "string", "pattern": r"^[-a-z.]{1,256}\.[a-z()]{1,6}\b([-a-z()]*)$"},
     ['"a.b"', '"a.b(c"', '"a.(b)"'], ['"a.()"', '"a.b"x']),
    ({"type": "string", "format": "made-up"}, ['"x"'], ["1"]),
    ({"type": "string", "format": "date"}, ['"2024-02-29"'], ['"yesterday"']),
    ({"enum": [1, "a", None, [1, {"b": 2}]]}, ["1", '"a"', "null", '[1,{"b":2}]'], ["2", '[1,{"b":3}]', "true"]),
    ({"enum": [1, "a", 3], "type": "integer", "minimum": 2}, ["3"], ["1", '"a"']),
    ({"const": {"a": [1, None]}}, ['{"a":[1,null]}'], ['{"a":[1]}', "{}"]),
    ({"type": ["string", "null"]}, ['"x"', "null"], ["1"]),
    ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"}, ['{"a":1}'], ['{"a":1,"b":1}', "{}"]),
    ({"oneOf": [{"maximum": 2}, {"minimum": 1}], "type": "integer"}, ["0", "7"], ["1", "2"]),
    ({"if": {"properties": {"a": {"const": 1}}, "required": ["a"]}, "then": {"required": ["b"]}},
     ['{"a":1,"b":0}', '{"a":2}', "{}", "3"], ['{"a":1}']),
    ({"dependentRequired": {"a": ["b"]}, "type": "object"}, ["{}", '{"b":1}', '{"a":1,"b":1}'], ['{"a":1}']),
    ({"type": "array", "uniqueItems": True, "items": {"enum": [1, 2, 3]}}, ["[]", "[3,1]"], ["[1,1]", "[1,2,1]"]),
    ({"type": "array", "uniqueItems": True, "maxItems": 1}, ["[]", "[5]"], ["[1,1]"]),
    ({"type": "array", "contains": {"const": 1}, "maxItems": 3}, ["[1]", "[0,1]", "[2,2,1]"], ["[]", "[2,2,2]"]),
    ({"contains": {"const": 1}, "maxContains": 1, "type": "array"}, ["[1]", "[1,2]"], ["[1,1]", "[2]"]),
    ({"prefixItems": [{"type": "string"}], "items": {"type": "integer"}}, ['["a",1,2]', "[]"], ['["a","b"]', "[1]"]),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "string"}], "additionalItems": False},
     ['["a"]', "[]"], ['["a",1]']),
    ({"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 3, "exclusiveMinimum": True, "type": "integer"},
     ["4"], ["3"]),
    ({"$schema": "https://example.com/house-style", "type": "boolean", "x-order": 3}, ["true"], ["1"]),
    ({"propertyNames": {"pattern": "^x"}, "type": "object"}, ['{"x1":1}', "{}"], ['{"y":1}']),
    ({"patternProperties": {"^n": {"type": "integer"}, "d$": {"maximum": 5}}, "type": "object"},
     ['{"n":9}', '{"d":"s"}', '{"nd":5}'], ['{"nd":6}', '{"n":"s"}', '{"d":6}']),
    ({"patternProperties": {"^x$": False}, "type": "object"}, ['{"y":1}'], ['{"x":1}']),
    ({"allOf": [{"$ref": "#/$defs/a"}], "unevaluatedProperties": False, "properties": {"b": {}},
      "$defs": {"a": {"properties": {"a": {"type": "string"}}}}, "type": "object"},
     ['{"b":1}', '{"a":"s"}'], ['{"c":1}', '{"a":1}']),
    ({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "required": ["kids"], "additionalProperties": False,
      "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}}},
     ['{"kids":[{"kids":[]}]}'], ['{"kids":[{}]}', "{}"]),
    ({"$id": "https://e.org/root", "$ref": "item#name", "$defs": {"i": {"$id": "item", "$defs": {
      "n": {"$anchor": "name", "type": "string"}}}}}, ['"s"'], ["1"]),
    ({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "minProperties": 1,
      "additionalProperties": False}, ['{"a":1}', '{"b":1}', '{"a":1,"b":1}'], ["{}"]),
    ({"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "maxProperties": 1, "additionalProperties": False},
     ["{}", '{"b":1}'], ['{"a":1,"b":1}']),
    ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, ["0", "-9223372036854774784"], [str(2**64)]),
    ({"type": "string", "nullable": True}, ['"x"'], ["null"]),
    # one of several open objects: what no grammar describes (an id that is a number but no integer) is left out
    ({"oneOf": [{"type": "object", "properties": {"id": {"type": "integer"}, "login": {"type": "string"}},
                 "required": ["id", "login"]},
                {"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}},
                 "required": ["id", "name"]}]},
     ['{"id":1,"login":"a"}', '{"id":1,"name":"a"}'], ['{"id":1,"login":"a","name":"b"}', '{"id":1}']),
    # many of them: each stays apart from all others
    ({"oneOf": [{"type": "object", "properties": {f"p{i}": {"type": "string"}, f"q{i}": {"type": "integer"}},
                 "required": [f"p{i}", f"q{i}"]} for i in range(12)]},
     ['{"p3":"a","q3":1}', '{"p0":"","q0":0}'], ['{"p3":"a"}', '{"p3":"a","q3":1,"p4":"a","q4":1}']),
    # a tag with a default, as pydantic writes it: it is there, since without it an object may fit several
    ({"oneOf": [{"type": "object", "properties": {"kind": {"const": f"k{i}", "default": f"k{i}"}, "size": {
        "type": "object", "properties": {f"x{i}": {"type": "number"}, "w": {"type": "number"}, "v": {"type": "string"}},
        "required": ["w", "v"]}}, "required": ["size"]} for i in range(8)]},
     ['{"kind":"k3","size":{"x3":1,"w":1,"v":"s"}}'],
     ['{"size":{"w":1,"v":"s"}}', '{"kind":"k9","size":{"w":1,"v":"s"}}', '{"kind":"k3","size":{"w":1}}']),
    # a branch of many shapes is taken away one shape after the other
    ({"oneOf": [{"type": "object", "required": ["$ref"], "properties": {"$ref": {"type": "string"}}},
                {"anyOf": [{"type": "object", "required": ["type", "in"], "properties": {
                    "type": {"const": f"t{i}"}, "in": {"enum": ["a", "b"]}, "$ref": {"type": "string"},
                    f"y{i}": {"type": "string"}}, "additionalProperties": {"type": "integer"}} for i in range(9)]}]},
     ['{"$ref":"x"}', '{"type":"t1","in":"a"}', '{"type":"t1","in":"b","y1":"s","y2":3}'],
     ['{"in":"a"}', '{"$ref":"x","type":"t1","in":"a"}', '{"type":"t1","in":"b","y2":"s"}']),
    # two that come together or not at all
    ({"type": "object", "dependentRequired": {name: [other] for i in range(6)
      for name, other in ((f"a{i}", f"b{i}"), (f"b{i}", f"a{i}"))}},
     ["{}", '{"a0":1,"b0":1}', '{"a1":1,"b1":1,"a5":1,"b5":1}'], ['{"a0":1}', '{"a0":1,"b0":1,"b5":1}']),
    ({"oneOf": [{"type": "object", "additionalProperties": {"type": "string"}},
                {"type": "object", "properties": {"secure": {"type": "string"}}, "required": ["secure"]}]},
     ['{"a":"b"}', "{}"], ['{"secure":"x"}']),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: json.dumps(case[0])[:60])
def test_keyword_is_enforced(oracle: Oracle, case: tuple[Any, list[str], list[str]]) -> None:
    schema, good, bad = case
    assert accepted_by(oracle, schema, *good) == [True] * len(good)
    assert accepted_by(oracle, schema, *bad) == [False] * len(bad)
