"""Values that a model writes without quotes, typed by the tool's JSON schema."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from octavo.parsing.interface import Tool
from octavo.parsing.json_text import json_string

# In which order the types of a schema are tried; the order is vLLM's.
_ORDER = ("null", "integer", "number", "boolean", "object", "array", "string")
ANY_TYPE = frozenset(_ORDER)
ONLY_STRING = frozenset({"string"})
_MAX_SCHEMA_DEPTH = 16
_MAX_LITERAL_CHARACTERS = 100_000  # of Python literals; longer ones are strings

_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_INTEGER = re.compile(r"-?(0|[1-9]\d*)(\.0+)?", re.ASCII)


def parameter_types(tool: Tool | None, parameter: str, undeclared: frozenset[str]) -> frozenset[str]:
    """Return the JSON types that a parameter of a tool may have; `undeclared` for one of which nothing is known."""
    schema = (tool.parameters if tool else None) or {}
    return types_of(member_schema(schema, parameter, schema), schema) or undeclared


def member_schema(schema: Mapping[str, Any], key: str | None, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of a property, or of an array's items when key is None; empty where nothing is known."""
    for _ in range(_MAX_SCHEMA_DEPTH):
        if not isinstance(schema.get("$ref"), str):
            break
        schema = _resolve(schema["$ref"], root) or {}
    properties = schema.get("properties")
    member = schema.get("items") if key is None else properties.get(key) if isinstance(properties, Mapping) else None
    return member if isinstance(member, Mapping) else {}


def types_of(schema: Mapping[str, Any], root: Mapping[str, Any]) -> frozenset[str]:
    """Return the JSON types that a schema inside `root` names, empty when it names none."""
    return _types_of(schema, root, _MAX_SCHEMA_DEPTH)


def _types_of(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> frozenset[str]:
    """Return the types that a schema names, empty when it names none."""
    if depth == 0:
        return frozenset()
    named = schema.get("type")
    if isinstance(named, str):
        return ANY_TYPE & {named}
    if isinstance(named, list):
        return ANY_TYPE & {one for one in named if isinstance(one, str)}
    if "const" in schema:
        return frozenset({_type_of(schema["const"])})
    if isinstance(schema.get("enum"), list):
        return frozenset(_type_of(value) for value in schema["enum"])
    if isinstance(schema.get("$ref"), str):
        target = _resolve(schema["$ref"], root)
        return _types_of(target, root, depth - 1) if target is not None else frozenset()
    types: frozenset[str] = frozenset()
    for keyword in ("anyOf", "oneOf", "allOf"):
        branches = schema.get(keyword)
        for branch in branches if isinstance(branches, list) else ():
            if isinstance(branch, Mapping):
                types |= _types_of(branch, root, depth - 1)
    return types


def _resolve(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what a reference inside the schema points to; None for one that points elsewhere."""
    if not reference.startswith("#/"):
        return root if reference == "#" else None
    target: Any = root
    for part in reference[2:].split("/"):
        if not isinstance(target, Mapping):
            return None
        target = target.get(part.replace("~1", "/").replace("~0", "~"))
    return target if isinstance(target, Mapping) else None


def _type_of(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def json_of_text(text: str, types: frozenset[str]) -> str:
    """Return a value written as plain text as JSON of one of the types; as a string when it fits none of them."""
    stripped = text.strip()
    for name in _ORDER:
        if name in types:
            found = _as_type(stripped, name)
            if found is not None:
                return found
    return json_string(text)


def _as_type(text: str, name: str) -> str | None:
    lower = text.lower() if len(text) < 6 else ""
    if name == "null":
        return "null" if lower in ("null", "none") else None
    if name == "boolean":
        return lower if lower in ("true", "false") else None
    if name == "integer":
        return text if _INTEGER.fullmatch(text) else _python_number(text, integer=True)
    if name == "number":
        return text if _NUMBER.fullmatch(text) else _python_number(text, integer=False)
    if name in ("object", "array"):
        return _as_container(text, name)
    return None


def _python_number(text: str, *, integer: bool) -> str | None:
    """Return a number as JSON that Python reads but JSON does not: +5, 007, 1_000, .5"""
    try:
        number = int(text) if integer else float(text)
    except ValueError:
        return None
    return json.dumps(number) if math.isfinite(number) else None


def _as_container(text: str, name: str) -> str | None:
    if not text.startswith("{" if name == "object" else "["):
        return None
    try:
        json.loads(text, parse_int=str, parse_float=str, parse_constant=_refuse_constant)
        return text
    except (ValueError, RecursionError):
        return _loose_json(text) or _python_literal(text, dict if name == "object" else list)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _loose_json(text: str) -> str | None:
    """Return JSON that has line ends and tabs in its strings as JSON that escapes them."""
    try:
        return json.dumps(json.loads(text, strict=False), ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return None


def _python_literal(text: str, expected: type) -> str | None:
    """Return a Python literal of the type as JSON; None when it is none."""
    if len(text) > _MAX_LITERAL_CHARACTERS:
        return None
    try:
        value = ast.literal_eval(text)
        return json.dumps(value, ensure_ascii=False, allow_nan=False) if isinstance(value, expected) else None
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
