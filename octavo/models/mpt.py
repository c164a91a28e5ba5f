"""MPT: ALiBi in place of positions, layer norms and projections without biases, a plain MLP."""

from __future__ import annotations

from octavo.errors import CheckpointError, UnsupportedError
from octavo.loader.hf_config import HFConfig
from octavo.models.config_reading import norm_epsilon, num_layers, positive, refuse
from octavo.models.decoder_config import DecoderConfig, LayerConfig, WeightNames

NAMES = WeightNames(
    roots=("transformer.", ""),
    embedding="wte",
    final_norm="norm_f",
    layer="blocks.{index}.",
    qkv=("attn.Wqkv",),
    attention_output="attn.out_proj",
    gate_up=("ffn.up_proj",),
    down="ffn.down_proj",
    input_norm="norm_1",
    mlp_norm="norm_2",
)

_LAYER_NORMS = ("low_precision_layernorm", "layernorm")


def read_config(config: HFConfig) -> DecoderConfig:
    attention = config.section("attn_config") or HFConfig({}, f"{config.source}: attn_config")
    refuse(config, no_bias=True, logit_scale=None)
    refuse(attention, alibi=True, attn_type="multihead_attention", clip_qkv=None, qk_ln=False, prefix_lm=False)
    norm_type = config.str("norm_type", _LAYER_NORMS[0])
    if norm_type not in _LAYER_NORMS:
        raise UnsupportedError(
            f"{config.source}: norm_type={norm_type!r} is not supported, only {', '.join(_LAYER_NORMS)}"
        )
    hidden_size, num_heads = positive(config, "d_model"), positive(config, "n_heads")
    if hidden_size % num_heads:
        raise CheckpointError(f"{config.source}: d_model={hidden_size} must be a multiple of n_heads={num_heads}")
    head_dim = hidden_size // num_heads
    scale = attention.float("softmax_scale", head_dim**-0.5)
    return DecoderConfig(
        architecture="MPTForCausalLM",
        layers=(LayerConfig(rope=None, attention_scale=scale),) * num_layers(config, "n_layers"),
        hidden_size=hidden_size,
        intermediate_size=positive(config, "expansion_ratio", 4) * hidden_size,
        vocab_size=positive(config, "vocab_size"),
        max_position=positive(config, "max_seq_len", 2048),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        norm_eps=norm_epsilon(config, "layer_norm_epsilon", 1e-5),
        activation="gelu",
        tie_word_embeddings=config.bool("tie_word_embeddings", True),
        gated_mlp=False,
        norm="layer",
        norm_bias=False,
        alibi_max_bias=float(positive(attention, "alibi_bias_max", 8)),
    )
