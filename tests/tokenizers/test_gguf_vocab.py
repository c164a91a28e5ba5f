"""GGUF metadata -> tokenizer, on small vocabularies."""

from __future__ import annotations

import logging
import struct

import gguf
import pytest

from octavo.errors import CheckpointError, InvalidRequestError, RequestFailedError, UnsupportedError
from octavo.loader.gguf_file import GGUFFile
from octavo.tokenizers.gguf_vocab import (
    GGUFVocabulary,
    build_gguf_tokenizer,
    load_gguf_tokenizer,
    read_gguf_vocabulary,
)
from octavo.tokenizers.tokenizer import Tokenizer
from tests.tokenizers.vocabularies import (
    CONTROL,
    NORMAL,
    UNKNOWN,
    byte_level_tokenizer,
    byte_level_vocabulary,
    sentencepiece_tokenizer,
    sentencepiece_vocabulary,
)


def test_merges_apply_in_their_order():
    assert byte_level_tokenizer().encode("hello") == [258, ord("o")]
    assert byte_level_tokenizer(merges=["h e", "he l", "l l"][:1]).encode("hello") == [256, *b"llo"]


def test_control_and_user_defined_tokens_stay_whole_next_to_words():
    tokenizer = byte_level_tokenizer()
    assert tokenizer.encode("a<|im_end|>b<think>") == [ord("a"), 261, ord("b"), 262]
    assert tokenizer.all_special_ids == [259, 260, 261]  # user-defined tokens are text, not special


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, [*b"x"]),
        ({"add_bos": True}, [259, *b"x"]),
        ({"add_eos": True}, [*b"x", 260]),
        ({"add_bos": True, "add_eos": True}, [259, *b"x", 260]),
        ({"add_bos": False, "pre": "llama-bpe"}, [*b"x"]),
        ({"pre": "llama-bpe"}, [259, *b"x"]),  # the kinds whose models always begin with BOS
    ],
)
def test_begin_and_end_flags_are_honoured(flags, expected):
    tokenizer = byte_level_tokenizer(**flags)
    assert tokenizer.encode("x") == expected
    assert tokenizer.encode("x", add_special_tokens=False) == [*b"x"]


def test_begin_token_written_in_the_text_is_one_id():
    assert byte_level_tokenizer().encode("<s>x") == [259, ord("x")]


def test_sentencepiece_begins_with_bos_and_a_space_unless_told_otherwise():
    tokenizer = sentencepiece_tokenizer()
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("the")) == ["<s>", "▁the"]
    bare = sentencepiece_tokenizer(add_bos=False, add_space_prefix=False)
    assert bare.convert_ids_to_tokens(bare.encode("the")) == ["th", "e"]


def test_space_prefix_returns_after_special_tokens():
    tokenizer = sentencepiece_tokenizer(add_bos=False)
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("</s>the")) == ["</s>", "▁the"]


def test_best_score_merges_first():
    tokenizer = sentencepiece_tokenizer(add_bos=False, add_space_prefix=False)
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("ther")) == ["th", "er"]  # th beats he
    scores = list(sentencepiece_vocabulary().scores)
    scores[sentencepiece_vocabulary().tokens.index("he")] = 1.0
    other = sentencepiece_tokenizer(add_bos=False, add_space_prefix=False, scores=scores)
    assert other.convert_ids_to_tokens(other.encode("ther")) == ["t", "he", "r"]


