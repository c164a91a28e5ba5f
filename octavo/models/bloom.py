"""BLOOM: ALiBi in place of positions, a norm after the embeddings, projections fused head by head, biases."""

from __future__ import annotations

from octavo.errors import CheckpointError
from octavo.loader.hf_config import HFConfig
from octavo.models.config_reading import norm_epsilon, num_layers, positive, refuse
from octavo.models.decoder_config import DecoderConfig, LayerConfig, WeightNames

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
    hidden_size = positive(config, _either(config, "n_embed", "hidden_size"))
    num_heads = positive(config, _either(config, "n_head", "num_attention_heads"))
    if hidden_size % num_heads:
        raise CheckpointError(f"{config.source}: the hidden size {hidden_size} must be a multiple of {num_heads} heads")
    head_dim = hidden_size // num_heads
    layer = LayerConfig(rope=None, attention_scale=head_dim**-0.5)
    return DecoderConfig(
        architecture="BloomForCausalLM",
        layers=(layer,) * num_layers(config, _either(config, "n_layer", "num_hidden_layers")),
        hidden_size=hidden_size,
        intermediate_size=positive(config, "n_inner", 4 * hidden_size),
        vocab_size=positive(config, "vocab_size"),
        max_position=positive(config, "seq_length", 2048),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        norm_eps=norm_epsilon(config, "layer_norm_epsilon", 1e-5),
        activation="gelu_tanh",
        tie_word_embeddings=config.bool("tie_word_embeddings", True),
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        gated_mlp=False,
        norm="layer",
        embedding_norm=True,
        alibi_max_bias=8.0,
    )


def _either(config: HFConfig, *keys: str) -> str:
    """Return the key that the config has: published checkpoints and Transformers name sizes differently."""
    return next((key for key in keys if key in config), keys[-1])
