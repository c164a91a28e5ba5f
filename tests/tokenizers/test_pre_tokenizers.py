"""How each kind of byte-level vocabulary cuts text."""

from __future__ import annotations

import pytest

from octavo.tokenizers.pre_tokenizers import PRE_TOKENIZATIONS, build_pre_tokenizer, find_pre_tokenization
from tests.tokenizers.vocabularies import HARD_STRINGS, random_strings


def cut(kind: str, text: str) -> list[str]:
    pre_tokenizer = build_pre_tokenizer(find_pre_tokenization(kind))
    return [text[start:end] for _, (start, end) in pre_tokenizer.pre_tokenize_str(text)]


TEXT = "I'll pay  $12345 for HelloWORLD's\n\n café!"

# Cut by hand from the models' published patterns.
EXPECTED = {
    "gpt-2": ["I", "'ll", " pay", " ", " $", "12345", " for", " HelloWORLD", "'s", "\n\n", " café", "!"],
    "smollm": ["I", "'ll", " pay", " ", " $", *"12345", " for", " HelloWORLD", "'s", "\n\n", " café", "!"],
    "llama-bpe": ["I", "'ll", " pay", " ", " $", "123", "45", " for", " HelloWORLD", "'s", "\n\n", " café", "!"],
    "qwen2": ["I", "'ll", " pay", " ", " $", *"12345", " for", " HelloWORLD", "'s", "\n\n", " café", "!"],
    "tekken": ["I", "'ll", " pay", " ", " $", *"12345", " for", " Hello", "WORLD", "'s", "\n\n", " café", "!"],
    "gpt-4o": ["I'll", " pay", " ", " $", "123", "45", " for", " Hello", "WORLD's", "\n\n", " café", "!"],
    "deepseek-llm": [  # its punctuation range ":-~" holds ASCII letters, so "é" is cut off
        *("I", "'", "ll", " pay", " ", " $", "12345", " for", " HelloWORLD", "'", "s", "\n", "\n", " caf", "é", "!"),
    ],
    "deepseek-v3": ["I", "'ll", " pay", " ", " $", "123", "45", " for", " HelloWORLD", "'s", "\n\n", " café", "!"],
}


@pytest.mark.parametrize("kind", EXPECTED)
def test_known_cuts(kind):
    assert cut(kind, TEXT) == EXPECTED[kind]


@pytest.mark.parametrize("kind", sorted(PRE_TOKENIZATIONS))
def test_no_kind_loses_text(kind):
    pre_tokenizer = build_pre_tokenizer(PRE_TOKENIZATIONS[kind])
    for text in (*HARD_STRINGS, *random_strings(30, seed=5), TEXT):
        spans = [span for _, span in pre_tokenizer.pre_tokenize_str(text)]
        covered = sorted({position for start, end in spans for position in range(start, end)})
        assert covered == list(range(len(text))), text


def test_capital_contractions_are_cut_as_in_the_original_patterns():
    assert cut("llama-bpe", "WE'RE I'M") == ["WE", "'RE", " I", "'M"]
    assert cut("gpt-2", "WE'RE") == ["WE", "'", "RE"]


@pytest.mark.parametrize("unit", ["a", " ", "日", "\n", " \n", "1", "'", "a "])
def test_long_monotonous_text_is_cut_without_backtracking_for_ever(unit):
    """Quadratic patterns would take minutes for this length."""
    for rules in set(PRE_TOKENIZATIONS.values()):
        assert build_pre_tokenizer(rules).pre_tokenize_str(unit * 30_000)
