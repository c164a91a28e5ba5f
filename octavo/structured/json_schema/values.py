"""JSON values as JSON Schema compares them: 1 equals 1.0, true is no number, objects have no order."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeAlias

from octavo.structured.json_schema.errors import SchemaRefusedError
from octavo.structured.json_schema.limits import MAX_INPUT_DEPTH, MAX_INPUT_NODES

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
Number: TypeAlias = "int | float"

MAX_INTEGER_BITS = 4_000


def value_key(value: JsonValue) -> Hashable:
    """Return a hashable that two JSON values share exactly when JSON Schema calls them equal."""
    if value is None or isinstance(value, bool):
        return ("literal", value)
    if isinstance(value, (int, float)):
        return ("number", value)
    if isinstance(value, str):
        return ("string", value)
    if isinstance(value, list):
        return ("array", tuple(value_key(item) for item in value))
    return ("object", frozenset((name, value_key(item)) for name, item in value.items()))


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_count(value: object) -> bool:
    """Tell whether a value may stand for a length: a whole number from 0 on (2.0 is one)."""
    return is_number(value) and value >= 0 and float(value).is_integer()  # type: ignore[operator,arg-type]


def escape_pointer(name: str) -> str:
    """Return a property name as one step of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def check_is_json(schema: object) -> None:
    """Raise SchemaRefusedError unless `schema` is a JSON value of bounded size and depth, without NaN or cycles."""
    if not isinstance(schema, (dict, bool)):
        raise SchemaRefusedError(f"a schema must be an object or a boolean, got {str(schema)[:80]!r}", "", "")
    todo: list[tuple[object, str, int]] = [(schema, "", 0)]
    num_nodes = 0
    while todo:
        value, pointer, depth = todo.pop()
        num_nodes += 1
        if num_nodes > MAX_INPUT_NODES:
            raise SchemaRefusedError(f"it has more than {MAX_INPUT_NODES} values; send a smaller schema", "", "")
        if depth > MAX_INPUT_DEPTH:
            raise SchemaRefusedError(f"it nests deeper than {MAX_INPUT_DEPTH} levels; use $ref", "", pointer[:200])
        if isinstance(value, Mapping):
            for name, item in value.items():
                if not isinstance(name, str):
                    raise SchemaRefusedError(f"a property name must be a string, got {name!r:.40}", "", pointer)
                check_text(name, pointer)
                todo.append((item, f"{pointer}/{escape_pointer(name)}", depth + 1))
        elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
            todo.extend((item, f"{pointer}/{index}", depth + 1) for index, item in enumerate(value))
        elif isinstance(value, str):
            check_text(value, pointer)
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise SchemaRefusedError(f"{value} is not a JSON number", "", pointer)
        elif isinstance(value, int):
            if value.bit_length() > MAX_INTEGER_BITS:
                raise SchemaRefusedError("a number has more than a thousand digits", "", pointer)
        elif value is not None:
            raise SchemaRefusedError(f"a {type(value).__name__} is not a JSON value", "", pointer)


def check_text(text: str, pointer: str) -> None:
    """Raise SchemaRefusedError for text that has no UTF-8 form."""
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise SchemaRefusedError("text holds half of a surrogate pair, which no UTF-8 text can", "", pointer)
