"""Opened checkpoint -> its tensors: the one place that knows which format has which WeightSource."""

from __future__ import annotations

from octavo.config.configs import LoadConfig
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
