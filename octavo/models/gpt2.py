"""GPT-2: learned positions, layer norms, a plain MLP, projections stored transposed."""

from __future__ import annotations

from dataclasses import replace

from octavo.loader.hf_config import HFConfig
from octavo.models.config_reading import positive, read_activation, read_plain_config, refuse
from octavo.models.decoder_config import DecoderConfig, WeightNames

NAMES = WeightNames(
    roots=("transformer.", ""),
    embedding="wte",
    positions="wpe",
    final_norm="ln_f",
    layer="h.{index}.",
    qkv=("attn.c_attn",),
    attention_output="attn.c_proj",
    gate_up=("mlp.c_fc",),
    down="mlp.c_proj",
    input_norm="ln_1",
    mlp_norm="ln_2",
    transposed=True,
    harmless=(r"\.attn\.(bias|masked_bias)$",),  # causal masks
)


def read_config(config: HFConfig) -> DecoderConfig:
    refuse(config, add_cross_attention=False)
    max_position = positive(config, "n_positions")
    decoder = read_plain_config(config, "GPT2LMHeadModel", "n_embd", "n_head", "n_layer", max_position)
    return replace(
        decoder,
        layers=tuple(
            replace(layer, attention_scale=_attention_scale(config, decoder.head_dim, index))
            for index, layer in enumerate(decoder.layers)
        ),
        activation=read_activation(config, "activation_function", "gelu_new"),
        learned_positions=True,
    )


def _attention_scale(config: HFConfig, head_dim: int, index: int) -> float:
    scale = head_dim**-0.5 if config.bool("scale_attn_weights", True) else 1.0
    return scale / (index + 1) if config.bool("scale_attn_by_inverse_layer_idx", False) else scale
