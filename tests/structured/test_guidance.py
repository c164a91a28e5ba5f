"""The guidance backend over a small vocabulary: what masks allow, ends, roll-back, limits."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.structured.backend import GrammarError
from octavo.structured.guidance import GuidanceBackend
from octavo.structured.limits import GrammarLimits
from octavo.structured.vocabulary import Vocabulary, num_mask_words, vocabulary_of
from tests.structured.grammars import allowed, begin
from tests.structured.vocabularies import EOS, NUM_TOKENS, OTHER_EOS, SPECIAL, WORDS, Tokens, small_vocabulary, spell


def ids_of(*texts: bytes) -> set[int]:
    return {text[0] if len(text) == 1 else 259 + WORDS.index(text) for text in texts}


def test_masks_allow_every_token_that_spells_what_may_come(backend: GuidanceBackend):
    assert allowed(backend, begin(backend, "regex", "aaab")) == ids_of(b"a", b"aaa")
    assert allowed(backend, begin(backend, "choice", ["true", "12"])) == ids_of(b"t", b"true", b"1", b"12")


def test_tokens_that_end_within_a_character_are_allowed_where_it_may_go_on(backend: GuidanceBackend):
    # 日木 begins with the same four bytes as 日本
    assert ids_of("日".encode() + b"\xe6", "日本".encode(), b"\xe6") == allowed(
        backend, begin(backend, "regex", "日(本|木)")
    )


def test_end_is_allowed_exactly_where_the_text_is_whole(backend: GuidanceBackend):
    matcher = begin(backend, "regex", "a+")
    assert EOS not in allowed(backend, matcher)
    matcher.accept(ord("a"))
    assert {EOS, OTHER_EOS, ord("a")} <= allowed(backend, matcher)
    assert not matcher.is_complete


def test_grammar_is_complete_when_nothing_can_follow(backend: GuidanceBackend):
    matcher = begin(backend, "regex", "ab?")
    matcher.accept(ord("a"))
    assert not matcher.is_complete
    matcher.accept(ord("b"))
    assert matcher.is_complete and matcher.error is None


def test_special_tokens_and_columns_without_a_token_are_never_allowed(backend: GuidanceBackend):
    matcher = begin(backend, "regex", r"(.|\n)*")
    everything = allowed(backend, matcher)
    assert SPECIAL not in everything
    assert max(everything) < 259 + len(WORDS)
    assert ids_of(*WORDS) - everything == ids_of()


def test_text_of_a_special_token_may_be_spelled(backend: GuidanceBackend):
    assert allowed(backend, begin(backend, "regex", "<special>")) == {ord("<")}


def test_token_that_is_not_allowed_is_an_error_for_good(backend: GuidanceBackend):
    matcher = begin(backend, "regex", "ab")
    assert not matcher.accept(ord("x"))
    assert matcher.error and not matcher.is_complete
    assert not matcher.accept(ord("a"))


def test_rollback_undoes_tokens_even_after_the_end(backend: GuidanceBackend):
    matcher = begin(backend, "regex", "ab[cd]")
    before = []
    for token_id in spell("abc"):
        before.append(allowed(backend, matcher))
        matcher.accept(token_id)
    assert matcher.is_complete
    matcher.rollback(1)
    assert not matcher.is_complete and allowed(backend, matcher) == before[2]
    matcher.rollback(2)
    assert allowed(backend, matcher) == before[0]


def test_drafts_are_valid_up_to_the_first_that_is_not_allowed(backend: GuidanceBackend):
    matcher = begin(backend, "regex", "ab[cd]")
    assert matcher.num_valid(spell("abd")) == 3
    assert matcher.num_valid(spell("abx")) == 2
    assert matcher.num_valid(spell("x")) == 0
    assert allowed(backend, matcher) == {ord("a")}, "asking changes nothing"


def test_copies_go_on_by_themselves(backend: GuidanceBackend):
    matcher = begin(backend, "regex", "ab|cd")
    other = matcher.copy()
    matcher.accept(ord("a"))
    other.accept(ord("c"))
    assert (allowed(backend, matcher), allowed(backend, other)) == ({ord("b")}, {ord("d")})


def test_a_mask_is_filled_whatever_was_in_it_and_no_other_is(backend: GuidanceBackend):
    matcher = begin(backend, "regex", "[b-d]x")
    masks = np.full((3, num_mask_words(NUM_TOKENS)), 77, np.int32)
    backend.fill_mask(matcher, masks[1:2])
    filled = set(np.flatnonzero(np.unpackbits(masks[1].view(np.uint8), bitorder="little")).tolist())
    assert filled == allowed(backend, matcher) == set(b"bcd")
    assert (masks[[0, 2]] == 77).all()


@pytest.mark.parametrize(
    ("constraint", "value", "reason"),
    [
        ("regex", "(?=a)b", "look-around"),
        ("regex", r"(a)\1", "backreferences"),
        ("regex", "a$b", "lookarounds"),
        ("regex", "(", "unclosed group"),
        ("grammar", "start: missing", "missing"),
        ("grammar", 'start: %json {"not": {}, "x-guidance": {"lenient": true}}', "not"),
    ],
)
def test_what_cannot_be_enforced_is_refused_with_the_reason(backend: GuidanceBackend, constraint, value, reason):
    with pytest.raises(GrammarError, match=reason) as error:
        begin(backend, constraint, value)
    assert len(str(error.value)) < 600 and "\n" not in str(error.value)


def test_failure_inside_the_library_is_told_without_its_trace(backend: GuidanceBackend):
    with pytest.raises(GrammarError, match="symbols") as error:
        begin(backend, "grammar", "root ::= " + '("a" | "b")*' * 16_500)
    assert "<unknown>" not in str(error.value) and "backtrace" not in str(error.value)


def test_grammars_over_a_limit_are_refused():
    limits = GrammarLimits(max_grammar_size=1000)
    small = GuidanceBackend(small_vocabulary(), limits)
    with pytest.raises(GrammarError, match="grammar"):
        begin(
            small,
            "grammar",
            "start: "
            + " ".join(f'"a{i}"* x{i}' for i in range(300))
            + "\n"
            + "\n".join(f'x{i}: "b{i}" x{i} | "c"' for i in range(300)),
        )


def test_mask_that_costs_too_much_ends_its_own_request_only():
    tight = GuidanceBackend(small_vocabulary(), GrammarLimits(step_fuel=10))
    costly, cheap = begin(tight, "regex", "(.*a){12}b"), begin(tight, "regex", "a")
    for matcher in (costly, cheap):
        mask = np.zeros((1, num_mask_words(NUM_TOKENS)), np.int32)
        tight.fill_mask(matcher, mask)
    assert costly.error is not None
    assert cheap.error is None and mask.any()


def test_vocabularies_survive_packing():
    vocabulary = small_vocabulary()
    assert Vocabulary.unpack(vocabulary.pack()) == vocabulary


def test_model_without_end_of_sequence_ends_with_its_grammar():
    backend = GuidanceBackend(vocabulary_of(Tokens(), NUM_TOKENS, []), GrammarLimits())
    matcher = begin(backend, "regex", "ab?")
    matcher.accept(ord("a"))
    assert allowed(backend, matcher) == {ord("b"), NUM_TOKENS}, "the bit beyond the logits stands for the end"
    matcher.accept(ord("b"))
    assert matcher.is_complete


@pytest.mark.parametrize(
    ("constraint", "text", "message"),
    [
        ("regex", "*a", '^invalid regex "\\*a"'),
        ("grammar", "start: a\na: missing", '^line 2: unknown name: "missing"'),
    ],
)
def test_refusals_point_into_what_the_user_wrote(backend: GuidanceBackend, constraint: str, text: str, message: str):
    with pytest.raises(GrammarError, match=message):
        begin(backend, constraint, text)
