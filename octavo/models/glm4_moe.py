"""GLM 4.5 and dots.llm1: mixtures of experts chosen by sigmoids with a bias, after some layers with an MLP."""

from __future__ import annotations

from dataclasses import replace

from octavo.loader.hf_config import HFConfig
from octavo.models.config_reading import positive, read_decoder_config, read_layer_types, refuse, with_windows
from octavo.models.decoder_config import DecoderConfig, WeightNames
from octavo.models.expert_reading import read_experts, with_experts
from octavo.ops.interface import Routing

# llama.cpp's names for what layers have that guess further tokens
_DRAFT_LAYERS = r"^blk\.\d+\.nextn\."
NAMES = WeightNames(harmless=(*WeightNames().harmless, _DRAFT_LAYERS))


def read_glm_config(config: HFConfig) -> DecoderConfig:
    decoder = _read_config(config, "Glm4MoeForCausalLM")
    return replace(
        decoder,
        output_bias=False,
        qk_norm="head" if config.bool("use_qk_norm", False) else None,
        num_draft_layers=config.int("num_nextn_predict_layers", 0),
    )


def read_dots_config(config: HFConfig) -> DecoderConfig:
    decoder = replace(_read_config(config, "Dots1ForCausalLM"), qk_norm="head")
    return with_windows(config, decoder, read_layer_types(config, ["full_attention"] * len(decoder.layers)))


def _read_config(config: HFConfig, architecture: str) -> DecoderConfig:
    refuse(config, mlp_bias=False, n_group=1, topk_group=1)
    decoder = read_decoder_config(config, architecture)
    routing = Routing(
        1,
        "sigmoid",
        renormalize=config.bool("norm_topk_prob", True),
        scale=config.float("routed_scaling_factor", 1.0),
    )
    experts = read_experts(config, "moe_intermediate_size", routing)
    shared_size = experts.intermediate_size * config.int("n_shared_experts", 0)
    experts = replace(experts, has_routing_bias=True, shared_size=shared_size)
    first = positive(config, "first_k_dense_replace") if config.int("first_k_dense_replace", 0) else 0
    return with_experts(decoder, experts, range(first, len(decoder.layers)))
