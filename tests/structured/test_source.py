"""What users write, as grammars: which texts each admits."""

from __future__ import annotations

import json

import pytest

from octavo.structured.backend import GrammarError
from octavo.structured.guidance import GuidanceBackend
from octavo.structured.messages import JsonStyle
from tests.structured.grammars import COMPACT, admits, allowed, begin

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
LOOSE = JsonStyle(compact=False)


def check(backend: GuidanceBackend, constraint: str, value, admitted: list[str], refused: list[str], style=COMPACT):
    matcher = begin(backend, constraint, value, style)
    assert [text for text in admitted if not admits(backend, matcher, text)] == []
    assert [text for text in refused if admits(backend, matcher, text)] == []


def test_json_schema_is_written_compactly_by_default(backend: GuidanceBackend):
    good = '{"name":"Bob","age":7}'
    bad = [
        '{"name": "Bob", "age": 7}',
        '{"name":"Robert","age":7}',
        '{"name":"Bob","age":70}',
        '{"name":"Bob"}',
        good + " ",
    ]
    check(backend, "json", PERSON, [good], bad)


def test_white_space_is_allowed_on_request_but_never_without_end(backend: GuidanceBackend):
    pretty = json.dumps({"name": "Bob", "age": 7}, indent=4)
    check(
        backend, "json", PERSON, [pretty, '{"name":"Bob","age":7}'], ["{" + " " * 41 + '"name":"Bob","age":7}'], LOOSE
    )


def test_white_space_follows_its_pattern(backend: GuidanceBackend):
    style = JsonStyle(compact=True, whitespace_pattern=" ?")
    check(
        backend,
        "json",
        PERSON,
        ['{"name": "Bob", "age": 7}'],
        ['{"name":  "Bob","age":7}', '{\n"name":"Bob","age":7}'],
        style,
    )


def test_objects_are_closed_on_request(backend: GuidanceBackend):
    schema = {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"type": "null"}}}}}
    nested, more = '{"a":{"b":null}}', '{"a":{"b":null,"c":1}}'
    check(backend, "json", schema, [nested, more], [])
    check(backend, "json", schema, [nested], [more, '{"x":1}'], JsonStyle(close_objects=True))


def test_json_object_is_any_object_and_nothing_else(backend: GuidanceBackend):
    check(backend, "json_object", True, ["{}", '{"a":[1,{"b":null}]}'], ["[]", "1", '"{}"', "null"])


def object_of(**properties) -> dict[str, object]:
    """Return the schema of an object with exactly these properties, the first of them required."""
    required = list(properties)[:1]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def test_texts_outside_ascii_are_written_as_they_are(backend: GuidanceBackend):
    check(backend, "json", {"enum": ["开心", "难过"]}, ['"开心"'], ['"\\u5f00\\u5fc3"', '"开"'])
    check(backend, "json", object_of(größe={"const": 1}), ['{"größe":1}'], ['{"gr\\u00f6\\u00dfe":1}'])
    check(backend, "choice", ["naïve", "日本"], ["naïve", "日本"], ["naive", "日"])


def test_enum_behind_a_reference_and_recursive_schemas(backend: GuidanceBackend):
    tree = object_of(c={"$ref": "#/$defs/color"}, kids={"type": "array", "items": {"$ref": "#/$defs/tree"}})
    schema = {"$defs": {"color": {"enum": ["red"]}, "tree": tree}, "$ref": "#/$defs/tree"}
    good = ['{"c":"red"}', '{"c":"red","kids":[{"c":"red","kids":[]}]}']
    check(backend, "json", schema, good, ['{"c":"blue"}', '{"c":{}}', '{"c":"red","kids":[1]}'])


