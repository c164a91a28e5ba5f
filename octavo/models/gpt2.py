"""GPT-2: learned positions, layer norms, a plain MLP, projections stored transposed."""

from __future__ import annotations

from octavo.errors import CheckpointError
from octavo.loader.hf_config import HFConfig
from octavo.models.config_reading import norm_epsilon, num_layers, positive, read_activation, refuse
from octavo.models.decoder_config import DecoderConfig, LayerConfig, WeightNames

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
    hidden_size, num_heads = positive(config, "n_embd"), positive(config, "n_head")
    if hidden_size % num_heads:
        raise CheckpointError(f"{config.source}: n_embd={hidden_size} must be a multiple of n_head={num_heads}")
    head_dim = hidden_size // num_heads
    return DecoderConfig(
        architecture="GPT2LMHeadModel",
        layers=tuple(
            LayerConfig(rope=None, attention_scale=_attention_scale(config, head_dim, index))
            for index in range(num_layers(config, "n_layer"))
        ),
        hidden_size=hidden_size,
        intermediate_size=positive(config, "n_inner", 4 * hidden_size),
        vocab_size=positive(config, "vocab_size"),
        max_position=positive(config, "n_positions"),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        norm_eps=norm_epsilon(config, "layer_norm_epsilon", 1e-5),
        activation=read_activation(config, "activation_function", "gelu_new"),
        tie_word_embeddings=config.bool("tie_word_embeddings", True),
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        gated_mlp=False,
        norm="layer",
        learned_positions=True,
    )


def _attention_scale(config: HFConfig, head_dim: int, index: int) -> float:
    scale = head_dim**-0.5 if config.bool("scale_attn_weights", True) else 1.0
    return scale / (index + 1) if config.bool("scale_attn_by_inverse_layer_idx", False) else scale
