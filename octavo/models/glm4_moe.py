"""GLM 4.5 and dots.llm1: mixtures of experts chosen by sigmoids with a bias, after some layers with an MLP."""

from __future__ import annotations

from dataclasses import replace

from octavo.loader.hf_config import HFConfig
from octavo.models.config_reading import (
    count,
    read_decoder_config,
    refuse,
    with_defaults,
    with_windows_from,
)
from octavo.models.decoder_config import DecoderConfig, WeightNames
from octavo.models.expert_reading import read_experts, with_experts
from octavo.ops.interface import Routing

# llama.cpp's names for what layers have that guess further tokens
_DRAFT_LAYERS = r"^blk\.\d+\.nextn\."
NAMES = WeightNames(harmless=(*WeightNames().harmless, _DRAFT_LAYERS))


def read_glm_config(config: HFConfig) -> DecoderConfig:
    config = with_defaults(config, rms_norm_eps=1e-5, norm_topk_prob=True)
    if "rope_parameters" not in config:
        config = with_defaults(config, partial_rotary_factor=0.5)
    return replace(
        _read_config(config, "Glm4MoeForCausalLM"),
        output_bias=False,
        qk_norm="head" if config.bool("use_qk_norm", False) else None,
        num_draft_layers=count(config, "num_nextn_predict_layers"),
    )


def read_dots_config(config: HFConfig) -> DecoderConfig:
    decoder = replace(_read_config(config, "Dots1ForCausalLM"), qk_norm="head")
    return with_windows_from(with_defaults(config, max_window_layers=62), decoder)


def _read_config(config: HFConfig, architecture: str) -> DecoderConfig:
    refuse(config, mlp_bias=False, n_group=1, topk_group=1)
    decoder = read_decoder_config(config, architecture)
    routing = Routing(
        1,
        "sigmoid",
        renormalize=config.bool("norm_topk_prob", False),
        scale=config.float("routed_scaling_factor", 1.0),
    )
    experts = read_experts(config, "moe_intermediate_size", routing)
    shared_size = experts.intermediate_size * count(config, "n_shared_experts")
    experts = replace(experts, has_routing_bias=True, shared_size=shared_size)
    return with_experts(decoder, experts, range(count(config, "first_k_dense_replace"), len(decoder.layers)))
