"""Qwen 2 and 3 with mixtures of experts in all or some layers; in Qwen 2's all tokens go to one more, with a gate."""

from __future__ import annotations

from dataclasses import replace

from octavo.errors import CheckpointError
from octavo.loader.hf_config import HFConfig
from octavo.models.config_reading import positive, read_decoder_config, refuse
from octavo.models.decoder_config import DecoderConfig, ExpertNames, ExpertsConfig, WeightNames
from octavo.models.expert_reading import read_experts, with_experts
from octavo.ops.interface import Routing

QWEN2_NAMES = WeightNames(
    experts=ExpertNames(
        shared_gate_up=("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"),
        shared_down="mlp.shared_expert.down_proj",
    )
)
QWEN3_NAMES = WeightNames()


def read_qwen2_config(config: HFConfig) -> DecoderConfig:
    refuse(config, dual_chunk_attention_config=None, mlp_bias=False, use_sliding_window=False)
    decoder = read_decoder_config(config, "Qwen2MoeForCausalLM")
    decoder = replace(decoder, qkv_bias=config.bool("qkv_bias", True), output_bias=False)
    shared_size = positive(config, "shared_expert_intermediate_size")
    return _with_experts(config, decoder, replace(_experts(config), shared_size=shared_size, has_shared_gate=True))


def read_qwen3_config(config: HFConfig) -> DecoderConfig:
    refuse(config, dual_chunk_attention_config=None, mlp_bias=False, use_sliding_window=False)
    decoder = read_decoder_config(config, "Qwen3MoeForCausalLM")
    return _with_experts(config, replace(decoder, qk_norm="head"), _experts(config))


def _experts(config: HFConfig) -> ExpertsConfig:
    return read_experts(config, "moe_intermediate_size", Routing(1, renormalize=config.bool("norm_topk_prob", False)))


def _with_experts(config: HFConfig, decoder: DecoderConfig, experts: ExpertsConfig) -> DecoderConfig:
    """Give experts to every decoder_sparse_step-th layer but those of mlp_only_layers."""
    step, dense = positive(config, "decoder_sparse_step", 1), config.list("mlp_only_layers", [])
    if not all(isinstance(index, int) for index in dense):
        raise CheckpointError(f"{config.source}: 'mlp_only_layers' must be a list of layers' numbers, got {dense}")
    sparse = (index for index in range(len(decoder.layers)) if (index + 1) % step == 0 and index not in dense)
    return with_experts(decoder, experts, sparse)
