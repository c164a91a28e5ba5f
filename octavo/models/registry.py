"""Architecture name -> how to read its config and find its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from octavo.errors import CheckpointError, UnsupportedError
from octavo.loader.hf_config import HFConfig
from octavo.loader.weights import WeightSource
from octavo.models import llama
from octavo.models.decoder_config import DecoderConfig, WeightNames
from octavo.models.decoder_loading import load_decoder
from octavo.models.interface import CausalLM, ModelFacts
from octavo.ops.interface import Ops


@dataclass(frozen=True)
class Architecture:
    """A config mapping and a weight-name table for the shared decoder."""

    read_config: Callable[[HFConfig], DecoderConfig]
    names: WeightNames


ARCHITECTURES: Mapping[str, Architecture] = {
    "LlamaForCausalLM": Architecture(llama.read_config, llama.NAMES),
}


def describe(config: HFConfig) -> ModelFacts:
    """Return a checkpoint's facts; raises UnsupportedError for an architecture or option that is not here."""
    return _architecture(config).read_config(config).facts


def build_model(config: HFConfig, weights: WeightSource, ops: Ops, max_model_len: int) -> CausalLM:
    """Read the weights and build the model for sequences of up to max_model_len tokens.

    Raises CheckpointError when tensors are missing, of the wrong shape, or left over.
    """
    architecture = _architecture(config)
    return load_decoder(architecture.read_config(config), architecture.names, weights, ops, max_model_len)


def _architecture(config: HFConfig) -> Architecture:
    if "quantization_config" in config:
        method = config.values["quantization_config"]
        raise UnsupportedError(
            f"{config.source}: quantized safetensors checkpoints are not supported ({method!r}); "
            "use the unquantized model or a GGUF file"
        )
    names = config.list("architectures", [])
    if not names:
        raise CheckpointError(f"{config.source} has no 'architectures', so there is no telling how to run the model")
    for name in names:
        if name in ARCHITECTURES:
            return ARCHITECTURES[name]
    raise UnsupportedError(
        f"architecture {', '.join(map(str, names))} is not supported; supported: {', '.join(sorted(ARCHITECTURES))}"
    )
