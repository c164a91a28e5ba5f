"""Phi-3, Phi-3.5 and Phi-4-mini: Llama with fused projections, LongRoPE and a partial rotation."""

from __future__ import annotations

from octavo.loader.hf_config import HFConfig
from octavo.models.config_reading import read_decoder_config, refuse, with_defaults, with_one_window
from octavo.models.decoder_config import DecoderConfig, WeightNames
from octavo.models.rope_reading import rope_parameters, rope_type_of

NAMES = WeightNames(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",))


def read_config(config: HFConfig) -> DecoderConfig:
    refuse(config, attention_bias=False, mlp_bias=False)
    config = with_defaults(config, rms_norm_eps=1e-5)
    parameters = rope_parameters(config)
    if rope_type_of(parameters) == "yarn":
        # Early Phi-3 configs call LongRoPE "yarn".
        config = HFConfig(
            {**config.values, "rope_scaling": {**parameters.values, "rope_type": "longrope"}}, config.source
        )
    return with_one_window(config, read_decoder_config(config, "Phi3ForCausalLM"))
