# ruff: noqa: RUF001  # characters that look like others are the point here
"""Incremental decoding: what comes out in pieces is what decoding everything at once gives."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.tokenizers.pieces import BYTE_OF_CHARACTER
from tests.tokenizers.vocabularies import byte_level_tokenizer, sentencepiece_tokenizer

BYTE_LEVEL = byte_level_tokenizer()
SENTENCEPIECE = sentencepiece_tokenizer()
TOKENIZERS = {"byte-level": BYTE_LEVEL, "sentencepiece": SENTENCEPIECE}

ids_of = {name: st.lists(st.integers(-1, len(tokenizer) + 2), max_size=40) for name, tokenizer in TOKENIZERS.items()}
cases = st.sampled_from(sorted(TOKENIZERS)).flatmap(
    lambda name: st.tuples(st.just(TOKENIZERS[name]), ids_of[name], ids_of[name])
)


def increments(tokenizer, prompt, output, skip_special_tokens, chunk=1):
    detokenizer = tokenizer.detokenizer(prompt, skip_special_tokens=skip_special_tokens)
    texts = [detokenizer.push(output[i : i + chunk]) for i in range(0, len(output), chunk)]
    return [*texts, detokenizer.finish()]


@settings(max_examples=400, deadline=None)
@given(cases, st.booleans())
def test_increments_join_to_the_whole_text(case, skip_special_tokens):
    tokenizer, prompt, output = case
    whole = tokenizer.decode(prompt + output, skip_special_tokens=skip_special_tokens)
    # Without finish(): a prompt that ends inside a character lends its bytes to the output.
    before = tokenizer.detokenizer((), skip_special_tokens=skip_special_tokens).push(prompt)
    assert before + "".join(increments(tokenizer, prompt, output, skip_special_tokens)) == whole


@settings(max_examples=300, deadline=None)
@given(cases, st.booleans(), st.integers(1, 7))
def test_cutting_the_output_into_steps_changes_nothing(case, skip_special_tokens, chunk):
    tokenizer, prompt, output = case
    one_by_one = "".join(increments(tokenizer, prompt, output, skip_special_tokens))
    assert "".join(increments(tokenizer, prompt, output, skip_special_tokens, chunk)) == one_by_one


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=30), st.sampled_from(sorted(TOKENIZERS)))
def test_valid_text_never_shows_a_replacement_character(text, name):
    tokenizer = TOKENIZERS[name]
    prompt = tokenizer.encode("a")
    output = tokenizer.encode(text, add_special_tokens=False)
    texts = increments(tokenizer, prompt, output, skip_special_tokens=False)
    assert texts[-1] == ""
    assert "\ufffd" not in "".join(texts) or "\ufffd" in text


@settings(max_examples=200, deadline=None)
@given(ids_of["byte-level"], st.booleans())
def test_byte_level_text_equals_the_tokenizers_library(ids, skip_special_tokens):
    known = [token_id for token_id in ids if 0 <= token_id < len(BYTE_LEVEL)]
    expected = BYTE_LEVEL.backend.decode(known, skip_special_tokens=skip_special_tokens)
    assert BYTE_LEVEL.decode(known, skip_special_tokens=skip_special_tokens) == expected


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.text(max_size=4), st.sampled_from(["</s>", "<table>", "  ", " the", "ther"])), max_size=8))
def test_sentencepiece_text_equals_the_tokenizers_library(parts):
    ids = SENTENCEPIECE.encode("".join(parts))
    for skip_special_tokens in (True, False):
        expected = SENTENCEPIECE.backend.decode(ids, skip_special_tokens=skip_special_tokens)
        assert SENTENCEPIECE.decode(ids, skip_special_tokens=skip_special_tokens) == expected


def test_an_unfinished_character_is_held_back_until_it_is_whole():
    emoji = "🤯".encode()
    assert increments(BYTE_LEVEL, [], list(emoji), False) == ["", "", "", "🤯", ""]
    assert increments(BYTE_LEVEL, [], list(emoji[:3]), False) == ["", "", "", "\ufffd"]


def test_text_before_an_invalid_byte_is_not_held_back():
    assert increments(BYTE_LEVEL, [], [*b"a\xff\xe6\x97", ord("b")], False) == ["a", "\ufffd", "", "", "\ufffdb", ""]


def test_byte_tokens_show_one_mark_for_each_invalid_byte():
    ids = SENTENCEPIECE.convert_tokens_to_ids(["<0xE6>", "<0x97>", "▁the", "<0xE6>", "<0x97>"])
    assert increments(SENTENCEPIECE, [1, 300], ids, False) == ["", "", "\ufffd\ufffd the", "", "", "\ufffd\ufffd"]


def test_a_skipped_token_does_not_break_a_character():
    end = BYTE_LEVEL.eos_token_id
    ids = [0xC3, end, 0xA9]
    assert "".join(increments(BYTE_LEVEL, [], ids, True)) == "é" == BYTE_LEVEL.backend.decode(ids)
    assert "".join(increments(BYTE_LEVEL, [], ids, False)) == "\ufffd</s>\ufffd"


def test_output_keeps_the_space_in_front_of_its_first_word():
    prompt = SENTENCEPIECE.encode("the")
    output = SENTENCEPIECE.convert_tokens_to_ids(["▁the"])
    assert increments(SENTENCEPIECE, prompt, output, True) == [" the", ""]
    assert SENTENCEPIECE.decode(prompt + output, skip_special_tokens=True) == "the the"


def test_output_is_the_start_of_the_text_when_the_prompt_has_none():
    output = SENTENCEPIECE.convert_tokens_to_ids(["▁the", "▁the"])
    assert increments(SENTENCEPIECE, [1], output, skip_special_tokens=True) == ["the", " the", ""]
    assert increments(SENTENCEPIECE, [1], output, skip_special_tokens=False) == [" the", " the", ""]


def test_output_completes_a_character_that_the_prompt_began():
    assert increments(BYTE_LEVEL, [*b"a\xf0\x9f"], [0xA4, 0xAF, ord("!")], True) == ["", "🤯", "!", ""]


@pytest.mark.parametrize("skip_special_tokens", [True, False])
def test_no_spaces_are_invented_around_added_tokens(skip_special_tokens):
    text = "a<|im_end|>b<think>c <think> d"
    ids = BYTE_LEVEL.encode(text)
    expected = BYTE_LEVEL.backend.decode(ids, skip_special_tokens=skip_special_tokens)
    assert "".join(increments(BYTE_LEVEL, [], ids, skip_special_tokens)) == expected
    assert BYTE_LEVEL.decode(ids, skip_special_tokens, spaces_between_special_tokens=True) == expected
    assert BYTE_LEVEL.decode(ids, skip_special_tokens, spaces_between_special_tokens=False) == expected


@pytest.mark.model
def test_random_byte_tokens_never_raise_and_join_to_the_decoded_text(smollm2):
    """vllm#17448, #19449: weird byte sequences raised 'Invalid prefix encountered' and ended the whole batch."""
    alphabet = smollm2.convert_tokens_to_ids(list(BYTE_OF_CHARACTER))
    for seed in range(200):
        ids = random.Random(seed).choices(alphabet, k=500)
        texts = increments(smollm2, smollm2.encode("Hi"), ids, skip_special_tokens=True)
        assert "".join(texts) == smollm2.backend.decode(ids)


@pytest.mark.model
def test_emoji_and_rare_scripts_come_out_whole(smollm2, gemma):
    """vllm-mlx#109, exo#1691: characters split between tokens came out as U+FFFD."""
    text = "Žluťoučký kůň 🤯👩‍👩‍👧‍👦 สวัสดี 𝕳𝖊𝖑𝖑𝖔 ꙮ 𓀀𓁐 हिन्दी"
    for tokenizer in (smollm2, gemma):
        output = tokenizer.encode(" " + text, add_special_tokens=False)
        texts = increments(tokenizer, tokenizer.encode("Say:"), output, skip_special_tokens=True)
        assert "".join(texts) == " " + text and "\ufffd" not in "".join(texts)
