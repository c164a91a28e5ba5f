"""ModernBERT: rotary positions by layer type, windows on both sides, gated MLPs, norms before attention and MLP."""

from __future__ import annotations

from octavo.loader.hf_config import HFConfig
from octavo.models.bert import head_size
from octavo.models.config_reading import (
    norm_epsilon,
    num_layers,
    positive,
    read_activation,
    read_layer_types,
    with_defaults,
)
from octavo.models.decoder_config import LayerConfig
from octavo.models.encoder_config import EncoderConfig, EncoderNames
from octavo.models.rope_reading import LAYER_TYPES, read_rope

NAMES = EncoderNames(
    roots=("model.", ""),
    embedding="embeddings.tok_embeddings",
    embedding_norm="embeddings.norm",
    layer="layers.{index}.",
    qkv=("attn.Wqkv",),
    attention_output="attn.Wo",
    attention_norm="attn_norm",
    gate_up=("mlp.Wi",),
    down="mlp.Wo",
    mlp_norm="mlp_norm",
    final_norm="final_norm",
    harmless=(r"^decoder\.", r"^head\."),  # of the masked language model
)


def read_config(config: HFConfig) -> EncoderConfig:
    config = with_defaults(config, max_position_embeddings=8192, local_attention=128)
    head_dim, count = head_size(config), num_layers(config)
    period = positive(config, "global_attn_every_n_layers", 3)
    default = ["sliding_attention" if index % period else "full_attention" for index in range(count)]
    layer_types = read_layer_types(config, default)
    thetas = {
        "full_attention": config.float("global_rope_theta", 160_000.0),
        "sliding_attention": config.float("local_rope_theta", 10_000.0),
    }
    ropes = {name: read_rope(config, head_dim, name, thetas[name]) for name in LAYER_TYPES}
    # half of local_attention on either side, beside the token itself
    windows = {"full_attention": None, "sliding_attention": positive(config, "local_attention") // 2 + 1}
    biased = config.bool("mlp_bias", False)
    return EncoderConfig(
        architecture="ModernBertModel",
        layers=tuple(LayerConfig(ropes[name], head_dim**-0.5, windows[name]) for name in layer_types),
        hidden_size=positive(config, "hidden_size"),
        intermediate_size=positive(config, "intermediate_size"),
        vocab_size=positive(config, "vocab_size"),
        max_position=positive(config, "max_position_embeddings"),
        num_heads=positive(config, "num_attention_heads"),
        norm_eps=norm_epsilon(config, "norm_eps", 1e-5),
        activation=read_activation(config, "hidden_activation", "gelu"),
        learned_positions=False,
        qkv_bias=config.bool("attention_bias", False),
        output_bias=config.bool("attention_bias", False),
        mlp_bias=biased,
        down_bias=biased,
        norm_bias=config.bool("norm_bias", False),
        gated_mlp=True,
        post_norm=False,
    )
