"""Reads what config.json says of mixtures of experts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from octavo.errors import CheckpointError
from octavo.loader.hf_config import HFConfig
from octavo.models.config_reading import positive
from octavo.models.decoder_config import DecoderConfig, ExpertsConfig
from octavo.ops.interface import Routing

# Transformers writes one under another's name.
_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")


def read_experts(config: HFConfig, size_key: str, routing: Routing) -> ExpertsConfig:
    """Read number and size of the experts, and how many a token uses; the rest of the routing is given."""
    count_key = next((key for key in _COUNTS if key in config), _COUNTS[0])
    count = positive(config, count_key, limit=10_000)
    top_k = positive(config, "num_experts_per_tok")
    if top_k > count:
        raise CheckpointError(
            f"{config.source}: num_experts_per_tok={top_k} exceeds the {count} experts ({count_key}) that there are"
        )
    return ExpertsConfig(count, positive(config, size_key), replace(routing, top_k=top_k))


def with_experts(decoder: DecoderConfig, experts: ExpertsConfig, layers: Iterable[int]) -> DecoderConfig:
    """Give these layers a mixture of experts in place of their MLP."""
    sparse = set(layers)
    return replace(
        decoder,
        layers=tuple(
            replace(layer, experts=experts if index in sparse else None) for index, layer in enumerate(decoder.layers)
        ),
    )
