"""Llama 1 to 3.x, and the many models that are published under its architecture name."""

from __future__ import annotations

from octavo.loader.hf_config import HFConfig
from octavo.models.config_reading import read_decoder_config
from octavo.models.decoder_config import DecoderConfig, WeightNames

NAMES = WeightNames()


def read_config(config: HFConfig) -> DecoderConfig:
    return read_decoder_config(config, "LlamaForCausalLM")
