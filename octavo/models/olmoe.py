"""OLMoE: Llama with mixtures of experts, and norms over all query and all key heads together."""

from __future__ import annotations

from dataclasses import replace

from octavo.loader.hf_config import HFConfig
from octavo.models.config_reading import read_decoder_config, refuse, with_defaults
from octavo.models.decoder_config import DecoderConfig, WeightNames
from octavo.models.expert_reading import read_experts, with_experts
from octavo.ops.interface import Routing

NAMES = WeightNames()


def read_config(config: HFConfig) -> DecoderConfig:
    refuse(config, clip_qkv=None, mlp_bias=False)
    decoder = read_decoder_config(with_defaults(config, rms_norm_eps=1e-5), "OlmoeForCausalLM")
    routing = Routing(1, renormalize=config.bool("norm_topk_prob", False))
    experts = read_experts(config, "intermediate_size", routing)
    return with_experts(replace(decoder, qk_norm="all_heads"), experts, range(len(decoder.layers)))
