"""GTE: BERT with rotary positions and gated MLPs, under the names of two publications."""

from __future__ import annotations

from octavo.loader.hf_config import HFConfig
from octavo.models.bert import head_size
from octavo.models.config_reading import norm_epsilon, num_layers, positive, read_activation, refuse, with_defaults
from octavo.models.decoder_config import LayerConfig
from octavo.models.encoder_config import EncoderConfig, EncoderNames
from octavo.models.rope_reading import read_rope, rope_parameters, rope_type_of

# as Alibaba and Snowflake publish them and Transformers saves them, and as it has them in memory
ORIGINAL_NAMES = EncoderNames(
    roots=("new.", "gte.", ""),
    qkv=("attention.qkv_proj",),
    attention_output="attention.o_proj",
    attention_norm="attn_ln",
    gate_up=("mlp.up_gate_proj",),
    up_first=True,
    down="mlp.down_proj",
    mlp_norm="mlp_ln",
)
NAMES = EncoderNames(
    roots=("gte.", ""),
    layer="layers.{index}.",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    attention_output="self_attn.o_proj",
    attention_norm="post_attention_layernorm",
    gate_up=("mlp.gate_proj", "mlp.up_proj"),
    down="mlp.down_proj",
    mlp_norm="post_mlp_layernorm",
)


def read_config(config: HFConfig) -> EncoderConfig:
    refuse(
        config, position_embedding_type="rope", layer_norm_type="layer_norm", logn_attention_scale=False, pack_qkv=True
    )
    config = with_defaults(config, head_dim=None)
    head_dim = head_size(config)
    refuse(config, head_dim=head_dim)
    rope = read_rope(_without_ntk(config, head_dim), head_dim, theta=160_000.0)
    num_token_types = config.int("type_vocab_size", 1)
    return EncoderConfig(
        architecture="GteModel",
        layers=(LayerConfig(rope, head_dim**-0.5),) * num_layers(config),
        hidden_size=positive(config, "hidden_size"),
        intermediate_size=positive(config, "intermediate_size"),
        vocab_size=positive(config, "vocab_size"),
        max_position=positive(config, "max_position_embeddings"),
        num_heads=positive(config, "num_attention_heads"),
        norm_eps=norm_epsilon(config, "layer_norm_eps", 1e-12),
        activation=read_activation(config, "hidden_act", "gelu"),
        learned_positions=False,
        num_token_types=positive(config, "type_vocab_size") if num_token_types else 0,
        mlp_bias=False,
        gated_mlp=True,
    )


def _without_ntk(config: HFConfig, head_dim: int) -> HFConfig:
    """Return the config with its "ntk" scaling in other words: a larger base, and positions that are closer by little.

    max_position_embeddings includes it.
    """
    parameters = rope_parameters(config)
    if rope_type_of(parameters) != "ntk":
        return config
    refuse(parameters, mixed_b=None)
    factor = parameters.float("factor")
    theta = parameters.float("rope_theta", config.float("rope_theta", 160_000.0))
    values = {key: value for key, value in config.values.items() if key not in ("rope_theta", "rope_parameters")}
    scaling = {"rope_type": "linear", "factor": factor ** (2 / head_dim), "rope_theta": theta * factor}
    return HFConfig({**values, "rope_scaling": scaling}, config.source)
