"""Gemma 2: norms before and after each block, soft caps, every other layer slides."""

from __future__ import annotations

from dataclasses import replace

from octavo.loader.hf_config import HFConfig
from octavo.models.config_reading import (
    inverse_root,
    optional_softcap,
    read_activation,
    read_decoder_config,
    read_layer_types,
    refuse,
    with_defaults,
    with_windows,
)
from octavo.models.decoder_config import DecoderConfig, WeightNames

NAMES = WeightNames(mlp_norm="pre_feedforward_layernorm")


def read_config(config: HFConfig) -> DecoderConfig:
    config = with_defaults(
        config,
        head_dim=256,
        sliding_window=4096,
        query_pre_attn_scalar=256,
        final_logit_softcapping=30.0,
        attn_logit_softcapping=50.0,
        tie_word_embeddings=True,
    )
    refuse(config, mlp_bias=False)
    decoder = read_decoder_config(config, "Gemma2ForCausalLM")
    scale = inverse_root(config, "query_pre_attn_scalar")
    alternating = ["full_attention" if index % 2 else "sliding_attention" for index in range(len(decoder.layers))]
    decoder = replace(
        decoder,
        layers=tuple(replace(layer, attention_scale=scale) for layer in decoder.layers),
        norm="rms_plus_one",
        post_norm=True,
        activation=read_activation(config, "hidden_activation", "gelu_pytorch_tanh"),
        embedding_scale=decoder.hidden_size**0.5,
        attention_softcap=optional_softcap(config, "attn_logit_softcapping"),
        logits_softcap=optional_softcap(config, "final_logit_softcapping"),
    )
    return with_windows(config, decoder, read_layer_types(config, alternating))
