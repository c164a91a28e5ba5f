"""Which method the weights that guess are for, and whether they were made for the model: a part of `speculation`."""

from __future__ import annotations

from octavo.config import LoadConfig, OctavoConfig
from octavo.config.speculative import SpeculativeConfig, SpeculativeMethod
from octavo.errors import ConfigError, UnsupportedError
from octavo.loader.checkpoint import Checkpoint
from octavo.loader.hf_config import HFConfig
from octavo.loader.resolve import open_checkpoint
from octavo.models import mimo
from octavo.models.eagle import read_eagle
from octavo.models.eagle3 import read_eagle3
from octavo.models.hidden_drafts import check_made_for
from octavo.models.interface import ModelFacts
from octavo.models.medusa import read_medusa
from octavo.models.registry import describe


def draft_config(model: str | None, revision: str | None, checkpoint: Checkpoint, load: LoadConfig) -> HFConfig:
    """Return the config of what guesses. checkpoint: of the model, beside whose weights they lie if there is no name"""
    return checkpoint.config if model is None else open_checkpoint(model, load, revision=revision).config


def infer_method(model: str, config: HFConfig) -> SpeculativeMethod:
    """Tell a method by the name and the config of its weights: vLLM's rules, and EAGLE's own architectures."""
    names, name = config.list("architectures", []), model.lower()
    if "eagle-" in name or "EagleLlamaForCausalLM" in names:
        return "eagle"
    if "eagle3" in name or {"LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM"} & set(map(str, names)):
        return "eagle3"
    if config.str("model_type", "") == "medusa" or "medusa_num_heads" in config:
        return "medusa"
    return "mtp" if mimo.ARCHITECTURE in names else "draft_model"


def check_weights(config: OctavoConfig, speculative: SpeculativeConfig, model: ModelFacts, own: HFConfig) -> None:
    """Raise ConfigError or UnsupportedError unless what guesses was made for a model such as this one.

    own: its config
    """
    if config.parallel.world_size > 1:
        raise UnsupportedError(
            f"method {speculative.method!r} needs one worker, not {config.parallel.world_size}: leave "
            "tensor_parallel_size and pipeline_parallel_size at 1, or use ngram or suffix"
        )
    if speculative.method == "eagle":
        read_eagle(own, model)
    elif speculative.method == "eagle3":
        read_eagle3(own, model)
    elif speculative.method == "medusa":
        num_heads = read_medusa(own, model).num_heads
        if speculative.num_speculative_tokens > num_heads:
            raise ConfigError(
                f"speculative_config.num_speculative_tokens={speculative.num_speculative_tokens}, but "
                f"{speculative.model!r} has {num_heads} Medusa heads, each of which guesses one token"
            )
    else:
        draft = describe(own)
        if speculative.method == "mtp":
            check_made_for(own, model, hidden_size=draft.hidden_size)
        _check_model(config, speculative.model, model, draft)


def _check_model(config: OctavoConfig, name: str | None, model: ModelFacts, draft: ModelFacts) -> None:
    """Check a draft model, or the one whose MTP layer guesses."""
    if draft.vocab_size != model.vocab_size:
        raise ConfigError(
            f"the draft model {name!r} has a vocabulary of {draft.vocab_size} tokens, the model one of "
            f"{model.vocab_size}; both must have the same tokens"
        )
    if draft.max_position < config.model.max_model_len:
        raise ConfigError(
            f"the draft model {name!r} has {draft.max_position} positions, fewer than max_model_len="
            f"{config.model.max_model_len}; set max_model_len to at most {draft.max_position}"
        )
