"""Structural tags: free text with passages that follow schemas, in both forms."""

from __future__ import annotations

import pytest

from octavo.structured.backend import GrammarError
from octavo.structured.guidance import GuidanceBackend
from tests.structured.grammars import admits, begin

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
CALL = {"type": "json_schema", "json_schema": SCHEMA}


def tag(name: str) -> dict[str, object]:
    return {"type": "tag", "begin": f"<{name}>", "content": CALL, "end": f"</{name}>"}


def const(value: str) -> dict[str, str]:
    return {"type": "const_string", "value": value}


def check(backend: GuidanceBackend, wish, admitted: list[str], refused: list[str]) -> None:
    matcher = begin(backend, "structural_tag", wish)
    assert [text for text in admitted if not admits(backend, matcher, text)] == []
    assert [text for text in refused if admits(backend, matcher, text)] == []


@pytest.mark.parametrize("rules", ['root ::= "a" b\nb ::= [0-9]+', 'start: "a" b\nb: /[0-9]+/'])
def test_passages_follow_grammars_of_their_own(backend: GuidanceBackend, rules: str):
    content = {"type": "grammar", "grammar": rules}
    elements = [{"type": "tag", "begin": "<g>", "content": content, "end": "</g>"}, content]
    wish = {"format": {"type": "sequence", "elements": elements}}
    check(backend, wish, ["<g>a12</g>a3"], ["<g>a</g>a3", "<g>b12</g>a3", "<g>a12</g>3"])


def test_structures_constrain_what_follows_their_trigger(backend: GuidanceBackend):
    structures = [
        {"begin": "<function=one>", "schema": SCHEMA, "end": "</function>"},
        {"begin": "<function=two>", "schema": {"type": "object"}, "end": "</function>"},
    ]
    check(
        backend,
        {"type": "structural_tag", "structures": structures, "triggers": ["<function="]},
        ["hello", "", 'x <function=one>{"a":1}</function> y <function=two>{}</function>', "a <func b"],
        ["<function=three>", '<function=one>{"b":1}</function>', '<function=one>{"a":1}', "<function="],
    )


def test_tags_after_triggers(backend: GuidanceBackend):
    base = {"type": "triggered_tags", "triggers": ["<f"], "tags": [tag("f"), tag("fg")]}
    one, two = '<f>{"a":1}</f>', '<fg>{"a":2}</fg>'
    check(backend, {"format": base}, ["x", f"x{one}y{two}"], ["<f>1"])
    check(backend, {"format": {**base, "at_least_one": True}}, [one, f"{one} x {two}"], ["", f"x{one}"])
    check(backend, {"format": {**base, "stop_after_first": True}}, ["x", f"x{one}"], [f"{one}{two}", f"{one}x"])
    both = {**base, "at_least_one": True, "stop_after_first": True}
    check(backend, {"format": both}, [one, two], ["", f"{one}{two}", f"{one}x"])


def test_tags_with_separators(backend: GuidanceBackend):
    base = {"type": "tags_with_separator", "separator": "\n", "tags": [tag("f"), tag("g")]}
    one, two = '<f>{"a":1}</f>', '<g>{"a":2}</g>'
    check(backend, {"format": base}, ["", one, f"{one}\n{two}\n{one}"], [f"{one}{two}", f"{one}\n", "x"])
    check(backend, {"format": {**base, "at_least_one": True, "stop_after_first": True}}, [one], ["", f"{one}\n{two}"])


def test_sequences_alternatives_and_repetitions(backend: GuidanceBackend):
    thought = {"type": "tag", "begin": "<think>", "content": {"type": "any_text"}, "end": "</think>"}
    word = {"type": "regex", "pattern": "[a-z]+"}
    choice = {"type": "or", "elements": [const("!"), {"type": "json_schema", "json_schema": {"type": "integer"}}]}
    check(
        backend,
        {"format": {"type": "sequence", "elements": [thought, word, const("zz"), choice]}},
        ["<think>any < text</think>abzz!", "<think></think>azz12"],
        ["<think>a</think>x</think>azz!", "abzz!", "<think></think>azz"],
    )
    check(backend, {"format": {"type": "plus", "content": const("ab")}}, ["ab", "abab"], ["", "aba"])
    check(backend, {"format": {"type": "star", "content": const("ab")}}, ["", "abab"], ["a"])
    check(backend, {"format": {"type": "optional", "content": const("ab")}}, ["", "ab"], ["abab"])


def test_content_and_end_are_matched_as_one(backend: GuidanceBackend):
    wish = {"type": "tag", "begin": "[", "content": {"type": "regex", "pattern": r"[a-z\]]*"}, "end": ["]", ")"]}
    check(backend, {"format": wish}, ["[a]]", "[]", "[a)"], ["[a", "[1]"])


def test_any_text_without_certain_words(backend: GuidanceBackend):
    check(backend, {"format": {"type": "any_text", "excludes": ["bad"]}}, ["good", "ba", ""], ["a bad b", "bad"])


@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        ([], "JSON object"),
        ({"type": "other", "format": const("a")}, "structural_tag"),
        ({}, "structures"),
        ({"structures": [], "triggers": ["a"]}, "structures"),
        ({"structures": [1], "triggers": ["a"]}, r"structures\[0\]"),
        ({"structures": [{"begin": "b", "schema": {}, "end": ""}], "triggers": ["a"]}, "none of the triggers"),
        ({"structures": [{"begin": "a", "schema": {"$ref": "http://x"}, "end": ""}], "triggers": ["a"]}, "ref"),
        ({"structures": [{"begin": "a", "end": ""}], "triggers": [""]}, "triggers"),
        ({"format": {"type": "qwen_xml_parameter", "json_schema": {}}}, "qwen_xml_parameter"),
        ({"format": {"type": "const_string"}}, "value"),
        ({"format": {"type": "grammar", "grammar": "x"}}, "::="),
        ({"format": {"type": "grammar", "grammar": '%llguidance {}\nstart: "a"'}}, "options"),
        ({"format": {"type": "sequence", "elements": [{"type": "any_text"}, const("x")]}}, "last element"),
        ({"format": {"type": "tag", "begin": "a", "content": const("b"), "end": 5}}, "end"),
        ({"format": {"type": "regex", "pattern": "(?=a)"}}, "look-around"),
        ({"format": {**tag("f"), "unknown": 1}}, "unknown"),
        ({"format": "x"}, "object"),
    ],
)
def test_what_cannot_be_said_is_refused_by_name(backend: GuidanceBackend, wish, reason):
    with pytest.raises(GrammarError, match=reason):
        begin(backend, "structural_tag", wish)
