"""The backend on xgrammar, where it is installed: the same texts as the default one, or a refusal."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("xgrammar")

from octavo.structured.backend import GrammarError
from octavo.structured.messages import GrammarJob, JsonStyle
from octavo.structured.vocabulary import num_mask_words
from octavo.structured.xgrammar import XGrammarBackend, XGrammarMatcher, xgrammar_spec
from tests.structured.grammars import job
from tests.structured.vocabularies import EOS, NUM_TOKENS, SPECIAL, small_vocabulary, spell


@pytest.fixture(scope="module")
def backend() -> XGrammarBackend:
    return XGrammarBackend(small_vocabulary())


def begin(backend: XGrammarBackend, each: GrammarJob) -> XGrammarMatcher:
    return backend.compile(xgrammar_spec(each))


def allowed(backend: XGrammarBackend, matcher: XGrammarMatcher) -> set[int]:
    masks = np.zeros((1, num_mask_words(NUM_TOKENS)), np.int32)
    backend.fill_mask(matcher, masks)
    return set(np.flatnonzero(np.unpackbits(masks.view(np.uint8), bitorder="little")).tolist())


def admits(backend: XGrammarBackend, each: GrammarJob, text: str) -> bool:
    matcher = begin(backend, each)
    return all(matcher.accept(token_id) for token_id in spell(text)) and EOS in allowed(backend, matcher)


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def test_schemas_are_followed_compactly(backend: XGrammarBackend):
    each = job("json", PERSON)
    assert admits(backend, each, '{"name":"Bob","age":7}')
    for text in ('{"name": "Bob","age":7}', '{"name":"Robert","age":7}', '{"name":"Bob","age":77}', '{"name":"Bob"}'):
        assert not admits(backend, each, text)
    assert admits(
        backend, job("json", PERSON, JsonStyle(compact=False)), json.dumps({"name": "Bob", "age": 7}, indent=2)
    )


def test_other_constraints_are_followed(backend: XGrammarBackend):
    assert admits(backend, job("regex", r"\d{3}-[a-c]"), "123-a") and not admits(backend, job("regex", r"\d{3}"), "12")
    assert admits(backend, job("choice", ["日本", "a"]), "日本") and not admits(backend, job("choice", ["ab"]), "a")
    assert admits(backend, job("grammar", 'root ::= "a" [b-d]+'), "abcd")
    assert admits(backend, job("grammar", 'start: "a" "b"'), "ab")
    assert admits(backend, job("json_object", True), '{"a":[1,null]}') and not admits(
        backend, job("json_object", True), "[]"
    )


def test_ends_rollback_and_special_tokens(backend: XGrammarBackend):
    matcher = begin(backend, job("regex", "ab?"))
    assert allowed(backend, matcher) == {ord("a")}
    matcher.accept(ord("a"))
    assert not matcher.is_complete and EOS in allowed(backend, matcher)
    copy = matcher.copy()
    matcher.accept(ord("b"))
    assert matcher.is_complete and not copy.is_complete
    matcher.rollback(2)
    assert matcher.num_valid(spell("ab")) == 2 and allowed(backend, matcher) == {ord("a")}
    assert not copy.accept(ord("x")) and copy.error
    assert SPECIAL not in allowed(backend, begin(backend, job("regex", "(.|\n)*")))


@pytest.mark.parametrize(
    "each",
    [
        job("regex", "(?=a)b"),
        job("json", {"type": "object", "patternProperties": {"^a": {"type": "null"}}, "additionalProperties": False}),
        job("json", {"type": "array", "items": {"type": "number", "multipleOf": 0.01}}),
        job("structural_tag", {"format": {"type": "any_text"}}),
        job("json", PERSON, JsonStyle(whitespace_pattern=" ")),
        job("grammar", "root ::= missing"),
    ],
)
def test_what_it_does_not_enforce_is_refused(backend: XGrammarBackend, each: GrammarJob):
    with pytest.raises(GrammarError):
        begin(backend, each)
