"""Hugging Face folders: tokenizer.json and its companions, and SentencePiece's tokenizer.model."""

from __future__ import annotations

import contextlib
import io
import json
import random

import pytest
import sentencepiece
import tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from octavo.errors import CheckpointError, ModelNotFoundError, UnsupportedError
from octavo.loader.checkpoint import Checkpoint
from octavo.loader.hf_config import HFConfig
from octavo.tokenizers.hf_folder import load_hf_tokenizer
from octavo.tokenizers.sentencepiece_model import read_sentencepiece_model
from octavo.tokenizers.tokenizer import Tokenizer, load_tokenizer
from tests.tiny_models import write_tokenizer
from tests.tokenizers.vocabularies import HARD_STRINGS, byte_level_tokenizer, random_strings, sentencepiece_tokenizer


def load(folder) -> Tokenizer:
    return Tokenizer(load_hf_tokenizer(folder))


def save(folder, ours: Tokenizer, **named) -> None:
    PreTrainedTokenizerFast(tokenizer_object=ours.backend, **named).save_pretrained(str(folder))


@pytest.fixture(params=["byte-level", "sentencepiece"])
def folder(request, tmp_path):
    ours = byte_level_tokenizer() if request.param == "byte-level" else sentencepiece_tokenizer()
    named = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>", "add_bos_token": True}
    save(tmp_path, ours, chat_template="{{ messages }}", **named)
    return tmp_path


def edit_config(folder, **changes):
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("flags", [{}, {"add_bos_token": False}, {"add_bos_token": True, "add_eos_token": True}])
def test_ids_and_text_equal_transformers(folder, flags):
    edit_config(folder, **flags)
    ours, theirs = load(folder), AutoTokenizer.from_pretrained(str(folder))
    for text in (*HARD_STRINGS, *random_strings(100, seed=9)):
        ids = theirs.encode(text)
        assert ours.encode(text) == ids == ours(text)["input_ids"]
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)
        for skip in (True, False):
            expected = theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            assert ours.decode(ids, skip_special_tokens=skip) == expected


def test_the_interface_of_transformers(folder):
    ours, theirs = load(folder), AutoTokenizer.from_pretrained(str(folder))
    names = ["bos_token", "eos_token", "pad_token", "bos_token_id", "eos_token_id", "pad_token_id", "vocab_size"]
    names += ["chat_template", "is_fast"]
    for name in names:
        assert getattr(ours, name) == getattr(theirs, name), name
    assert len(ours) == len(theirs) and ours.get_vocab() == theirs.get_vocab()
    assert ours.get_added_vocab() == theirs.get_added_vocab()
    ids = ours.encode("the <s> hell")
    assert ours.convert_ids_to_tokens(ids) == theirs.convert_ids_to_tokens(ids)
    skipped = ours.convert_ids_to_tokens(ids, skip_special_tokens=True)
    assert skipped == theirs.convert_ids_to_tokens(ids, skip_special_tokens=True)
    assert ours.convert_ids_to_tokens(ids[0]) == theirs.convert_ids_to_tokens(ids[0])
    tokens = theirs.convert_ids_to_tokens(ids)
    assert ours.convert_tokens_to_ids(tokens) == ids and ours.convert_tokens_to_ids(tokens[0]) == ids[0]
    assert ours.tokenize("the hell") == theirs.tokenize("the hell")
    assert ours.decode(ids[1]) == theirs.decode(ids[1])
    assert ours(["the", "hell"])["input_ids"] == theirs(["the", "hell"])["input_ids"]
    assert ours("the hell").input_ids == theirs("the hell").input_ids
    assert ours("the hell").attention_mask == theirs("the hell").attention_mask
    with pytest.raises(AttributeError, match="pixel_values"):
        _ = ours("the hell").pixel_values
    assert ours.max_token_id == max(theirs.get_vocab().values())
    assert ours.end_of_generation_ids == (theirs.eos_token_id,)


