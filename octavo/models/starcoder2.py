"""StarCoder 2: layer norms and a plain MLP, biases everywhere, a sliding window over all layers."""

from __future__ import annotations

from dataclasses import replace

from octavo.loader.hf_config import HFConfig
from octavo.models.config_reading import norm_epsilon, read_decoder_config, refuse, with_defaults, with_one_window
from octavo.models.decoder_config import DecoderConfig, WeightNames

NAMES = WeightNames(gate_up=("mlp.c_fc",), down="mlp.c_proj")


def read_config(config: HFConfig) -> DecoderConfig:
    refuse(config, norm_type="layer_norm", mlp_type="default")
    config = with_defaults(config, hidden_act="gelu_pytorch_tanh", tie_word_embeddings=True)
    has_bias = config.bool("use_bias", True)
    decoder = replace(
        read_decoder_config(config, "Starcoder2ForCausalLM"),
        qkv_bias=has_bias,
        output_bias=has_bias,
        mlp_bias=has_bias,
        gated_mlp=False,
        norm="layer",
        norm_eps=norm_epsilon(config, "norm_epsilon", 1e-5),
    )
    return with_one_window(config, decoder)