def test_numbers_and_arrays_keep_their_limits(backend: GuidanceBackend):
    pair = {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 5}, "minItems": 2, "maxItems": 2}
    check(backend, "json", pair, ["[1,5]"], ["[1]", "[1,2,3]", "[0,1]", "[1,6]", "[1,1.5]"])
    check(backend, "json", {"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', '"日本"'], ['"a"', '"abcd"'])


@pytest.mark.parametrize("schema", [False, {"not": {}}, {"type": "string", "enum": [1]}])
def test_schema_without_a_value_is_refused(backend: GuidanceBackend, schema):
    with pytest.raises(GrammarError):
        begin(backend, "json", schema)


@pytest.mark.parametrize("pattern", ["a*", ".", r"\s*", "[ \t]|x", "("])
def test_white_space_that_json_does_not_have_is_refused(backend: GuidanceBackend, pattern):
    with pytest.raises(GrammarError, match="whitespace_pattern"):
        begin(backend, "json", {"type": "array"}, JsonStyle(whitespace_pattern=pattern))


def test_refusals_name_the_keyword(backend: GuidanceBackend):
    with pytest.raises(GrammarError, match="keyword 'multipleOf' at #/items"):
        begin(backend, "json", {"type": "array", "items": {"multipleOf": 0.01}})


def test_regex_matches_the_whole_text(backend: GuidanceBackend):
    check(backend, "regex", r"\d{3}-[a-c]", ["123-a"], ["12-a", "123-ab", "x123-a"])
    check(backend, "regex", "^hello\\!$", ["hello!"], ["hello!!", "hello"])
    check(backend, "regex", "^a|b$", ["a", "b"], ["ax", "xb"])
    check(backend, "regex", "a/b\n\"'#", ["a/b\n\"'#"], [])
    check(backend, "regex", "", [""], ["a"])


def test_choices_are_taken_literally(backend: GuidanceBackend):
    choices = ["a.b", "a", "ab\\n", 'say "hi"', "\n\t\x7f\x01", "</x>", "🎉"]
    check(backend, "choice", choices, choices, ["axb", "ab", "ab\n", ""])


def test_lark_grammars_may_have_options(backend: GuidanceBackend):
    for head in ("", "%llguidance {}\n", '%llguidance {"no_forcing": false}\n'):
        check(backend, "grammar", head + 'start: "a" rest\nrest: "b"+', ["ab", "abb"], ["a", "b"])
    with pytest.raises(GrammarError, match="JSON object"):
        begin(backend, "grammar", "%llguidance {\nstart: /a/")
    check(backend, "grammar", 'start[max_tokens=1]: "a" | "b"', ["a", "b"], ["ab", "c"])


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ('%llguidance {"bogus": true}\nstart: "a"', "bogus"),
        ('start[temperature=0.5]: "a"', "temperature"),
        ('start: word "."\nword[max_tokens=3, temperature=0]: /a+/', "temperature"),
        ('start: "a"\n%llguidance {"no_forcing": false}', "first line"),
    ],
)
def test_what_a_lark_grammar_sets_without_effect_is_refused(backend: GuidanceBackend, grammar: str, reason: str):
    with pytest.raises(GrammarError, match=reason):
        begin(backend, "grammar", grammar)


@pytest.mark.parametrize(
    ("grammar", "admitted", "refused"),
    [
        ('root ::= "yes" | "no"', ["yes", "no"], ["yesno", ""]),
        ('root ::= item ("," item)*\nitem ::= [0-9]{1,3}', ["1,23", "123"], ["1234", "1,", ""]),
        ('root ::= sum\nsum ::= term ("+" term)*\nterm ::= "(" sum ")" | [0-9]+', ["(1+2)+3"], ["(1+2", "1++2"]),
        ('root ::= "a" # a comment\n  | "b"\n', ["a", "b"], ["ab"]),
        ('root ::= [^"\\\\] "/" [-a]+ [a-] [^\\n]', ["x/-a-x"], ['"/aax', "x/a-\n"]),
        ('root ::= ("a" | ) "b"?', ["ab", "b", "", "a"], ["aa"]),
        ('root ::= "\\u00e9\\x41\\U0001F389" [\\u0391-\\u03c9]', ["éA🎉β"], ["éA🎉b"]),
        ('root ::= some-rule\nsome-rule ::= "x" _y2\n_y2 ::= "z"', ["xz"], ["x"]),
        ('root ::= ws "x"\nws ::= ([ \\t] ws)?', [" \t x", "x"], ["\nx"]),
        ('root ::= "a"{2} "b"{1,} . ', ["aab\n", "aabbb"], ["aab"]),
    ],
)
def test_gbnf_grammars(backend: GuidanceBackend, grammar, admitted, refused):
    check(backend, "grammar", grammar, admitted, refused)


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ('rot ::= "a"', "no rule `root`"),
        ("root ::= foo", "`foo`, which is not defined"),
        ('root ::= "a', "line 1"),
        ('root ::= ("a"', "not closed"),
        ('root ::= "a")', "not opened"),
        ('root ::= ("a"\nb ::= "c"', "`b` is not closed"),
        ('root ::= * "a"', "nothing to repeat"),
        ('root ::= "a"\nroot ::= "b"', "defined twice"),
        ("root ::= []", "empty"),
        ('root ::= "\\ud800"', "no character"),
        ("hello", "expected `name ::=`"),
    ],
)
def test_wrong_gbnf_says_where(backend: GuidanceBackend, grammar, reason):
    with pytest.raises(GrammarError, match=reason):
        begin(backend, "grammar", grammar)


def test_first_mask_of_a_choice_is_that_of_all_choices(backend: GuidanceBackend):
    assert allowed(backend, begin(backend, "choice", ["x", "y"])) == {ord("x"), ord("y")}