def test_ids_without_a_token_decode_to_nothing_and_unknown_tokens_have_no_id(tmp_path):
    ours = byte_level_tokenizer()
    assert ours.decode([104, 99999, -3, 2**40]) == "h"
    assert ours.convert_ids_to_tokens(99999) is None
    assert ours.convert_tokens_to_ids("no such token") is None
    assert sentencepiece_tokenizer().convert_tokens_to_ids("no such token") == 0  # the unknown token's id


def test_truncation_and_padding_of_the_file_do_not_apply(tmp_path):
    ours = byte_level_tokenizer()
    ours.backend.enable_truncation(4)
    ours.backend.enable_padding(length=16)
    ours.backend.save(str(tmp_path / "tokenizer.json"))
    assert load(tmp_path).encode("abcdefgh") == list(b"abcdefgh")


def test_a_dropout_left_over_from_training_does_not_apply(tmp_path):
    """The same text must have the same ids, or no cached prefix, score or seed means anything."""
    write_tokenizer(tmp_path)
    text = "from transformers import AutoTokenizer, PretrainedConfig"
    expected = Tokenizer(load_hf_tokenizer(tmp_path)).encode(text)
    settings = json.loads((tmp_path / "tokenizer.json").read_text())
    settings["model"]["dropout"] = 0.9
    (tmp_path / "tokenizer.json").write_text(json.dumps(settings))
    assert Tokenizer(load_hf_tokenizer(tmp_path)).encode(text) == expected


def test_tokens_that_only_the_config_lists_are_added(tmp_path):
    byte_level_tokenizer().backend.save(str(tmp_path / "tokenizer.json"))
    listed = {"263": {"content": "<tool>", "special": True, "normalized": False}}
    config = {"added_tokens_decoder": listed, "eos_token": {"content": "<end>"}, "extra_special_tokens": ["<more>"]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours = load(tmp_path)
    assert ours.encode("<tool>x<end><more>") == [263, ord("x"), 264, 265]
    assert ours.decode([263, ord("x"), 264, 265], skip_special_tokens=True) == "x"
    assert ours.end_of_generation_ids == (264,)


def test_chat_template_files_win_over_the_config(folder):
    (folder / "chat_template.jinja").write_text("from the file")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("RAG")
    assert dict(load(folder).chat_templates) == {"default": "from the file", "rag": "RAG"}


def test_chat_templates_may_be_a_named_list(folder):
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    edit_config(folder, chat_template=[{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}])
    assert dict(load(folder).chat_templates) == {"default": "A", "tool_use": "B"}


def test_tokenizer_code_in_the_folder_never_runs(folder):
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    edit_config(folder, auto_map={"AutoTokenizer": ["evil.Evil", "evil.Evil"]}, tokenizer_class="Evil")
    assert load(folder).encode("the", add_special_tokens=False)


def test_another_folder_can_be_named(folder, tmp_path_factory):
    checkpoint = Checkpoint("m", tmp_path_factory.mktemp("empty"), "safetensors", HFConfig({}))
    with pytest.raises(UnsupportedError, match=r"no tokenizer\.json"):
        load_tokenizer(checkpoint)
    assert load_tokenizer(checkpoint, tokenizer_path=str(folder)).encode("the") == load(folder).encode("the")


@pytest.mark.model
def test_another_tokenizer_can_be_named_by_the_catalog(tmp_path, smollm2):
    checkpoint = Checkpoint("m", tmp_path, "safetensors", HFConfig({}))
    other = load_tokenizer(checkpoint, tokenizer_path="smollm2-135m-instruct")
    assert other.encode("Hi<|im_end|>") == smollm2.encode("Hi<|im_end|>")


def test_a_tokenizer_name_that_is_nowhere_is_named(tmp_path):
    checkpoint = Checkpoint("m", tmp_path, "safetensors", HFConfig({}))
    with pytest.raises(ModelNotFoundError, match="nowhere"):
        load_tokenizer(checkpoint, tokenizer_path=str(tmp_path / "nowhere"))


def test_an_empty_tokenizer_name_is_not_the_working_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
    with pytest.raises(ModelNotFoundError, match="tokenizer=''"):
        load_tokenizer(Checkpoint("m", folder, "safetensors", HFConfig({})), tokenizer_path="")


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_corrupt_files_are_named(folder, name):
    (folder / name).write_text("{not json")
    with pytest.raises(CheckpointError, match=name):
        load(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"added_tokens_decoder": {"x": "<a>"}},
        {"added_tokens_decoder": [1]},
        {"bos_token": {"text": "<s>"}},
        {"eos_token": 5},
        {"chat_template": [{"name": "default"}]},
        {"chat_template": 5},
        {"extra_special_tokens": 7},
    ],
)
def test_malformed_configs_are_named(folder, changes):
    """Each gave a KeyError, TypeError or AttributeError of our own code."""
    edit_config(folder, **changes)
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json"):
        load(folder)


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="nowhere"):
        load(tmp_path / "nowhere")


