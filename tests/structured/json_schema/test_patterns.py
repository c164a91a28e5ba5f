"""Patterns mean what ECMA-262 says, and never more than Python's `re` agrees to."""

from __future__ import annotations

import random
import re

import pytest

from octavo.structured.json_schema.regex_language import combine, finite_language, is_empty, length_range, matches
from octavo.structured.json_schema.regex_search import parse_pattern
from octavo.structured.json_schema.regex_syntax import PatternError, all_but, literal
from octavo.structured.json_schema.strings import pattern_matches

PATTERNS = (
    *("^a|b$", "(^a|b$)", r"^(?=.*\d)(?!x).{2,4}$", "a(?!b)", "a(?=b|$)c?", r"(?<!\\)\$[a-z]", r"\bab\b", r"^\bab\B"),
    *("(a|^b)c", "x$|^$", "^(?!a|b$)", r"^[^a]*(?![\s\S])", "a?^b", r"P(?=\d|T\d)(\d+Y)?(T(\d)S)?", "a{2}b*?"),
    *(r"^((?!ab).)*$", r"^((?!a|bc$)[ab-c])+$", r"((?!-)[ab-]{1,3}(?<!-)x)+$", r"^(a(?=b)b)*c?$"),
    *("^(?!-)[a-]{1,63}(?<!-)$", r"[ab]{1,70}\b[xT ]{1,2}", r"(?<!a)b?c", r"a?(?![bc])c*x?", r"a\b|\bT\B"),
    *(r"[^\d\s]", r"\W$", r"\w\s", "[a-c1-]+", r"\u0061\x62", "a{0,2}$", "(?:a|b){1,3}", r"[\]\-]|\$", "."),
)
LETTERS = "abcxPYT1$\\ {}é\n٣_S-]"


@pytest.mark.parametrize("pattern", PATTERNS)
def test_pattern_agrees_with_python(pattern: str) -> None:
    chooser = random.Random(pattern)
    num_sure = 0
    for _ in range(600):
        text = "".join(chooser.choices(LETTERS, k=chooser.randint(0, 6)))
        possibly, surely = pattern_matches(pattern, text)
        found = re.search(pattern, text) is not None
        assert found or not surely, repr(text)
        assert possibly or not found, repr(text)
        num_sure += surely
    assert num_sure > 0


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"(a)\1", r"\k<n>", "(", "a**", "[b-a]", "[]", r"\q", "(?i)a", r"[a-\d]", "a{3,1}", "a{,2}"),
        # what looks back from where the pattern looks around
        *(r"\b\B", r"x(?=a)\ba", r"x(?=a)^a", r"x(?=\ba)a", r"x(?!a)(?<=x)", r"x(?=a)a(?<!xa)", r"^((?<=a)b|a)*$"),
    ],
)
def test_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        parse_pattern(pattern)


def test_unicode_classes_differ_by_dialect() -> None:
    assert pattern_matches(r"^\d$", "٣") == (True, False)  # a digit to Python, not to ECMA-262
    assert pattern_matches(r"^\D$", "٣") == (True, False)
    assert pattern_matches("^a$", "a\n") == (True, False)
    assert pattern_matches("^.$", "\u2028") == (True, False)


def test_languages() -> None:
    tree = parse_pattern("^a[bc]*$").narrow.required[0]
    assert is_empty((tree, literal("abx")), ()) is True
    assert is_empty((tree,), (literal("a"),)) is False
    outside = combine((), (tree,))
    assert [matches(outside, text) for text in ("a", "abcb", "b", "", "ad")] == [False, False, True, True, True]
    assert finite_language(parse_pattern("^(foo|ba[rz])$").narrow.required[0], 5) == ["foo", "bar", "baz"]
    assert length_range(parse_pattern("^a{2,4}(b|cd)$").narrow.required[0]) == (3, 6)
    rest = all_but(frozenset(("", "a", "ab")))
    assert [matches(rest, text) for text in ("", "a", "ab", "b", "abc", "aa")] == [
        False,
        False,
        False,
        True,
        True,
        True,
    ]
