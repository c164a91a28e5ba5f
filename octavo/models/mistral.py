"""Mistral: Llama with a sliding window over all layers when sliding_window is set."""

from __future__ import annotations

from octavo.loader.hf_config import HFConfig
from octavo.models.config_reading import read_decoder_config, refuse, with_defaults, with_one_window
from octavo.models.decoder_config import DecoderConfig, WeightNames

NAMES = WeightNames()


def read_config(config: HFConfig) -> DecoderConfig:
    refuse(config, attention_bias=False, mlp_bias=False)
    config = with_defaults(config, sliding_window=4096)
    return with_one_window(config, read_decoder_config(config, "MistralForCausalLM"))
