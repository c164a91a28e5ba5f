"""Random schemas and values over a small world, so that keywords meet in every combination."""

from __future__ import annotations

import json
import random
from typing import Any

DRAFTS = (
    "http://json-schema.org/draft-04/schema#",
    "http://json-schema.org/draft-06/schema#",
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
)
NAMES = ("a", "b", "c", "ab", "x-1")
PATTERNS = (
    *("^a", "b$", "^x-", "^[a-c]$", "a|c", "^(?!a)", r"\d", "^ab?$", ".", "^[^b]*$", r"\bb", "^$", "^.{1,2}$", r"\W"),
    *("(?<!a)b", "^(?=.*b)a", "a(?!b)"),
)
SCALARS = (None, True, False, 0, 1, 2, 3, -1, 1.5, 0.5, 10, "", "a", "b", "ab", "abc", "c", "1", "x-1")
TYPES = ("string", "integer", "number", "object", "array", "boolean", "null")
KINDS = (
    *("type", "type", "number", "string", "array", "object", "enum", "const", "object", "array", "allOf", "anyOf"),
    *("oneOf", "oneOf", "not", "if", "dependency", "reference", "contains", "names", "unevaluated", "patterns"),
)
FLAT_KINDS = 8  # the first of KINDS hold (almost) no schemas


def random_value(chooser: random.Random, depth: int = 0) -> Any:
    kind = chooser.random()
    if depth > 2 or kind < 0.55:
        return chooser.choice(SCALARS)
    if kind < 0.75:
        return [random_value(chooser, depth + 1) for _ in range(chooser.randint(0, 3))]
    return {name: random_value(chooser, depth + 1) for name in NAMES if chooser.random() < 0.4}


def random_document(chooser: random.Random) -> dict[str, Any]:
    """Return a schema of a random draft with two definitions."""
    draft = chooser.choice(DRAFTS)
    maker = SchemaMaker(chooser, draft)
    schema = maker.schema(0)
    definitions = {"x": maker.schema(1), "y": maker.schema(2)}
    return {"$schema": draft, "definitions": definitions, **(schema if isinstance(schema, dict) else {})}


