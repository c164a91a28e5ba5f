"""BLOOM: ALiBi in place of positions, a norm after the embeddings, projections fused head by head, biases."""

from __future__ import annotations

from dataclasses import replace

from octavo.loader.hf_config import HFConfig
from octavo.models.config_reading import positive, read_plain_config, refuse
from octavo.models.decoder_config import DecoderConfig, WeightNames

NAMES = WeightNames(
    roots=("transformer.", ""),
    embedding="word_embeddings",
    embedding_norm="word_embeddings_layernorm",
    final_norm="ln_f",
    layer="h.{index}.",
    qkv=("self_attention.query_key_value",),
    qkv_by_head=True,
    attention_output="self_attention.dense",
    gate_up=("mlp.dense_h_to_4h",),
    down="mlp.dense_4h_to_h",
)


def read_config(config: HFConfig) -> DecoderConfig:
    refuse(config, apply_residual_connection_post_layernorm=False)
    keys = (("n_embed", "hidden_size"), ("n_head", "num_attention_heads"), ("n_layer", "num_hidden_layers"))
    size, heads, layers = (_either(config, *names) for names in keys)
    decoder = read_plain_config(config, "BloomForCausalLM", size, heads, layers, positive(config, "seq_length", 2048))
    return replace(decoder, embedding_norm=True, alibi_max_bias=8.0)


def _either(config: HFConfig, *keys: str) -> str:
    """Return the key that the config has: published checkpoints and Transformers name sizes differently."""
    return next((key for key in keys if key in config), keys[-1])
