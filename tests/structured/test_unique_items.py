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
    backend.fill_masks([matcher], mask)
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
