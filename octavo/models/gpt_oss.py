"""gpt-oss: mixtures of experts with biases, sinks in the attention, and a sliding window in every other layer.

The experts' gate and up lie in one tensor, a column of each in turn. In published checkpoints they are MXFP4.
"""

from __future__ import annotations

from dataclasses import replace

from octavo.loader.hf_config import HFConfig
from octavo.models.config_reading import read_decoder_config, read_layer_types, refuse, with_defaults, with_windows
from octavo.models.decoder_config import DecoderConfig, ExpertNames, WeightNames
from octavo.models.expert_reading import read_experts, with_experts
from octavo.ops.interface import Routing

NAMES = WeightNames(
    experts=ExpertNames(
        router="mlp.router",
        gate_up=("mlp.experts.gate_up_proj",),
        down="mlp.experts.down_proj",
        interleaves=True,
        split_gate_up=("mlp.experts.gate_proj", "mlp.experts.up_proj"),
    )
)


_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def read_config(config: HFConfig) -> DecoderConfig:
    refuse(config, hidden_act="silu", swiglu_alpha=1.702, swiglu_limit=7.0, mlp_bias=False)
    config = with_defaults(config, attention_bias=True, rms_norm_eps=1e-5, head_dim=64, sliding_window=128)
    if not {"rope_parameters", "rope_scaling"} & config.values.keys():
        config = with_defaults(config, rope_scaling=_ROPE)
    decoder = read_decoder_config(config, "GptOssForCausalLM", rope_theta=150_000.0)
    # Transformers takes the softmax of the chosen logits: the same numbers.
    experts = replace(read_experts(config, "intermediate_size", Routing(1, renormalize=True)), has_biases=True)
    decoder = replace(decoder, activation="clamped_swiglu", has_sinks=True)
    decoder = with_experts(decoder, experts, range(len(decoder.layers)))
    every_other = [("sliding_attention", "full_attention")[index % 2] for index in range(len(decoder.layers))]
    return with_windows(config, decoder, read_layer_types(config, every_other))
