"""Granite 3 with mixtures of experts, stored as one tensor of all; some have one more expert for all tokens."""

from __future__ import annotations

from dataclasses import replace

from octavo.loader.hf_config import HFConfig
from octavo.models import granite
from octavo.models.config_reading import count, refuse
from octavo.models.decoder_config import DecoderConfig, ExpertNames, WeightNames
from octavo.models.expert_reading import read_experts, with_experts
from octavo.ops.interface import Routing

NAMES = WeightNames(
    experts=ExpertNames(
        router="block_sparse_moe.router.layer",
        gate_up=("block_sparse_moe.input_linear",),
        down="block_sparse_moe.output_linear",
        shared_gate_up=("shared_mlp.input_linear",),
        shared_down="shared_mlp.output_linear",
        split_gate_up=("block_sparse_moe.gate_linear", "block_sparse_moe.up_linear"),
        split_shared_gate_up=("shared_mlp.gate_linear", "shared_mlp.up_linear"),
    )
)


def read_config(config: HFConfig) -> DecoderConfig:
    refuse(config, mlp_bias=False)
    decoder = replace(granite.read_config(config), architecture="GraniteMoeForCausalLM")
    # Transformers takes the softmax of the chosen logits: the same numbers.
    experts = read_experts(config, "intermediate_size", Routing(1, renormalize=True))
    experts = replace(experts, shared_size=count(config, "shared_intermediate_size", limit=2**31 - 1))
    return with_experts(decoder, experts, range(len(decoder.layers)))


def read_shared_config(config: HFConfig) -> DecoderConfig:
    return replace(read_config(config), architecture="GraniteMoeSharedForCausalLM")
