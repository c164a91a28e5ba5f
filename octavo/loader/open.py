"""Opened checkpoint -> its tensors: the one place that knows which format has which WeightSource."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.config.configs import LoadConfig
from octavo.errors import CheckpointError
from octavo.loader.checkpoint import Checkpoint
from octavo.loader.dummy import DummyWeights
from octavo.loader.gguf_weights import GGUFWeights
from octavo.loader.safetensors_weights import SafetensorsWeights
from octavo.loader.weights import WeightSource


def open_weights(checkpoint: Checkpoint, load_config: LoadConfig) -> WeightSource:
    """Return the checkpoint's tensors, or random ones with load_format="dummy". Raises CheckpointError if corrupt."""
    if load_config.load_format == "dummy":
        return DummyWeights(tied=checkpoint.config.bool("tie_word_embeddings", False))
    if checkpoint.gguf is not None:
        return GGUFWeights(checkpoint.gguf)
    return SafetensorsWeights(checkpoint.path)


def read_ids(checkpoint: Checkpoint, load_config: LoadConfig, name: str, count: int) -> NDArray[np.int64]:
    """Read a vector of whole numbers; all 0 among random weights. Raises CheckpointError."""
    source = open_weights(checkpoint, load_config)
    if not isinstance(source, SafetensorsWeights):
        return np.zeros(count, np.int64)
    tensor = source.get(name, (count,))
    if tensor.dtype not in ("I32", "I64"):
        raise CheckpointError(f"{checkpoint.path}: {name!r} must hold whole numbers, got {tensor.dtype}")
    return tensor.stored().astype(np.int64)
