"""Nomic BERT: BERT with rotary positions and gated MLPs, under the names of two publications."""

from __future__ import annotations

from octavo.loader.hf_config import HFConfig
from octavo.models.bert import head_size
from octavo.models.config_reading import norm_epsilon, num_layers, positive, read_activation, refuse, with_defaults
from octavo.models.decoder_config import LayerConfig
from octavo.models.encoder_config import EncoderConfig, EncoderNames
from octavo.models.rope_reading import max_position, read_rope

# as nomic-ai publishes them, and as Transformers saves them since 5.0
ORIGINAL_NAMES = EncoderNames(
    roots=("bert.", ""),
    embedding_norm="emb_ln",
    layer="encoder.layers.{index}.",
    qkv=("attn.Wqkv",),
    attention_output="attn.out_proj",
    attention_norm="norm1",
    gate_up=("mlp.fc12", "mlp.fc11"),
    down="mlp.fc2",
    mlp_norm="norm2",
)
NAMES = EncoderNames(
    roots=("nomic_bert.", ""),
    layer="layers.{index}.",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    attention_output="self_attn.o_proj",
    attention_norm="post_attention_layernorm",
    gate_up=("mlp.gate_proj", "mlp.up_proj"),
    down="mlp.down_proj",
    mlp_norm="post_mlp_layernorm",
)
_RENAMED = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
}


def read_config(config: HFConfig) -> EncoderConfig:
    refuse(
        config,
        activation_function="swiglu",
        prenorm=False,
        rotary_emb_fraction=1.0,
        rotary_emb_interleaved=False,
        rotary_scaling_factor=None,
        rotary_emb_scale_base=None,
        qkv_proj_bias=False,
        mlp_fc1_bias=False,
        mlp_fc2_bias=False,
        use_rms_norm=False,
        num_experts=0,
    )
    values = {ours: config.values[theirs] for theirs, ours in _RENAMED.items() if theirs in config}
    config = with_defaults(HFConfig({**config.values, **values}, config.source), head_dim=None)
    head_dim = head_size(config)
    refuse(config, head_dim=head_dim)
    rope = read_rope(config, head_dim, theta=1000.0)
    return EncoderConfig(
        architecture="NomicBertModel",
        layers=(LayerConfig(rope, head_dim**-0.5),) * num_layers(config),
        hidden_size=positive(config, "hidden_size"),
        intermediate_size=positive(config, "intermediate_size"),
        vocab_size=positive(config, "vocab_size"),
        max_position=max_position(config, rope),
        num_heads=positive(config, "num_attention_heads"),
        norm_eps=norm_epsilon(config, "layer_norm_eps", 1e-12),
        activation=read_activation(config, "hidden_act", "silu"),
        learned_positions=False,
        num_token_types=positive(config, "type_vocab_size", 2),
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        down_bias=False,
        gated_mlp=True,
    )
