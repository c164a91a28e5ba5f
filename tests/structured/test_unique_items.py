"""Arrays of distinct items: no text repeats one, every beginning can be ended, and nothing else is taken away."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest

from octavo.structured.backend import Backend, GrammarError, Matcher, make_backend
from octavo.structured.limits import GrammarLimits
from octavo.structured.messages import GrammarJob, JsonStyle
from octavo.structured.source import lark_spec
from octavo.structured.vocabulary import Vocabulary

WORDS = (
    '"a","',
    '","',
    '",',
    '"]',
    '["a","b"',
    "true,",
    ",true",
    "true",
    "tr",
    "ue",
    "1,",
    ",1",
    "12",
    "[1,1]",
    '{"k":',
    ":1},",
    "},{",
)
TWIN = b"e"  # a text that two tokens have
SIZE = 320
EOS = SIZE - 1


@pytest.fixture(scope="module")
def backend() -> Backend:
    tokens = [bytes([value]) for value in range(256)] + [word.encode() for word in WORDS] + [TWIN]
    return make_backend("guidance", Vocabulary(tokens + [b""] * (SIZE - len(tokens)), [EOS], [EOS]), GrammarLimits())


def begin(backend: Backend, schema: Any, *, compact: bool = True) -> Matcher:
    return backend.compile(lark_spec(GrammarJob("json", json.dumps(schema), JsonStyle(compact=compact))))


def allowed(backend: Backend, matcher: Matcher) -> list[int]:
    mask = np.zeros((1, SIZE // 32), np.int32)
    backend.fill_mask(matcher, mask)
    ids: list[int] = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
    return ids


def text_of(token_id: int) -> str:
    return WORDS[token_id - 256] if 256 <= token_id < 256 + len(WORDS) else chr(token_id) if token_id < 256 else "e"


SCHEMAS: dict[str, Any] = {
    "booleans": {"type": "array", "uniqueItems": True, "items": {"type": "boolean"}},
    "few values": {"type": "array", "uniqueItems": True, "items": {"enum": ["a", "ab", "b", 1, 12]}, "minItems": 4},
    "one text ends where others go on": {
        "type": "array", "uniqueItems": True, "items": {"type": "string", "pattern": "^(a|b[ab]*)$"}, "minItems": 3
    },
    "numbers": {"type": "array", "uniqueItems": True, "items": {"type": "number", "minimum": 0, "maximum": 3}},
    "objects of few values": {
        "type": "array", "uniqueItems": True, "minItems": 2,
        "items": {"properties": {"k": {"type": "integer", "minimum": 1, "maximum": 2}}, "required": ["k"],
                  "additionalProperties": False, "type": "object"},
    },
    "within each other": {
        "type": "array", "uniqueItems": True, "minItems": 2, "maxItems": 4,
        "items": {"type": "array", "uniqueItems": True, "items": {"enum": [1, 2]}},
    },
    "first items": {"type": "array", "uniqueItems": True, "prefixItems": [{"const": 1}, {"enum": [1, 2]}],
                    "items": {"enum": [1, 2, 3, 12]}, "minItems": 3},
    "behind names": {
        "type": "object", "required": ["k", "n"], "additionalProperties": False,
        "properties": {"k": {"type": "array", "uniqueItems": True, "items": {"enum": ["a", True, None]}},
                       "n": {"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 3}},
    },
    "recursive": {"$defs": {"t": {"type": "array", "uniqueItems": True, "items": {"$ref": "#/$defs/t"}, "maxItems": 2}},
                  "$ref": "#/$defs/t"},
    "anything": {"type": "array", "uniqueItems": True, "minItems": 2, "maxItems": 5},
}  # fmt: skip


@pytest.mark.parametrize("compact", [True, False])
@pytest.mark.parametrize("name", SCHEMAS)
def test_random_answers_are_valid_and_come_to_an_end(backend: Backend, name: str, compact: bool) -> None:
    schema = SCHEMAS[name]
    validator = jsonschema.Draft202012Validator(schema)
    texts = set()
    for seed in range(60):
        chooser = random.Random(seed)
        matcher, text = begin(backend, schema, compact=compact), ""
        while not matcher.is_complete:
            ids = allowed(backend, matcher)
            assert ids, text
            closing = [i for i in ids if i == EOS or text_of(i)[:1] in '"]}']
            token_id = chooser.choice(closing if closing and len(text) > 40 else ids)
            if token_id == EOS:
                break
            assert matcher.accept(token_id), (text, token_id)
            text += text_of(token_id)
            if len(text) > 400:
                break
        else:
            validator.validate(json.loads(text))
            texts.add(text)
    assert len(texts) > 1


NUMBERS: list[tuple[dict[str, Any], int]] = [
    ({"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 1}, 3),
    ({"type": "number", "multipleOf": 0.5, "minimum": -0.4, "maximum": 1}, 3),
    ({"type": "number", "multipleOf": 0.25, "minimum": -1, "maximum": 0}, 4),
    ({"type": "number", "multipleOf": 2, "minimum": -2, "maximum": 2}, 3),
    ({"type": "number", "minimum": 0, "maximum": 0.5}, 9),
    ({"type": "number", "minimum": 1, "maximum": 1}, 1),
    ({"type": "number", "minimum": 0.123456789012344, "maximum": 0.123456789012345}, 2),
    ({"type": "number"}, 9),
    ({"type": "integer", "minimum": -1, "maximum": 1}, 3),
    ({"type": "integer", "minimum": 9, "maximum": 12}, 4),
    ({"type": "integer", "minimum": 2**53, "maximum": 2**53 + 4}, 3),
    ({"enum": [0, 0.5, 1, -1, 10]}, 5),
]
OTHERS: list[tuple[dict[str, Any], int]] = [
    ({"type": "boolean"}, 2),
    ({"enum": ["a", "b", None, True, 0]}, 5),
    ({"enum": ["é", '"', "\\", "\n", ""]}, 5),
    ({"type": "string", "pattern": "^[ab]{1,2}$"}, 6),
    ({"type": "string", "maxLength": 2}, 9),
    ({"type": ["null", "string"], "maxLength": 0}, 2),
]


def random_items(chooser: random.Random, depth: int = 0) -> tuple[dict[str, Any], int]:
    """Return a schema, and how many values it has at least."""
    kind = chooser.randrange(8) if depth < 2 else chooser.randrange(5)
    if kind < 5:
        return chooser.choice(NUMBERS if kind < 3 else OTHERS)
    schema, count = random_items(chooser, depth + 1)
    if kind == 5:
        low = chooser.randint(0, min(count, 2))
        high = chooser.randint(max(low, 1), 3)
        array = {"type": "array", "uniqueItems": True, "items": schema, "minItems": low, "maxItems": high}
        return array, count if low <= 1 else 1
    other, other_count = random_items(chooser, depth + 1)
    if kind == 6:
        return {"anyOf": [schema, other]}, max(count, other_count)
    required = chooser.choice([["a"], ["b", "a"], []])
    named = {"type": "object", "additionalProperties": False, "required": required}
    return {**named, "properties": {"b": other, "a": schema}}, max(count, other_count if "b" in required else 0)


@pytest.mark.parametrize("part", range(4))
def test_no_beginning_is_a_dead_end_whatever_the_items_are(backend: Backend, part: int) -> None:
    """Items of few values, most of which are needed, in all spellings; those that lead nowhere are liked best."""
    num_ended = 0
    for seed in range(part * 100, part * 100 + 100):
        chooser = random.Random(seed)
        items, count = random_items(chooser)
        low = max(count - chooser.randrange(2), 1)
        schema = {"type": "array", "uniqueItems": True, "items": items, "minItems": low, "maxItems": low + 2}
        matcher, text = begin(backend, schema), ""
        while not matcher.is_complete and len(text) < 400:
            ids = allowed(backend, matcher)
            assert ids, (schema, text)
            patience = 1 / (1 + len(text) / 30)
            liked = [i for i in ids if chooser.random() < patience and text_of(i)[-1:] in ".0-e19"]
            closing = [i for i in ids if chooser.random() > patience and (i == EOS or text_of(i)[:1] in '"]},')]
            token_id = chooser.choice(closing or liked or ids)
            if token_id == EOS:
                break
            assert matcher.accept(token_id), (schema, text, token_id)
            text += bytes(backend.tables.texts[token_id]).decode("latin-1")  # type: ignore[attr-defined]
        if len(text) < 400:
            jsonschema.Draft202012Validator(schema).validate(json.loads(text.encode("latin-1")))
            num_ended += 1
    assert num_ended > 90


@pytest.mark.parametrize(
    ("items", "beginning", "lost"),
    [
        (NUMBERS[0][0], "[1,0.5,1", "."),
        (NUMBERS[0][0], "[0,0.5,0", "."),
        (NUMBERS[4][0], "[0.5,0.5", "0"),
        (NUMBERS[1][0], "[0,", "-"),
        (NUMBERS[7][0], "[0.1,0.1" + "0" * 15, "0"),
        (NUMBERS[7][0], "[1", "e"),
        ({"type": "object", "properties": {"a": NUMBERS[0][0]}, "additionalProperties": False}, '[{"a":1},{"a":1', "."),
    ],
)
def test_one_value_in_two_spellings_is_no_way_on(backend: Backend, items: Any, beginning: str, lost: str) -> None:
    matcher = begin(backend, {"type": "array", "uniqueItems": True, "items": items, "minItems": 3, "maxItems": 9})
    assert all(map(matcher.accept, beginning.encode()))
    assert not {*map(ord, lost)} & {*allowed(backend, matcher)}


def test_only_what_repeats_an_item_is_forbidden(backend: Backend) -> None:
    strings = {"type": "array", "uniqueItems": True, "items": {"type": "string"}}
    matcher = begin(backend, strings)
    free = begin(backend, {**strings, "uniqueItems": False})
    for byte in b'["a"':
        assert allowed(backend, matcher) == allowed(backend, free)
        assert matcher.accept(byte) and free.accept(byte)
    for byte in b',"a':
        assert matcher.accept(byte) and free.accept(byte)
    lost = {*map(text_of, allowed(backend, free))} - {*map(text_of, allowed(backend, matcher))}
    assert lost == {'"', '",', '","', '"]'}


def test_a_repeated_item_is_no_valid_draft_and_an_error(backend: Backend) -> None:
    matcher = begin(backend, SCHEMAS["behind names"])
    for byte in b'{"k":["a",':
        assert matcher.accept(byte)
    other = matcher.copy()
    assert matcher.num_valid([*b'"a"']) == 2
    for byte in b'"a':
        assert other.accept(byte)
    assert not other.accept(ord('"'))
    assert "uniqueItems" in str(other.error)
    other.rollback(3)
    assert other.error is None
    assert all(map(other.accept, b'null],"n":[1,1]}'))
    assert other.is_complete and not matcher.is_complete


def test_values_within_each_other_without_end_are_not_read_for_ever(backend: Backend) -> None:
    rule = {"type": "array", "items": {"$ref": "#/$defs/r"}, "maxItems": 1}
    within = {"type": "array", "uniqueItems": True, "maxItems": 2, "items": {"$ref": "#/$defs/r"}}
    matcher = begin(backend, {"$defs": {"r": rule}, **within})
    blind = matcher.copy()  # of a request whose tokens are given
    assert not all(blind.accept(ord("[")) for _ in range(2000))
    assert "levels" in str(blind.error)
    num_open = 0
    while ord("[") in allowed(backend, matcher) and num_open < 2000:
        assert matcher.accept(ord("["))
        num_open += 1
    assert 100 < num_open < 2000
    for _ in range(num_open - 1):
        assert ord("]") in allowed(backend, matcher)
        assert matcher.accept(ord("]"))
    assert all(map(matcher.accept, b",[]]")) and matcher.is_complete


def test_structural_tags_cannot_remember(backend: Backend) -> None:
    tag = {"format": {"type": "json_schema", "json_schema": SCHEMAS["booleans"]}}
    with pytest.raises(GrammarError, match="uniqueItems"):
        lark_spec(GrammarJob("structural_tag", json.dumps(tag), JsonStyle()))
