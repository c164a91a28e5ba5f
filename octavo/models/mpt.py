"""MPT: ALiBi in place of positions, layer norms and projections without biases, a plain MLP."""

from __future__ import annotations

from dataclasses import replace

from octavo.errors import UnsupportedError
from octavo.loader.hf_config import HFConfig
from octavo.models.config_reading import positive, read_plain_config, refuse
from octavo.models.decoder_config import DecoderConfig, WeightNames

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
    max_position = positive(config, "max_seq_len", 2048)
    decoder = read_plain_config(config, "MPTForCausalLM", "d_model", "n_heads", "n_layers", max_position)
    scale = attention.float("softmax_scale", decoder.head_dim**-0.5)
    return replace(
        decoder,
        layers=tuple(replace(layer, attention_scale=scale) for layer in decoder.layers),
        intermediate_size=positive(config, "expansion_ratio", 4) * decoder.hidden_size,
        activation="gelu",
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        norm_bias=False,
        alibi_max_bias=float(positive(attention, "alibi_bias_max", 8)),
    )
