"""Embedding models in GGUF: the tensors, config, tokens and vectors of the folder that they were converted from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
from numpy.typing import NDArray

from octavo import LLM
from octavo.config.configs import LoadConfig
from octavo.errors import UnsupportedError
from octavo.loader import catalog
from octavo.loader.gguf_config import gguf_config
from octavo.loader.gguf_file import GGUFFile
from octavo.loader.gguf_weights import GGUFWeights
from octavo.loader.hf_config import HFConfig
from octavo.loader.resolve import open_checkpoint
from octavo.loader.safetensors_weights import SafetensorsWeights
from octavo.models.bert import read_bert_config
from octavo.models.nomic_bert import read_config as read_nomic_config

MEAN, CLS, RANK = gguf.PoolingType.MEAN, gguf.PoolingType.CLS, gguf.PoolingType.RANK
SIZES = {"vocab_size": 20, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
BERT: dict[str, Any] = {
    **SIZES,
    "intermediate_size": 24,
    "max_position_embeddings": 12,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}
NOMIC = {**BERT, "max_position_embeddings": 64, "rotary_emb_base": 1000.0, "activation_function": "swiglu"}


def bert_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    shapes = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], hidden),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], hidden),
        "embeddings.token_type_embeddings.weight": (2, hidden),
    }
    linear = {"intermediate.dense": (inner, hidden), "output.dense": (hidden, inner)}
    for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
        linear[name] = (hidden, hidden)
    norms = ["embeddings.LayerNorm"]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"encoder.layer.{layer}."
        norms += [f"{prefix}attention.output.LayerNorm", f"{prefix}output.LayerNorm"]
        for name, shape in linear.items():
            shapes |= {f"{prefix}{name}.weight": shape, f"{prefix}{name}.bias": shape[:1]}
    return shapes | {f"{norm}.{suffix}": (hidden,) for norm in norms for suffix in ("weight", "bias")}


def nomic_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    shapes = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], hidden),
        "embeddings.token_type_embeddings.weight": (2, hidden),
    }
    norms = ["emb_ln"]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"encoder.layers.{layer}."
        norms += [f"{prefix}norm1", f"{prefix}norm2"]
        shapes |= {
            f"{prefix}attn.Wqkv.weight": (3 * hidden, hidden),
            f"{prefix}attn.out_proj.weight": (hidden, hidden),
            f"{prefix}mlp.fc11.weight": (inner, hidden),
            f"{prefix}mlp.fc12.weight": (inner, hidden),
            f"{prefix}mlp.fc2.weight": (hidden, inner),
        }
    return shapes | {f"{norm}.{suffix}": (hidden,) for norm in norms for suffix in ("weight", "bias")}


def write_encoder(
    path: Path,
    architecture: str,
    config: dict[str, Any],
    tensors: dict[str, NDArray[np.float32]],
    vocabulary: dict[str, int],
    pooling: int | None = MEAN,
) -> None:
    """Write what llama.cpp's conversion writes. vocabulary: WordPiece"""
    arch = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    if "rotary_emb_base" in config:
        writer.add_rope_freq_base(config["rotary_emb_base"])
    if pooling is not None:
        writer.add_pooling_type(pooling)
    writer.add_tokenizer_model("bert")
    words = sorted(vocabulary, key=vocabulary.__getitem__)
    special = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
    writer.add_token_list(
        [word if word in special else word[2:] if word.startswith("##") else "\u2581" + word for word in words]
    )
    writer.add_token_types([gguf.TokenType.CONTROL if word in special else gguf.TokenType.NORMAL for word in words])
    for name, values in tensors.items():
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert gguf_name is not None, name
        writer.add_tensor(gguf_name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


WORDS = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmno", "##s"])}


def random_tensors(shapes: dict[str, tuple[int, ...]]) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("architecture", "config", "shapes", "read"),
    [("bert", BERT, bert_shapes, read_bert_config), ("nomic-bert", NOMIC, nomic_shapes, read_nomic_config)],
)
def test_a_converted_encoder_has_the_tensors_and_the_config_that_it_came_from(
    architecture, config, shapes, read, tmp_path
):
    tensors = random_tensors(shapes(config))
    write_encoder(tmp_path / "model.gguf", architecture, config, tensors, WORDS)
    file = GGUFFile(tmp_path / "model.gguf")
    weights = GGUFWeights(file)
    for name, values in tensors.items():
        np.testing.assert_array_equal(weights.get(name, values.shape).float32(), values, err_msg=name)
    assert weights.unused() == []
    ours, theirs = read(gguf_config(file)), read(HFConfig(config, "test"))
    assert ours.norm_eps == pytest.approx(theirs.norm_eps)
    assert {**vars(ours), "norm_eps": 0} == {**vars(theirs), "norm_eps": 0}


@pytest.mark.parametrize(("pooling", "expected"), [(MEAN, "MEAN"), (CLS, "CLS"), (None, "CLS")])
def test_the_pooling_is_that_of_the_file(pooling, expected, tmp_path):
    write_encoder(tmp_path / "model.gguf", "bert", BERT, random_tensors(bert_shapes(BERT)), WORDS, pooling)
    llm = LLM(str(tmp_path / "model.gguf"))
    assert llm.llm_engine.config.model.pooling.sequence_pooling == expected
    (output,) = llm.embed("as", use_tqdm=False)
    tokens = llm.get_tokenizer().convert_ids_to_tokens(output.prompt_token_ids)
    assert tokens == ["[CLS]", "a", "##s", "[SEP]"]
    assert np.linalg.norm(output.outputs.embedding) == pytest.approx(1)


def test_a_reranker_is_refused(tmp_path):
    write_encoder(tmp_path / "model.gguf", "bert", BERT, random_tensors(bert_shapes(BERT)), WORDS, RANK)
    with pytest.raises(UnsupportedError, match="a reranker or classifier"):
        open_checkpoint(str(tmp_path / "model.gguf"), LoadConfig())


@pytest.mark.model
@pytest.mark.native_ops
def test_a_real_model_gives_the_vectors_of_its_folder(tmp_path):
    folder = catalog.pull("all-minilm-l6-v2")
    config = json.loads((folder / "config.json").read_text())
    source = SafetensorsWeights(folder)
    tensors = {name: source.get(name, shape).float32() for name, shape in bert_shapes(config).items()}
    vocabulary = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
    write_encoder(tmp_path / "model.gguf", "bert", config, tensors, vocabulary)
    texts = ["Hello world", "Überraschung für Ärzte — naïve café!", "日本語 and 中文", "##s [MASK] unaffordable", ""]
    vectors = [
        [(output.prompt_token_ids, output.outputs.embedding) for output in LLM(str(model)).embed(texts, use_tqdm=False)]
        for model in (folder, tmp_path / "model.gguf")
    ]
    assert vectors[0] == vectors[1]
