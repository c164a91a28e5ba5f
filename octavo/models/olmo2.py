"""OLMo 2: no norm before the blocks but one after each, and norms over all query and all key heads together."""

from __future__ import annotations

from dataclasses import replace

from octavo.loader.hf_config import HFConfig
from octavo.models.config_reading import read_decoder_config, refuse, with_defaults
from octavo.models.decoder_config import DecoderConfig, WeightNames

NAMES = WeightNames()


def read_config(config: HFConfig) -> DecoderConfig:
    refuse(config, clip_qkv=None, mlp_bias=False)
    decoder = read_decoder_config(with_defaults(config, rms_norm_eps=1e-5), "Olmo2ForCausalLM")
    return replace(decoder, pre_norm=False, post_norm=True, qk_norm="all_heads")
