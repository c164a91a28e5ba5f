"""Config values are honoured or refused, never ignored."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from octavo.errors import CheckpointError, OctavoError, UnsupportedError
from octavo.layers.rotary import LinearRope, Rope, YarnRope
from octavo.loader.hf_config import HFConfig
from octavo.models import (
    gemma2,
    gemma3,
    glm4_moe,
    gpt_oss,
    granite,
    llama,
    mistral,
    phi3,
    qwen2,
    qwen3,
    smollm3,
    starcoder2,
)
from octavo.models.registry import ARCHITECTURES, describe

SIZES: dict[str, Any] = dict(
    vocab_size=97,
    hidden_size=64,
    intermediate_size=80,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
)


def config(**values: Any) -> HFConfig:
    return HFConfig({**SIZES, **values})


def windows(decoder: Any) -> list[int | None]:
    return [layer.sliding_window for layer in decoder.layers]


# -- sliding windows ---------------------------------------------------------------------------------------------------


def test_mistral_null_window_means_none_and_absent_means_transformers_default() -> None:
    assert windows(mistral.read_config(config(sliding_window=None))) == [None] * 4
    assert windows(mistral.read_config(config(sliding_window=12))) == [12] * 4
    assert windows(mistral.read_config(config())) == [4096] * 4


@pytest.mark.parametrize("reader", [mistral, phi3, starcoder2])
def test_layer_types_that_mix_are_refused_where_all_layers_are_alike(reader: Any) -> None:
    mixed = ["full_attention", "sliding_attention"] * 2
    with pytest.raises(UnsupportedError, match="layer_types"):
        reader.read_config(config(sliding_window=12, layer_types=mixed))
    assert windows(reader.read_config(config(sliding_window=12, layer_types=["sliding_attention"] * 4))) == [12] * 4


@pytest.mark.parametrize("reader", [qwen2, qwen3])
def test_qwen_windows_need_the_switch_and_start_at_max_window_layers(reader: Any) -> None:
    off = config(sliding_window=12, use_sliding_window=False, max_window_layers=1)
    assert windows(reader.read_config(off)) == [None] * 4
    on = config(sliding_window=12, use_sliding_window=True, max_window_layers=3)
    assert windows(reader.read_config(on)) == [None, None, None, 12]
    types = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]
    listed = config(sliding_window=12, use_sliding_window=True, layer_types=types)
    assert windows(reader.read_config(listed)) == [12, None, None, 12]
    with pytest.raises(CheckpointError, match="sliding_window"):
        reader.read_config(config(sliding_window=12, use_sliding_window=False, layer_types=types))


def test_dots_windows_start_at_max_window_layers_without_a_switch() -> None:
    values = config(sliding_window=12, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
    assert windows(glm4_moe.read_dots_config(values)) == [None] * 4
    upper = HFConfig({**values.values, "max_window_layers": 3})
    assert windows(glm4_moe.read_dots_config(upper)) == [None, None, None, 12]


@pytest.mark.parametrize("key", ["num_nextn_predict_layers", "n_shared_experts", "first_k_dense_replace"])
@pytest.mark.parametrize("value", [-1, 10**12])
def test_numbers_of_experts_and_layers_are_within_reason(key: str, value: int) -> None:
    values = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, key: value}
    with pytest.raises(CheckpointError, match=f"'{key}' must be from 0 to"):
        glm4_moe.read_glm_config(config(**values))


def test_what_glm_and_gpt_oss_leave_out_is_what_transformers_takes() -> None:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    glm = glm4_moe.read_glm_config(config(**experts))
    assert glm.norm_eps == 1e-5 and glm.layers[1].rope is not None and glm.layers[1].rope.dim == 8
    assert glm.layers[1].experts is not None and glm.layers[1].experts.routing.renormalize
    dots = glm4_moe.read_dots_config(config(**experts))
    assert dots.layers[1].experts is not None and not dots.layers[1].experts.routing.renormalize
    gpt = gpt_oss.read_config(config(**experts))
    rope = gpt.layers[0].rope
    assert gpt.head_dim == 64 and isinstance(rope, YarnRope)
    assert (rope.factor, rope.original_length, rope.truncate, rope.theta) == (32.0, 4096, False, 150_000.0)
    assert windows(gpt) == [128, None, 128, None]


def test_gemma_layers_alternate_by_default() -> None:
    assert windows(gemma2.read_config(config(sliding_window=12))) == [12, None, 12, None]
    assert windows(gemma3.read_config(config(sliding_window=12, sliding_window_pattern=3))) == [12, 12, None, 12]
    seven = gemma3.read_config(config(sliding_window=12, num_hidden_layers=7))
    assert windows(seven) == [12, 12, 12, 12, 12, None, 12]


def test_layer_types_must_be_known_and_cover_all_layers() -> None:
    with pytest.raises(UnsupportedError, match="chunked_attention"):
        qwen3.read_config(config(layer_types=["chunked_attention"] * 4))
    with pytest.raises(CheckpointError, match="all 4 layers"):
        qwen3.read_config(config(layer_types=["full_attention"] * 3))


# -- rotations ---------------------------------------------------------------------------------------------------------


def test_gemma3_rotations_in_both_spellings() -> None:
    linear = {"rope_type": "linear", "factor": 8.0}
    old = config(num_hidden_layers=6, rope_theta=5e5, rope_local_base_freq=2e3, rope_scaling=linear)
    new = config(
        num_hidden_layers=6,
        rope_parameters={
            "full_attention": {**linear, "rope_theta": 5e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e3},
        },
    )
    expected = {None: LinearRope(5e5, 256, 8.0), 4096: Rope(2e3, 256)}
    for spelling in (old, new):
        decoder = gemma3.read_config(spelling)
        assert {
            layer.sliding_window: layer.rope for layer in decoder.layers + decoder.layers[:0]
        } | expected == expected
        # 256 already includes the factor: it is not applied again
        assert decoder.max_position == 256
    assert {layer.rope for layer in gemma3.read_config(config(num_hidden_layers=6)).layers} == {
        Rope(1e6, 256),
        Rope(1e4, 256),
    }


def test_smollm3_layers_without_rotation() -> None:
    def rotates(**values: Any) -> list[bool]:
        return [layer.rope is not None for layer in smollm3.read_config(config(**values)).layers]

    assert rotates() == [True, True, True, False]
    assert rotates(no_rope_layer_interval=2) == [True, False, True, False]
    assert rotates(no_rope_layers=[0, 1, 1, 1]) == [False, True, True, True]
    with pytest.raises(CheckpointError, match="no_rope_layers"):
        smollm3.read_config(config(no_rope_layers=[1, 0]))
    assert smollm3.read_config(config()).layers[0].rope == Rope(2e6, 16)


# -- other values ------------------------------------------------------------------------------------------------------


def test_biases_follow_the_config() -> None:
    plain = llama.read_config(config())
    assert (plain.qkv_bias, plain.output_bias, plain.mlp_bias) == (False, False, False)
    biased = llama.read_config(config(attention_bias=True, mlp_bias=True))
    assert (biased.qkv_bias, biased.output_bias, biased.mlp_bias) == (True, True, True)
    qwen = qwen2.read_config(config())
    assert (qwen.qkv_bias, qwen.output_bias, qwen.mlp_bias) == (True, False, False)


def test_tying_defaults_are_those_of_each_architecture() -> None:
    readers = (llama, mistral, qwen2, phi3, granite)
    assert not any(reader.read_config(config()).tie_word_embeddings for reader in readers)
    assert all(reader.read_config(config()).tie_word_embeddings for reader in (gemma2, gemma3, smollm3, starcoder2))


@pytest.mark.parametrize(
    ("architecture", "values", "named"),
    [
        ("LlamaForCausalLM", {"hidden_act": "xielu"}, "xielu"),
        ("LlamaForCausalLM", {"rope_interleaved": True}, "rope_interleaved"),
        ("MistralForCausalLM", {"attention_bias": True}, "attention_bias"),
        ("Qwen2ForCausalLM", {"use_mrope": True}, "use_mrope"),
        ("Phi3ForCausalLM", {"lm_head_bias": True}, "lm_head_bias"),
        ("Qwen2ForCausalLM", {"dual_chunk_attention_config": {"chunk_size": 4}}, "dual_chunk_attention_config"),
        ("Gemma2ForCausalLM", {"use_bidirectional_attention": True}, "pooling"),
        ("Gemma3ForCausalLM", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ("Starcoder2ForCausalLM", {"norm_type": "rms_norm"}, "norm_type"),
        ("Olmo2ForCausalLM", {"clip_qkv": 8.0}, "clip_qkv"),
        ("Phi3ForCausalLM", {"mlp_bias": True}, "mlp_bias"),
        ("GPT2LMHeadModel", {"add_cross_attention": True}, "add_cross_attention"),
    ],
)
def test_options_that_are_not_there_are_refused_by_name(architecture: str, values: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedError, match=named):
        describe(config(architectures=[architecture], **values))


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"num_key_value_heads": 3}, "multiple of num_key_value_heads=3"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"rope_theta": 0.0}, "rope_theta"),
        ({"rope_theta": float("nan")}, "rope_theta"),
        ({"hidden_size": -64}, "hidden_size"),
        ({"vocab_size": "97"}, "vocab_size"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"intermediate_size": None}, "intermediate_size"),
        ({"max_position_embeddings": 0}, "max_position_embeddings"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
        ({"rms_norm_eps": -1}, "rms_norm_eps"),
        ({"rms_norm_eps": 1e30}, "rms_norm_eps"),
        ({"max_position_embeddings": 2**31}, "max_position_embeddings"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 1e30}}, "max_position_embeddings"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_fast": -1.0}}, "no rotation follows"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "attention_factor": 0}}, "magnitude"),
        ({"rope_theta": 1e6, "rope_parameters": {"rope_theta": 1e4}}, "contradicts rope_parameters.rope_theta=10000"),
    ],
)
def test_impossible_values_are_refused_by_name(values: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        describe(config(architectures=["LlamaForCausalLM"], **values))


@pytest.mark.parametrize("cap", [0, -1.0])
@pytest.mark.parametrize("reader", [gemma2, gemma3])
def test_a_soft_cap_is_positive_or_absent(reader: Any, cap: float) -> None:
    with pytest.raises(CheckpointError, match="final_logit_softcapping"):
        reader.read_config(config(final_logit_softcapping=cap))
    assert reader.read_config(config(final_logit_softcapping=None)).logits_softcap is None


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("broken", [None, 0, -1, 1, "x", [], {}, True, 1e30, float("nan"), 10**15, 10**400, [[1]]])
def test_no_value_of_any_key_raises_anything_but_our_errors(architecture: str, broken: object) -> None:
    """Whatever a config.json holds, the outcome is a model description or a typed error."""
    base = {
        **SIZES,
        "n_embd": 64,
        "n_head": 4,
        "n_layer": 2,
        "n_positions": 64,
        "d_model": 64,
        "n_heads": 4,
        "n_layers": 2,
        "attn_config": {"alibi_bias_max": 8},
        "sliding_window": 12,
        "query_pre_attn_scalar": 16,
        "rope_theta": 1e4,
        "head_dim": 16,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        "logits_scaling": 2.0,
        "norm_epsilon": 1e-5,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [0],
        "shared_expert_intermediate_size": 48,
        "shared_intermediate_size": 48,
        "n_shared_experts": 1,
        "routed_scaling_factor": 1.5,
        "first_k_dense_replace": 1,
        "num_nextn_predict_layers": 0,
    }
    nested = {"text_config": base} if architecture == "Gemma3ForConditionalGeneration" else {}
    assert describe(HFConfig({**base, **nested, "architectures": [architecture]})).num_layers >= 2
    for key in base:
        values = {**base, key: broken}
        if nested:
            values = {"text_config": values}
        with contextlib.suppress(OctavoError):
            describe(HFConfig({**values, "architectures": [architecture]}))