class SchemaMaker:
    def __init__(self, chooser: random.Random, draft: str) -> None:
        self.chooser = chooser
        self.draft = draft

    def schema(self, depth: int) -> Any:
        if self.chooser.random() < 0.04:
            return {} if self.draft == DRAFTS[0] else self.chooser.random() < 0.7
        kinds = KINDS if depth < 3 else KINDS[:FLAT_KINDS]
        result: dict[str, Any] = {}
        for _ in range(self.chooser.choice((1, 1, 2, 2, 3))):
            kind = self.chooser.choice(kinds)
            result |= getattr(self, f"make_{kind}", lambda _: {})(depth + 1) or {}
        return result

    def some(self, depth: int, low: int = 1, high: int = 3) -> list[Any]:
        return [self.schema(depth) for _ in range(self.chooser.randint(low, high))]

    def make_type(self, depth: int) -> dict[str, Any]:
        pair = self.chooser.sample(TYPES, 2)
        return {"type": pair if self.chooser.random() < 0.3 else pair[0]}

    def make_number(self, depth: int) -> dict[str, Any]:
        keyword = self.chooser.choice(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
        if keyword == "multipleOf":
            return {keyword: self.chooser.choice((1, 2, 3, 0.5, 1.5))}
        bound = self.chooser.choice((-1, 0, 1, 2, 1.5, 10))
        if self.draft == DRAFTS[0] and keyword.startswith("exclusive"):
            return {keyword: True, keyword.removeprefix("exclusive").lower(): bound}
        return {keyword: bound}

    def make_string(self, depth: int) -> dict[str, Any]:
        keyword = self.chooser.choice(("minLength", "maxLength", "pattern", "format"))
        if keyword == "pattern":
            return {keyword: self.chooser.choice(PATTERNS)}
        return {keyword: "unknown-format" if keyword == "format" else self.chooser.randint(0, 3)}

    def make_array(self, depth: int) -> dict[str, Any]:
        keyword = self.chooser.choice(("items", "items", "minItems", "maxItems", "uniqueItems", "tuple"))
        if keyword == "tuple":
            first = self.some(depth, 1, 2)
            if self.draft == DRAFTS[4]:
                return {"prefixItems": first}
            return {"items": first, "additionalItems": self.schema(depth)}
        if keyword == "items":
            return {keyword: self.schema(depth)}
        return {keyword: True if keyword == "uniqueItems" else self.chooser.randint(0, 3)}

    def make_object(self, depth: int) -> dict[str, Any]:
        keyword = self.chooser.choice(
            (
                "properties",
                "properties",
                "required",
                "required",
                "additionalProperties",
                "minProperties",
                "maxProperties",
            )
        )
        if keyword == "properties":
            return {keyword: {name: self.schema(depth) for name in self.chooser.sample(NAMES, 2)}}
        if keyword == "required":
            return {keyword: self.chooser.sample(NAMES, self.chooser.randint(1, 2))}
        if keyword == "additionalProperties":
            return {keyword: self.chooser.choice((False, self.schema(depth)))}
        return {keyword: self.chooser.randint(0, 3)}

    def make_patterns(self, depth: int) -> dict[str, Any]:
        return {"patternProperties": {pattern: self.schema(depth) for pattern in self.chooser.sample(PATTERNS[:8], 2)}}

    def make_enum(self, depth: int) -> dict[str, Any]:
        values = [random_value(self.chooser) for _ in range(self.chooser.randint(1, 4))]
        return {"enum": list({json.dumps(value): value for value in values}.values())}

    def make_const(self, depth: int) -> dict[str, Any]:
        return {"const": random_value(self.chooser)}

    def make_allOf(self, depth: int) -> dict[str, Any]:
        return {"allOf": self.some(depth)}

    def make_anyOf(self, depth: int) -> dict[str, Any]:
        return {"anyOf": self.some(depth)}

    def make_oneOf(self, depth: int) -> dict[str, Any]:
        return {"oneOf": self.some(depth)}

    def make_not(self, depth: int) -> dict[str, Any]:
        return {"not": self.schema(depth)}

    def make_if(self, depth: int) -> dict[str, Any]:
        branches = {"then": self.schema(depth), "else": self.schema(depth)}
        kept = {name: branch for name, branch in branches.items() if self.chooser.random() < 0.7}
        return {"if": self.schema(depth), **kept}

    def make_dependency(self, depth: int) -> dict[str, Any]:
        name = self.chooser.choice(NAMES)
        demand = self.schema(depth) if self.chooser.random() < 0.5 else [self.chooser.choice(NAMES)]
        if self.draft in DRAFTS[:3]:
            return {"dependencies": {name: demand}}
        return {"dependentRequired" if isinstance(demand, list) else "dependentSchemas": {name: demand}}

    def make_reference(self, depth: int) -> dict[str, Any]:
        return {"$ref": self.chooser.choice(("#/definitions/x", "#/definitions/y", "#"))}

    def make_contains(self, depth: int) -> dict[str, Any]:
        bounds = {"minContains": self.chooser.randint(0, 2), "maxContains": self.chooser.randint(0, 2)}
        return {
            "contains": self.schema(depth),
            **{keyword: bound for keyword, bound in bounds.items() if self.chooser.random() < 0.4},
        }

    def make_names(self, depth: int) -> dict[str, Any]:
        rules = ({"pattern": self.chooser.choice(PATTERNS)}, {"enum": self.chooser.sample(NAMES, 2)}, {"maxLength": 1})
        return {"propertyNames": self.chooser.choice((*rules, self.schema(depth)))}

    def make_unevaluated(self, depth: int) -> dict[str, Any]:
        if self.draft != DRAFTS[4]:  # the oracle's reading of 2019-09 differs from the specification's
            return {}
        keyword = self.chooser.choice(("unevaluatedProperties", "unevaluatedItems"))
        return {keyword: self.chooser.choice((False, self.schema(depth)))}