def test_unknown_characters_fall_back_to_bytes():
    tokenizer = sentencepiece_tokenizer(add_bos=False, add_space_prefix=False)
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("é")) == ["<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("aé日🤯")) == "aé日🤯"


def test_runs_of_spaces_are_one_token_whatever_their_spelling_in_the_file():
    tokenizer = sentencepiece_tokenizer(add_bos=False, add_space_prefix=False)
    token_id = sentencepiece_vocabulary().tokens.index("  ")
    assert tokenizer.encode("a  b")[1] == token_id
    assert tokenizer.decode(tokenizer.encode("a  b")) == "a  b"


def test_end_of_generation_ids_begin_with_eos_and_hold_end_of_turn_tokens():
    assert byte_level_tokenizer().end_of_generation_ids == (260, 261)
    assert byte_level_tokenizer(special_ids={"eos": 260, "eot": 262}).end_of_generation_ids == (260, 261, 262)


def test_phi3_tokens_eat_white_space_behind_them():
    tokens = [*sentencepiece_vocabulary().tokens, "<|user|>"]
    changes = {
        "tokens": tokens,
        "types": [*sentencepiece_vocabulary().types, CONTROL],
        "scores": [*sentencepiece_vocabulary().scores, 0.0],
        "add_bos": False,
    }
    plain, phi = (sentencepiece_tokenizer(architecture=name, **changes) for name in ("llama", "phi3"))
    assert len(plain.encode("<|user|>\na")) > len(phi.encode("<|user|>\na")) == 2


def test_unknown_pre_tokenizer_kind_is_refused_by_name():
    with pytest.raises(UnsupportedError, match="'martian'"):
        build_gguf_tokenizer(byte_level_vocabulary(pre="martian"))


def test_missing_pre_tokenizer_kind_warns(caplog):
    logging.getLogger("octavo").propagate = True
    try:
        tokenizer = byte_level_tokenizer(pre="")
    finally:
        logging.getLogger("octavo").propagate = False
    assert "names no pre-tokenizer" in caplog.text
    assert tokenizer.encode("hello") == [258, ord("o")]


def test_unknown_tokenizer_model_is_refused_by_name():
    with pytest.raises(UnsupportedError, match="'rwkv'"):
        build_gguf_tokenizer(byte_level_vocabulary(model="rwkv"))


@pytest.mark.parametrize("merge", ["h", "h zz", "h x", ""])
def test_merge_that_joins_no_tokens_is_an_error(merge):
    with pytest.raises(CheckpointError, match="merge"):
        build_gguf_tokenizer(byte_level_vocabulary(merges=["h e", merge]))


def test_byte_level_vocabulary_without_merges_is_an_error():
    with pytest.raises(CheckpointError, match="merges"):
        build_gguf_tokenizer(byte_level_vocabulary(merges=[]))


def write_gguf(path, tokens, **extra):
    writer = gguf.GGUFWriter(str(path), "llama")
    vocabulary = byte_level_vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(extra.get("types", vocabulary.types))
    writer.add_token_merges(vocabulary.merges)
    for role, token_id in extra.get("special", vocabulary.special_ids).items():
        writer.add_uint32(f"tokenizer.ggml.{role}_token_id", token_id)
    writer.add_add_bos_token(True)
    writer.add_chat_template([{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}])
    if "charsmap" in extra:
        writer.add_array("tokenizer.ggml.precompiled_charsmap", extra["charsmap"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return GGUFFile(path)


def test_file_metadata_becomes_a_tokenizer(tmp_path):
    tokenizer = Tokenizer(load_gguf_tokenizer(write_gguf(tmp_path / "m.gguf", byte_level_vocabulary().tokens)))
    assert tokenizer.encode("hello<|im_end|>") == [259, 258, ord("o"), 261]
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == ("<s>", "</s>", None)
    assert dict(tokenizer.chat_templates) == {"default": "D", "tool_use": "T"}
    assert len(tokenizer) == tokenizer.vocab_size == 263


def test_duplicate_tokens_are_an_error(tmp_path):
    tokens = byte_level_vocabulary().tokens
    tokens[261] = "<s>"
    with pytest.raises(CheckpointError, match=r"'<s>' is twice .* 259 and 261"):
        read_gguf_vocabulary(write_gguf(tmp_path / "m.gguf", tokens))


def test_too_few_token_types_are_an_error(tmp_path):
    file = write_gguf(tmp_path / "m.gguf", byte_level_vocabulary().tokens, types=[NORMAL] * 5)
    with pytest.raises(CheckpointError, match=r"token_type.*263.*got 5"):
        read_gguf_vocabulary(file)


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        ({"types": [float("nan")] * 263}, "no types"),
        ({"types": [float("inf")] * 263}, "no types"),
        ({"charsmap": [0.5, 1.5]}, "must be bytes, got float"),
    ],
)
def test_numbers_of_another_kind_are_an_error(extra, problem, tmp_path):
    with pytest.raises(CheckpointError, match=problem):
        read_gguf_vocabulary(write_gguf(tmp_path / "m.gguf", byte_level_vocabulary().tokens, **extra))


def test_special_id_outside_the_vocabulary_is_ignored(tmp_path):
    file = write_gguf(tmp_path / "m.gguf", byte_level_vocabulary().tokens, special={"bos": 259, "eos": 9999})
    assert read_gguf_vocabulary(file).special_ids == {"bos": 259}


@pytest.mark.parametrize("text", ["a\ud800b", 3, None, b"bytes"])
def test_what_is_no_unicode_text_is_refused(text):
    with pytest.raises(InvalidRequestError, match=r"Unicode|must be a string"):
        byte_level_tokenizer().encode(text)


def wordpiece_tokenizer(words, **changes):
    tokens = ["[UNK]", "[CLS]", "[SEP]", *words]
    fields = {"model": "bert", "pre": "", "tokens": tokens, "scores": [0.0] * len(tokens), "merges": []}
    types = [CONTROL] * 3 + [NORMAL] * len(words)
    return Tokenizer(build_gguf_tokenizer(GGUFVocabulary(**{**fields, "types": types, **changes})))


def test_wordpiece_marks_what_goes_on_with_a_word_and_stands_between_cls_and_sep():
    tokenizer = wordpiece_tokenizer(["▁un", "▁aff", "aff", "able", "▁!"])
    pieces = tokenizer.convert_ids_to_tokens(tokenizer.encode("Unaffable! aff"))
    assert pieces == ["[CLS]", "un", "##aff", "##able", "!", "aff", "[SEP]"]
    assert tokenizer.encode("strange", add_special_tokens=False) == [0]


@pytest.mark.parametrize(
    ("words", "lowercase", "pieces"),
    [
        (["▁a", "▁b"], None, ["a", "b"]),  # has no capitals, so takes none
        (["▁a", "▁A", "▁[unused0]"], None, ["A", "[UNK]"]),
        (["▁a", "▁A"], True, ["a", "[UNK]"]),
        (["▁a", "▁b", "▁[X]"], None, ["a", "b"]),
    ],
)
def test_wordpiece_folds_case_as_the_file_says_or_its_vocabulary_shows(words, lowercase, pieces):
    tokenizer = wordpiece_tokenizer(words, lowercase=lowercase)
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("A B", add_special_tokens=False)) == pieces


