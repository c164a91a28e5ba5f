"""Opened checkpoint -> the tensors that a model is built from, in the formats that they are kept in."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from octavo.config.configs import LoadConfig
from octavo.loader.checkpoint import Checkpoint
from octavo.loader.compact import GROUP_SIZES
from octavo.loader.open import open_weights
from octavo.loader.weights import WeightSource
from octavo.quantization.wrappers import ExactWeights, QuantizingWeights


def open_model_weights(checkpoint: Checkpoint, load_config: LoadConfig) -> WeightSource:
    """Return the checkpoint's tensors, quantised or dequantised as configured. Raises CheckpointError if corrupt."""
    source: WeightSource = open_weights(checkpoint, load_config)
    if load_config.quantization is not None:
        source = QuantizingWeights(source, load_config.quantization)
    return ExactWeights(source) if load_config.exact else source


@dataclass(frozen=True)
class StoredQuantization:
    """What a checkpoint is quantised with. method: vLLM's name; details: for people."""

    method: str
    details: str

    def __str__(self) -> str:
        return f"{self.method} {self.details}"


def quantization_of(checkpoint: Checkpoint) -> StoredQuantization | None:
    """Return what most of the checkpoint's matrices are quantised to, or None for floating-point numbers."""
    if checkpoint.gguf is None:
        return None
    counts = Counter[str]()
    for info in checkpoint.gguf.tensors.values():
        if len(info.shape) == 2 and info.type.name in GROUP_SIZES:
            counts[info.type.name] += math.prod(info.shape)
    return StoredQuantization("gguf", ", ".join(name for name, _ in counts.most_common(3))) if counts else None
