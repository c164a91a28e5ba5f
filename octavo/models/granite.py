"""Granite 3 (dense): Llama with factors on embeddings, attention scores, block outputs and logits."""

from __future__ import annotations

from dataclasses import replace

from octavo.errors import CheckpointError
from octavo.loader.hf_config import HFConfig
from octavo.models.config_reading import read_decoder_config
from octavo.models.decoder_config import DecoderConfig, WeightNames

NAMES = WeightNames()


def read_config(config: HFConfig) -> DecoderConfig:
    decoder = read_decoder_config(config, "GraniteForCausalLM")
    logits_divisor = config.float("logits_scaling", 1.0)
    if logits_divisor == 0:
        raise CheckpointError(f"{config.source}: 'logits_scaling' divides the logits and must not be 0")
    attention_scale = config.float("attention_multiplier", 1.0)
    return replace(
        decoder,
        layers=tuple(replace(layer, attention_scale=attention_scale) for layer in decoder.layers),
        embedding_scale=config.float("embedding_multiplier", 1.0),
        residual_scale=config.float("residual_multiplier", 1.0),
        logits_scale=1.0 / logits_divisor,
    )
