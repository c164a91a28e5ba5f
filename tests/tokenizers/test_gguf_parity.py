"""Real GGUF vocabularies against Transformers: same ids for every text, same text for every id."""

from __future__ import annotations

import random

import pytest
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

from octavo.loader.catalog import pull
from tests.tokenizers.vocabularies import HARD_STRINGS, random_strings

pytestmark = pytest.mark.model


@pytest.fixture(scope="module", params=["smollm2-135m-instruct", "gemma-3-270m"])
def pair(request):
    """Return (our tokenizer, Transformers' tokenizer of the same file)."""
    path = pull(request.param)
    theirs = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    if request.param.startswith("smollm2"):
        # Transformers does not know the kind "smollm" and leaves out the cut around digits, which SmolLM2's own
        # tokenizer.json has (Digits(individual_digits=True) before ByteLevel): " ²" and "\t \n2" would differ.
        theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    return request.getfixturevalue(request.param.split("-")[0]), theirs


@pytest.mark.parametrize("add_special_tokens", [True, False])
def test_ids_equal_transformers(pair, add_special_tokens):
    ours, theirs = pair
    for text in (*HARD_STRINGS, *random_strings(700, seed=1)):
        if not text and add_special_tokens:  # of Transformers' releases some leave a lone BOS out
            assert ours.encode(text) == ours.encode("a")[:-1]
            continue
        expected = theirs.encode(text, add_special_tokens=add_special_tokens)
        assert ours.encode(text, add_special_tokens=add_special_tokens) == expected, repr(text)


@pytest.mark.parametrize("skip_special_tokens", [True, False])
def test_decoded_text_equals_transformers(pair, skip_special_tokens):
    ours, theirs = pair
    rng = random.Random(2)
    texts = [theirs.encode(text) for text in (*HARD_STRINGS, *random_strings(300, seed=3))]
    # Byte tokens of SentencePiece vocabularies are left out of the random ids; see the next test.
    noise = [[rng.randrange(300, len(ours)) for _ in range(rng.randrange(1, 30))] for _ in range(500)]
    for ids in texts + noise:
        expected = theirs.decode(ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False)
        assert ours.decode(ids, skip_special_tokens=skip_special_tokens) == expected, ids


def test_valid_characters_next_to_invalid_bytes_survive(gemma):
    """The tokenizers library turns a whole run of byte tokens into U+FFFD when one byte of it is invalid; we do not,
    because streaming has shown the valid characters already."""
    ids = gemma.convert_tokens_to_ids(["<0x41>", "<0x86>", "<0x29>"])
    assert gemma.backend.decode(ids) == "\ufffd" * 3
    assert gemma.decode(ids) == "A\ufffd)"


def test_chat_markers_are_single_ids(smollm2, gemma):
    ids = smollm2.encode("<|im_start|>user\nHi<|im_end|>")
    assert ids == [1, 4093, 198, 26843, 2]  # ids of HuggingFaceTB/SmolLM2-135M-Instruct
    assert gemma.encode("<start_of_turn>user\nhi<end_of_turn>\n")[:2] == [2, 105]
    assert gemma.encode("<end_of_turn>", add_special_tokens=False) == [106]


def test_end_of_generation_holds_the_chat_models_end_of_turn(smollm2, gemma):
    assert smollm2.convert_ids_to_tokens(smollm2.end_of_generation_ids) == ["<|im_end|>", "<|endoftext|>"]
    # </s> is strike-through HTML in Gemma's vocabulary and must not end an answer
    assert gemma.convert_ids_to_tokens(gemma.end_of_generation_ids) == ["<eos>", "<end_of_turn>"]


@pytest.mark.parametrize("text", ["naïve café", "日本語", "🤯👩‍👩‍👧‍👦", "ﷺ ½", "a\n\n  b", "<|im_end|>"])
def test_token_bytes_join_to_the_text(smollm2, gemma, text):
    for tokenizer in (smollm2, gemma):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert b"".join(tokenizer.token_bytes(token_id) for token_id in ids) == text.encode()


def test_partial_characters_have_their_true_bytes(smollm2):
    pieces = [smollm2.token_bytes(token_id) for token_id in smollm2.encode("🤯")]
    assert len(pieces) > 1 and b"".join(pieces) == "🤯".encode()
    assert "\ufffd".encode() not in pieces


def test_every_token_has_bytes_and_ids_beyond_the_vocabulary_have_none(smollm2):
    assert all(smollm2.token_bytes(token_id) for token_id in range(len(smollm2)))
    assert smollm2.token_bytes(len(smollm2)) == smollm2.token_bytes(-1) == smollm2.token_bytes(2**70) == b""
