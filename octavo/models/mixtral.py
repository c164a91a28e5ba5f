"""Mixtral: Mistral whose every MLP is a mixture of experts; the weights of the chosen ones sum to 1."""

from __future__ import annotations

from octavo.loader.hf_config import HFConfig
from octavo.models.config_reading import read_decoder_config, refuse, with_defaults, with_one_window
from octavo.models.decoder_config import DecoderConfig, ExpertNames, WeightNames
from octavo.models.expert_reading import read_experts, with_experts
from octavo.ops.interface import Routing

NAMES = WeightNames(
    experts=ExpertNames(
        router="block_sparse_moe.gate",
        gate_up=("block_sparse_moe.experts.{expert}.w1", "block_sparse_moe.experts.{expert}.w3"),
        down="block_sparse_moe.experts.{expert}.w2",
    )
)


def read_config(config: HFConfig) -> DecoderConfig:
    refuse(config, attention_bias=False, mlp_bias=False)
    config = with_defaults(config, rms_norm_eps=1e-5)
    decoder = with_one_window(config, read_decoder_config(config, "MixtralForCausalLM", rope_theta=1e6))
    experts = read_experts(config, "intermediate_size", Routing(1, renormalize=True))
    return with_experts(decoder, experts, range(len(decoder.layers)))
