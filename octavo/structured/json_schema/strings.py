"""Strings: which values a shape holds, whether it is empty, and how to say it to llguidance."""

from __future__ import annotations

from octavo.structured.json_schema import regex_language
from octavo.structured.json_schema.errors import SchemaRefusedError
from octavo.structured.json_schema.regex_language import TooLargeError
from octavo.structured.json_schema.regex_search import Demands, parse_pattern
from octavo.structured.json_schema.regex_syntax import (
    NOTHING,
    Chars,
    Node,
    PatternError,
    Repeat,
    all_but,
    to_text,
    writable,
)
from octavo.structured.json_schema.shapes import StringShape
from octavo.structured.json_schema.values import JsonValue

MAX_LENGTH = 1_000_000  # characters; longer texts are not generated
MAX_EXCLUDED_CHARACTERS = 5_000
JSON_WHITESPACE = Repeat(Chars(((9, 10), (13, 13), (32, 32))), 0, None)
LARGE_LENGTH = 200  # with several endless repetitions, llguidance does not find out whether anything is so short

# Formats that llguidance enforces -> the fewest and the most characters of a match. Any other format is an annotation.
FORMATS: dict[str, tuple[int, int | None]] = {
    "date-time": (20, None),
    "time": (9, None),
    "date": (10, 10),
    "duration": (3, None),
    "email": (3, None),
    "hostname": (1, None),
    "ipv4": (7, 15),
    "ipv6": (2, 39),
    "uuid": (36, 36),
    "uri": (2, None),
}


def pattern_matches(pattern: str, text: str) -> tuple[bool, bool]:
    """Return whether a pattern possibly matches (in some dialect), and whether it surely does (in all)."""
    parsed = parse_pattern(pattern)
    try:
        return meets(parsed.wide, text), meets(parsed.narrow, text)
    except TooLargeError:
        return True, False


def is_json_whitespace(pattern: str) -> bool:
    """Tell whether all that a pattern matches as a whole surely is white space of JSON, or nothing."""
    try:
        wide = parse_pattern(f"^(?:{pattern})$").wide
    except PatternError:
        return False
    return not wide.forbidden and regex_language.is_empty(wide.required, (JSON_WHITESPACE,)) is True


def meets(demands: Demands, text: str) -> bool:
    return all(regex_language.matches(tree, text) for tree in demands.required) and not any(
        regex_language.matches(tree, text) for tree in demands.forbidden
    )


def string_in_shape(text: str, shape: StringShape) -> bool:
    """Tell whether a string surely is in a shape; its format is an annotation."""
    return (
        shape.low <= len(text)
        and (shape.high is None or len(text) <= shape.high)
        and (shape.values is None or text in shape.values)
        and text not in shape.excluded
        and all(pattern_matches(pattern, text)[1] for pattern in shape.patterns)
        and not any(pattern_matches(pattern, text)[0] for pattern in shape.not_patterns)
    )


def string_shape_is_empty(shape: StringShape) -> bool:
    """Tell whether a shape surely holds no string; False where that is unknown."""
    if shape.values is not None:
        return not shape.values
    if shape.high is not None and shape.low > shape.high:
        return True
    if shape.high == 0:
        return not string_in_shape("", StringShape(0, None, (), shape.not_patterns, None, shape.excluded)) or not all(
            pattern_matches(pattern, "")[0] for pattern in shape.patterns
        )
    if not shape.patterns or len(shape.patterns) + len(shape.not_patterns) == 1:
        return False
    required: list[Node] = []
    forbidden: list[Node] = []
    for pattern in shape.patterns:
        wide = parse_pattern(pattern).wide
        required += wide.required
        forbidden += wide.forbidden
    for pattern in shape.not_patterns:
        narrow = parse_pattern(pattern).narrow
        if len(narrow.required) == 1 and not narrow.forbidden:
            forbidden += narrow.required
    return regex_language.is_empty(tuple(required), tuple(forbidden)) is True


def string_trees(shape: StringShape) -> tuple[list[Node], list[Node]]:
    """Return the trees that a string must match all of, and those that it must match none of, beside its length."""
    required: list[Node] = []
    forbidden: list[Node] = []
    for pattern in shape.patterns:
        narrow = parse_pattern(pattern).narrow
        required += narrow.required
        forbidden += narrow.forbidden
    for pattern in shape.not_patterns:
        wide = parse_pattern(pattern).wide
        if len(wide.required) > 1 or wide.forbidden:
            raise SchemaRefusedError(f"the pattern {pattern!r} cannot be negated", "pattern", shape.pointer)
        forbidden += wide.required
    if shape.excluded:
        if sum(map(len, shape.excluded)) > MAX_EXCLUDED_CHARACTERS or max(map(len, shape.excluded)) > 60:
            raise SchemaRefusedError("the strings to leave out are too long", "enum", shape.pointer)
        required.append(all_but(shape.excluded))
    return required, forbidden


def without_forbidden(required: list[Node], forbidden: list[Node], pointer: str) -> list[Node]:
    """Return trees that a string must match all of, as one if possible, and none that it must not match."""
    if not forbidden:
        return required
    try:
        return [regex_language.combine(tuple(required), tuple(forbidden))]
    except TooLargeError:
        pass
    try:
        return [*required, *(regex_language.combine((), (tree,)) for tree in forbidden)]
    except TooLargeError:
        raise SchemaRefusedError("the complement of the pattern is too large", "pattern", pointer) from None


def write_strings(shape: StringShape) -> JsonValue:
    """Return the schema of a shape for the backend, False if it has no text. Raises SchemaRefusedError."""
    if shape.values is not None:
        return {"enum": [write_text(value, shape.pointer) for value in shape.values]}
    required = [writable(tree) for tree in without_forbidden(*string_trees(shape), shape.pointer)]
    if NOTHING in required:
        return False
    low, high = shape.low, shape.high
    high = None if high is None else min(high, MAX_LENGTH)
    if low > MAX_LENGTH:
        raise SchemaRefusedError(f"no text of {low} characters can be generated", "minLength", shape.pointer)
    if len(required) == 1:
        if high is not None and high >= LARGE_LENGTH and regex_language.num_endless(required[0]) > 1:
            required = [regex_language.within_length(required[0], high) or required[0]]
        shortest, longest = regex_language.length_range(required[0])
        low = 0 if shortest >= low else low
        high = None if longest is not None and high is not None and longest <= high else high
    schema: dict[str, JsonValue] = {"type": "string"}
    if not required and shape.format in FORMATS:
        shortest, longest = FORMATS[shape.format]
        fits = low <= shortest and (high is None or (longest is not None and longest <= high))
        if fits or (low <= shortest and high is not None and 3 * shortest <= high <= 64):
            schema["format"] = shape.format
            low = 0
            high = None if longest is not None and high is not None and longest <= high else high
    if low:
        schema["minLength"] = low
    if high is not None:
        schema["maxLength"] = high
    if len(required) == 1:
        schema["pattern"] = to_text(required[0])
    elif required:
        schema["allOf"] = [{"pattern": to_text(tree)} for tree in required]
    return schema


def write_text(text: str, pointer: str) -> str:
    if any((character < " " and character not in "\b\f\n\r\t") or character == "\x7f" for character in text):
        raise SchemaRefusedError("a value holds a control character without a short escape", "enum", pointer)
    return text