def train_sentencepiece(**options) -> bytes:
    model = io.BytesIO()
    rng = random.Random(4)
    words = ["the", "there", "then", "a", "an", "and", "naïve", "über", "in", "inner", "  x", "dinner."]
    sentences = [" ".join(rng.choices(words, k=12)) for _ in range(300)]
    defaults = {
        "model_type": "bpe",
        "vocab_size": 330,
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "user_defined_symbols": ["<table>"],
        "control_symbols": ["<end>"],
        "hard_vocab_limit": False,
        "minloglevel": 2,
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=model, **{**defaults, **options}
    )
    return model.getvalue()


@pytest.mark.parametrize("add_dummy_prefix", [True, False])
def test_tokenizer_model_gives_sentencepiece_ids(tmp_path, add_dummy_prefix):
    data = train_sentencepiece(add_dummy_prefix=add_dummy_prefix)
    (tmp_path / "tokenizer.model").write_bytes(data)
    config = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours, theirs = load(tmp_path), sentencepiece.SentencePieceProcessor(model_proto=data)
    assert ours.encode("the") == [theirs.bos_id(), *theirs.encode("the")]
    for text in ["the inner dinner.", "  and  then", "naïve 日本 x", "a", " a", "zzz\n\t!", "thethethe an"]:
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text), text
        assert ours.decode(ours.encode(text), skip_special_tokens=True) == theirs.decode(theirs.encode(text))
    assert theirs.piece_to_id("<table>") in ours.encode("a<table>b")
    assert theirs.piece_to_id("<end>") in ours.all_special_ids


@pytest.mark.parametrize(
    "options", [{"model_type": "unigram"}, {"normalization_rule_name": "nmt_nfkc"}, {"remove_extra_whitespaces": True}]
)
def test_other_sentencepiece_models_are_refused(options):
    with pytest.raises(UnsupportedError, match="only SentencePiece BPE"):
        read_sentencepiece_model(train_sentencepiece(**options), "tokenizer.model")


def test_damaged_sentencepiece_models_never_crash():
    data = train_sentencepiece()
    rng = random.Random(0)
    for _ in range(200):
        damaged = bytearray(data[: rng.randrange(len(data))])
        for _ in range(rng.randrange(3)):
            if damaged:
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        with contextlib.suppress(CheckpointError, UnsupportedError):
            read_sentencepiece_model(bytes(damaged), "tokenizer.model")


def test_decoders_that_do_more_than_concatenate_decode_at_once_but_do_not_stream(tmp_path):
    vocabulary = {"[UNK]": 0, "em": 1, "##bed": 2, "##ding": 3}
    backend = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.decoder = tokenizers.decoders.WordPiece()
    backend.save(str(tmp_path / "tokenizer.json"))
    ours = load(tmp_path)
    assert ours.decode(ours.encode("embedding")) == "embedding"
    with pytest.raises(UnsupportedError, match="decoder"):
        ours.detokenizer([1])
