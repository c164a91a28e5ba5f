"""Qwen 2 and 2.5: Llama with biases on query, key and value; upper layers may slide."""

from __future__ import annotations

from dataclasses import replace

from octavo.loader.hf_config import HFConfig
from octavo.models.config_reading import read_decoder_config, refuse, with_upper_windows
from octavo.models.decoder_config import DecoderConfig, WeightNames

NAMES = WeightNames()


def read_config(config: HFConfig) -> DecoderConfig:
    refuse(config, dual_chunk_attention_config=None, mlp_bias=False)
    decoder = read_decoder_config(config, "Qwen2ForCausalLM")
    return with_upper_windows(config, replace(decoder, qkv_bias=True, output_bias=False))
