"""SmolLM 3: Llama where every fourth layer does not rotate; such layers may slide."""

from __future__ import annotations

from dataclasses import replace

from octavo.errors import CheckpointError
from octavo.loader.hf_config import HFConfig
from octavo.models.config_reading import positive, read_decoder_config, read_layer_types, with_defaults, with_windows
from octavo.models.decoder_config import DecoderConfig, WeightNames

NAMES = WeightNames()


def read_config(config: HFConfig) -> DecoderConfig:
    config = with_defaults(config, tie_word_embeddings=True)
    decoder = read_decoder_config(config, "SmolLM3ForCausalLM", rope_theta=2_000_000.0)
    rotates = _rotating_layers(config, len(decoder.layers))
    may_slide = config.bool("use_sliding_window", False) and "sliding_window" in config
    default = ["sliding_attention" if may_slide and not rotating else "full_attention" for rotating in rotates]
    layers = tuple(
        replace(layer, rope=layer.rope if rotating else None)
        for layer, rotating in zip(decoder.layers, rotates, strict=True)
    )
    return with_windows(config, replace(decoder, layers=layers), read_layer_types(config, default))


def _rotating_layers(config: HFConfig, num_layers: int) -> list[bool]:
    """Return for each layer whether it rotates: no_rope_layers holds 1 where it does."""
    if "no_rope_layers" not in config:
        interval = positive(config, "no_rope_layer_interval", 4)
        return [(index + 1) % interval != 0 for index in range(num_layers)]
    flags = config.list("no_rope_layers")
    if len(flags) < num_layers or not all(flag in (0, 1) for flag in flags):
        raise CheckpointError(
            f"{config.source}: 'no_rope_layers' must hold 0 or 1 for each of {num_layers} layers, got {flags!r}"
        )
    return [bool(flag) for flag in flags[:num_layers]]
