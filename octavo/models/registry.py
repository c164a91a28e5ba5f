"""Architecture name -> how to read its config and find its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from octavo.errors import CheckpointError, UnsupportedError
from octavo.loader.hf_config import HFConfig
from octavo.loader.weights import WeightSource
from octavo.models import (
    bloom,
    gemma2,
    gemma3,
    glm4_moe,
    gpt2,
    gpt_oss,
    granite,
    granite_moe,
    llama,
    mimo,
    mistral,
    mixtral,
    mpt,
    olmo2,
    olmoe,
    phi3,
    qwen2,
    qwen3,
    qwen_moe,
    smollm3,
    starcoder2,
)
from octavo.models.decoder_config import DecoderConfig, WeightNames
from octavo.models.decoder_loading import load_decoder
from octavo.models.interface import CausalLM, ModelFacts
from octavo.models.sharing import ModelShare, check_context_parallel, check_sizes
from octavo.ops.interface import Ops


@dataclass(frozen=True)
class Architecture:
    """A config mapping and a weight-name table for the shared decoder."""

    read_config: Callable[[HFConfig], DecoderConfig]
    names: WeightNames


ARCHITECTURES: Mapping[str, Architecture] = {
    "BloomForCausalLM": Architecture(bloom.read_config, bloom.NAMES),
    "Dots1ForCausalLM": Architecture(glm4_moe.read_dots_config, glm4_moe.NAMES),
    "Gemma2ForCausalLM": Architecture(gemma2.read_config, gemma2.NAMES),
    "Gemma3ForCausalLM": Architecture(gemma3.read_config, gemma3.NAMES),
    "Gemma3ForConditionalGeneration": Architecture(gemma3.read_multimodal_config, gemma3.NAMES),
    "Glm4MoeForCausalLM": Architecture(glm4_moe.read_glm_config, glm4_moe.NAMES),
    "GPT2LMHeadModel": Architecture(gpt2.read_config, gpt2.NAMES),
    "GptOssForCausalLM": Architecture(gpt_oss.read_config, gpt_oss.NAMES),
    "GraniteForCausalLM": Architecture(granite.read_config, granite.NAMES),
    "GraniteMoeForCausalLM": Architecture(granite_moe.read_config, granite_moe.NAMES),
    "GraniteMoeSharedForCausalLM": Architecture(granite_moe.read_shared_config, granite_moe.NAMES),
    "LlamaForCausalLM": Architecture(llama.read_config, llama.NAMES),
    "MiMoForCausalLM": Architecture(mimo.read_config, mimo.NAMES),
    "MistralForCausalLM": Architecture(mistral.read_config, mistral.NAMES),
    "MixtralForCausalLM": Architecture(mixtral.read_config, mixtral.NAMES),
    "MPTForCausalLM": Architecture(mpt.read_config, mpt.NAMES),
    "MptForCausalLM": Architecture(mpt.read_config, mpt.NAMES),
    "Olmo2ForCausalLM": Architecture(olmo2.read_config, olmo2.NAMES),
    "OlmoeForCausalLM": Architecture(olmoe.read_config, olmoe.NAMES),
    "Phi3ForCausalLM": Architecture(phi3.read_config, phi3.NAMES),
    "Qwen2ForCausalLM": Architecture(qwen2.read_config, qwen2.NAMES),
    "Qwen2MoeForCausalLM": Architecture(qwen_moe.read_qwen2_config, qwen_moe.QWEN2_NAMES),
    "Qwen3ForCausalLM": Architecture(qwen3.read_config, qwen3.NAMES),
    "Qwen3MoeForCausalLM": Architecture(qwen_moe.read_qwen3_config, qwen_moe.QWEN3_NAMES),
    "SmolLM3ForCausalLM": Architecture(smollm3.read_config, smollm3.NAMES),
    "Starcoder2ForCausalLM": Architecture(starcoder2.read_config, starcoder2.NAMES),
}


def describe(config: HFConfig) -> ModelFacts:
    """Return a checkpoint's facts; raises UnsupportedError for an architecture or option that is not here."""
    decoder = _architecture(config).read_config(config)
    if decoder.bidirectional:
        raise UnsupportedError(
            f"{config.source}: tokens of this model see later ones, so it cannot generate; use runner='pooling'"
        )
    return decoder.facts


def describe_decoder(config: HFConfig) -> tuple[DecoderConfig, WeightNames]:
    """Return the decoder's config, and what its modules are called."""
    architecture = _architecture(config)
    return architecture.read_config(config), architecture.names


def check_parallel_sizes(config: HFConfig, tp_size: int, pp_size: int, dcp_size: int = 1) -> None:
    """Raise ConfigError when the model cannot be divided among so many workers."""
    check_sizes(_architecture(config).read_config(config), tp_size, pp_size)
    check_context_parallel(_architecture(config).read_config(config), tp_size, dcp_size)


def build_model(
    config: HFConfig, weights: WeightSource, ops: Ops, max_model_len: int, share: ModelShare | None = None
) -> CausalLM:
    """Read the weights and build the model, or a worker's share of it, for sequences of up to max_model_len tokens.

    Raises CheckpointError when tensors are missing, of the wrong shape, or left over.
    """
    architecture = _architecture(config)
    return load_decoder(architecture.read_config(config), architecture.names, weights, ops, max_model_len, share)


def _architecture(config: HFConfig) -> Architecture:
    names = config.list("architectures", [])
    if not names:
        raise CheckpointError(f"{config.source} has no 'architectures', so there is no telling how to run the model")
    for name in names:
        if isinstance(name, str) and name in ARCHITECTURES:
            return ARCHITECTURES[name]
    raise UnsupportedError(
        f"{config.source}: architecture {', '.join(map(str, names))} is not supported; supported: "
        f"{', '.join(sorted(ARCHITECTURES))}"
    )