def unigram_tokenizer(**changes):
    words = {"▁": -3.0, "▁a": -2.0, "b": -2.5, "▁ab": -4.0, "c": -2.0, "▁abc": -7.0}
    fields = {
        "model": "t5",
        "pre": "default",
        "tokens": ["<s>", "<pad>", "</s>", "<unk>", *words],
        "types": [CONTROL, CONTROL, CONTROL, UNKNOWN, *[NORMAL] * len(words)],
        "scores": [0.0] * 4 + list(words.values()),
        "merges": [],
        "special_ids": {"bos": 0, "padding": 1, "eos": 2, "unknown": 3},
    }
    return Tokenizer(build_gguf_tokenizer(GGUFVocabulary(**{**fields, **changes})))


def test_unigram_takes_the_likeliest_cut_between_begin_and_end():
    tokenizer = unigram_tokenizer()
    pieces = tokenizer.convert_ids_to_tokens(tokenizer.encode("  ab  abc "))
    assert pieces == ["<s>", "▁ab", "▁ab", "c", "</s>"]
    assert tokenizer.encode("z", add_special_tokens=False) == [4, 3]
    bare = unigram_tokenizer(add_bos=False, add_eos=False, add_space_prefix=False)
    assert bare.convert_ids_to_tokens(bare.encode("b")) == ["b"]


def test_an_encoder_vocabulary_without_its_special_tokens_is_refused():
    with pytest.raises(CheckpointError, match=r"has no \[SEP\]"):
        wordpiece_tokenizer([], tokens=["[UNK]", "[CLS]", "x"])


def test_a_normalisation_that_is_none_is_refused():
    with pytest.raises(CheckpointError, match="precompiled_charsmap is unusable"):
        unigram_tokenizer(charsmap=b"xx")


def test_a_normalisation_whose_table_is_damaged_fails_the_text_that_comes_to_it():
    points_outside = struct.pack("<II", 4, 2**31 - 1)  # the table's size in bytes, and its one entry
    with pytest.raises(RequestFailedError, match="tables are damaged"):
        unigram_tokenizer(charsmap=points_outside).encode("a")
