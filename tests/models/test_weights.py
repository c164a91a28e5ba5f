"""Tied and untied output projections, checkpoints from files, and tensors that are missing or left over."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM, Gemma3Config, Gemma3TextConfig, GPT2Config, LlamaConfig, PreTrainedModel

from octavo.config import LoadConfig
from octavo.errors import CheckpointError, ConfigError, UnsupportedError
from octavo.loader.hf_config import HFConfig
from octavo.loader.open import open_weights
from octavo.loader.resolve import open_checkpoint
from octavo.models.registry import ARCHITECTURES, build_model, describe
from octavo.ops.reference import ReferenceOps
from tests.models.harness import TINY, ArrayWeights, PagedRun, hf_config, random_model, tensors_of, transformers_logits

OPS = ReferenceOps()
TOKENS = np.random.default_rng(0).integers(0, 97, 20).tolist()
Tensors = dict[str, NDArray[np.float32]]


def tiny(tied: bool) -> PreTrainedModel:
    return random_model(LlamaConfig(**TINY, tie_word_embeddings=tied))


def logits_of(config: HFConfig, tensors: Tensors) -> NDArray[np.float32]:
    return PagedRun(build_model(config, ArrayWeights(tensors), OPS, 64), OPS).run(TOKENS)


def folder_logits(folder: Path) -> NDArray[np.float32]:
    checkpoint = open_checkpoint(str(folder), LoadConfig())
    model = build_model(checkpoint.config, open_weights(checkpoint, LoadConfig()), OPS, 64)
    return PagedRun(model, OPS).run(TOKENS)


def test_a_tied_file_that_repeats_the_embedding_as_lm_head_loads_and_shares_one_weight() -> None:
    model = tiny(tied=True)
    tensors = tensors_of(model)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    ours = build_model(hf_config(model), ArrayWeights(tensors), OPS, 64)
    assert ours.lm_head.weight is ours.embedding.table  # type: ignore[attr-defined]
    np.testing.assert_allclose(PagedRun(ours, OPS).run(TOKENS), transformers_logits(model, TOKENS), rtol=0, atol=1e-4)


def test_a_tied_file_whose_lm_head_differs_is_not_tied_as_in_transformers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny(tied=False)
    model.save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"tie_word_embeddings": false', '"tie_word_embeddings": true'))
    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    with caplog.at_level(logging.WARNING):
        logits = folder_logits(tmp_path)
    assert "lm_head differs" in caplog.text
    np.testing.assert_allclose(logits, transformers_logits(reloaded, TOKENS), rtol=0, atol=1e-4)
    np.testing.assert_allclose(logits, transformers_logits(model, TOKENS), rtol=0, atol=1e-4)


def test_a_tied_file_that_only_has_the_lm_head_uses_it_for_both() -> None:
    model = tiny(tied=True)
    tensors = tensors_of(model)
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    logits = logits_of(hf_config(model), tensors)
    np.testing.assert_allclose(logits, transformers_logits(model, TOKENS), rtol=0, atol=1e-4)


def test_an_untied_file_uses_its_lm_head() -> None:
    model = tiny(tied=False)
    tensors = tensors_of(model)
    assert not np.array_equal(tensors["lm_head.weight"], tensors["model.embed_tokens.weight"])
    logits = logits_of(hf_config(model), tensors)
    np.testing.assert_allclose(logits, transformers_logits(model, TOKENS), rtol=0, atol=1e-4)


def test_an_untied_file_without_lm_head_is_refused_with_the_way_out() -> None:
    model = tiny(tied=False)
    tensors = tensors_of(model)
    del tensors["lm_head.weight"]
    with pytest.raises(CheckpointError, match=r"^arrays: .* no lm_head\.weight; set tie_word_embeddings to true"):
        logits_of(hf_config(model), tensors)


@pytest.mark.parametrize("prefix", ["_orig_mod.", "language_model."])
def test_tensors_under_another_prefix_are_told_as_such(tmp_path: Path, prefix: str) -> None:
    """As compiled and wrapped models are saved; tying the embeddings, the way out that was told, led nowhere."""
    model = tiny(tied=False)
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({prefix + name: tensor for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"there is '{prefix}model\.embed_tokens\.weight'"):
        folder_logits(tmp_path)


@pytest.mark.parametrize("shard_size", ["1GB", "30KB"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_saved_folder_single_or_sharded_gives_the_models_logits(tmp_path: Path, tied: bool, shard_size: str) -> None:
    model = tiny(tied)
    model.save_pretrained(tmp_path, max_shard_size=shard_size)
    assert (tmp_path / "model.safetensors.index.json").exists() == (shard_size == "30KB")
    np.testing.assert_allclose(folder_logits(tmp_path), transformers_logits(model, TOKENS), rtol=0, atol=1e-4)


def test_tensors_without_a_place_are_refused_by_name() -> None:
    model = random_model(LlamaConfig(**TINY, attention_bias=True))
    config = hf_config(model)
    config.values["attention_bias"] = False
    with pytest.raises(
        CheckpointError, match=r"^arrays: .* not use: model\.layers\.0\.self_attn\.k_proj\.bias, .* more"
    ):
        logits_of(config, tensors_of(model))


def test_a_missing_tensor_is_named() -> None:
    model = tiny(tied=True)
    tensors = tensors_of(model)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        logits_of(hf_config(model), tensors)


def test_a_tensor_of_another_shape_is_refused_with_both_shapes() -> None:
    model = tiny(tied=True)
    config = hf_config(model)
    config.values["intermediate_size"] = 96
    with pytest.raises(CheckpointError, match=r"\[64, 80\].*\[64, 96\]"):
        logits_of(config, tensors_of(model))


def test_harmless_leftovers_of_old_checkpoints_load() -> None:
    model = tiny(tied=True)
    tensors = tensors_of(model)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8, np.float32)
    np.testing.assert_allclose(
        logits_of(hf_config(model), tensors), transformers_logits(model, TOKENS), rtol=0, atol=1e-4
    )


def test_gpt2_loads_with_and_without_its_prefix_and_its_stored_masks() -> None:
    model = random_model(GPT2Config(vocab_size=97, n_positions=64, n_embd=32, n_layer=2, n_head=4, eos_token_id=2))
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in tensors_of(model).items()}
    tensors["h.0.attn.bias"] = np.ones((1, 1, 64, 64), np.float32)
    tensors["h.0.attn.masked_bias"] = np.float32(-1e4).reshape(())
    np.testing.assert_allclose(
        logits_of(hf_config(model), tensors), transformers_logits(model, TOKENS), rtol=0, atol=1e-4
    )


def test_gpt2_has_no_positions_past_its_table() -> None:
    model = random_model(GPT2Config(vocab_size=97, n_positions=64, n_embd=32, n_layer=1, n_head=4, eos_token_id=2))
    with pytest.raises(ConfigError, match="max_model_len=65 exceeds the 64 learned positions"):
        build_model(hf_config(model), ArrayWeights(tensors_of(model)), OPS, 65)


@pytest.mark.parametrize("spelling", ["model.language_model.", "language_model.model."])
def test_the_text_half_of_a_multimodal_gemma3_is_used(spelling: str) -> None:
    text_config = Gemma3TextConfig(**TINY, head_dim=16, sliding_window=13)
    model = random_model(text_config)
    vision = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    whole = Gemma3Config(text_config=text_config.to_dict(), vision_config=vision)
    config = HFConfig({**whole.to_dict(), "architectures": ["Gemma3ForConditionalGeneration"]})
    tensors = {name.replace("model.", spelling, 1): tensor for name, tensor in tensors_of(model).items()}
    tensors["vision_tower.vision_model.embeddings.patch_embedding.weight"] = np.ones((16, 3), np.float32)
    assert describe(config).vocab_size == TINY["vocab_size"]
    np.testing.assert_allclose(logits_of(config, tensors), transformers_logits(model, TOKENS), rtol=0, atol=1e-4)


def test_an_unknown_architecture_is_refused_with_the_list_of_known_ones() -> None:
    with pytest.raises(UnsupportedError) as refusal:
        describe(HFConfig({"architectures": ["MambaForCausalLM"]}))
    assert "MambaForCausalLM" in str(refusal.value)
    assert all(name in str(refusal.value) for name in ARCHITECTURES)
    with pytest.raises(CheckpointError, match="architectures"):
        describe(HFConfig({}))
