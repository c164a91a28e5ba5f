"""Opened checkpoint -> the tensors that a model is built from, in the formats that they are kept in."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import partial

from octavo.config.configs import LoadConfig
from octavo.loader.checkpoint import Checkpoint
from octavo.loader.compact import GROUP_SIZES
from octavo.loader.open import open_weights
from octavo.loader.safetensors_weights import SafetensorsWeights
from octavo.loader.weights import WeightSource
from octavo.quantization.config_reading import MXFP4, method_of, read_layout
from octavo.quantization.mxfp4 import Mxfp4Weights
from octavo.quantization.packed_weights import PackedWeights
from octavo.quantization.wrappers import ConvertedWeights, exact, quantized


def open_model_weights(checkpoint: Checkpoint, load_config: LoadConfig) -> WeightSource:
    """Return the checkpoint's tensors, quantised or dequantised as configured. Raises CheckpointError if corrupt."""
    source: WeightSource = open_weights(checkpoint, load_config)
    layout = read_layout(checkpoint.config)
    if layout is not None and isinstance(source, SafetensorsWeights):
        source = PackedWeights(source, layout)
    elif method_of(checkpoint.config) == MXFP4 and isinstance(source, SafetensorsWeights):
        source = Mxfp4Weights(source)
    if load_config.quantization is not None:
        source = ConvertedWeights(source, partial(quantized, load_config.quantization))
    return ConvertedWeights(source, exact) if load_config.exact else source


@dataclass(frozen=True)
class StoredQuantization:
    """What a checkpoint is quantised with. method: vLLM's name; types: of a GGUF file's matrices, main one first."""

    method: str
    types: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join((self.method, *self.types))


def quantization_of(checkpoint: Checkpoint) -> StoredQuantization | None:
    """Return what the checkpoint's matrices are quantised to, or None for floating-point numbers.

    Raises UnsupportedError for a quantisation that cannot be read.
    """
    read_layout(checkpoint.config)
    method = method_of(checkpoint.config)
    if method is not None:
        return StoredQuantization(method)
    if checkpoint.gguf is None:
        return None
    counts = Counter[str]()
    for info in checkpoint.gguf.tensors.values():
        if len(info.shape) >= 2 and info.type.name in GROUP_SIZES:
            counts[info.type.name] += math.prod(info.shape)
    return StoredQuantization("gguf", tuple(name for name, _ in counts.most_common())) if counts else None
