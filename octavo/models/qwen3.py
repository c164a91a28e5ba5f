"""Qwen 3 (dense): Llama with an RMS norm over each query and key head; upper layers may slide."""

from __future__ import annotations

from dataclasses import replace

from octavo.loader.hf_config import HFConfig
from octavo.models.config_reading import read_decoder_config, refuse, with_defaults, with_upper_windows
from octavo.models.decoder_config import DecoderConfig, WeightNames

NAMES = WeightNames()


def read_config(config: HFConfig) -> DecoderConfig:
    refuse(config, dual_chunk_attention_config=None, mlp_bias=False)
    decoder = read_decoder_config(with_defaults(config, head_dim=128), "Qwen3ForCausalLM")
    return with_upper_windows(config, replace(decoder, qk_norm="head"))
