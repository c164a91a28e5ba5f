"""EAGLE (Li et al., arXiv 2401.15077): a Llama layer that guesses from what the model's final norm gives.

As in the published code (SafeAILab/EAGLE, `cnets1.py`) and vLLM's `llama_eagle`: `fc` of (embedding, hidden state), the
first layer without its input norm, no final norm; embedding and output projection are the model's.
"""

from __future__ import annotations

from dataclasses import replace

from octavo.layers.linear import Embedding
from octavo.layers.norm import NoNorm
from octavo.layers.parameters import Parameters
from octavo.loader.hf_config import HFConfig
from octavo.loader.weights import WeightSource
from octavo.models.config_reading import read_decoder_config
from octavo.models.decoder import Decoder, DecoderLayer
from octavo.models.decoder_config import DecoderConfig, WeightNames
from octavo.models.decoder_loading import DecoderLoading, check_unused
from octavo.models.hidden_drafts import (
    FusedDraft,
    Fusion,
    HiddenDraft,
    check_architecture,
    check_made_for,
    rope_table,
    side_by_side,
)
from octavo.models.interface import ModelFacts
from octavo.ops.interface import Float, Ops

_ARCHITECTURES = ("EagleLlamaForCausalLM", "LlamaForCausalLM")
_SHARED = (r"(^|\.)embed_tokens\.weight$", r"^lm_head\.weight$", r"\.rotary_emb\.inv_freq$")
_NAMES = WeightNames()


def read_eagle(config: HFConfig, model: ModelFacts) -> DecoderConfig:
    """Read an EAGLE network's config. Raises ConfigError where it was not made for the model, UnsupportedError."""
    check_architecture(config, _ARCHITECTURES, "EAGLE networks")
    decoder = read_decoder_config(config, "EAGLE")
    check_made_for(config, model, hidden_size=decoder.hidden_size, vocab_size=decoder.vocab_size)
    return decoder


def load_eagle(config: HFConfig, weights: WeightSource, model: Decoder, ops: Ops, max_model_len: int) -> HiddenDraft:
    """Read the network. Raises CheckpointError for tensors that are missing, of another shape, or left over."""
    decoder = read_eagle(config, model.facts)
    loading = DecoderLoading(decoder, _NAMES, "", Parameters(weights, ops))
    embedded, hidden = side_by_side(loading, ["fc"], [decoder.hidden_size], bias=weights.has("fc.bias"))
    table = rope_table(decoder, max_model_len)
    others = (loading.layer(index, layer, table) for index, layer in enumerate(decoder.layers) if index)
    assert isinstance(model.embedding, Embedding) and model.lm_head is not None, "one worker has the whole model"
    network = FusedDraft(
        facts=decoder.facts,
        embedding=model.embedding,
        fusion=Fusion(NoNorm(), NoNorm(), embedded, hidden),
        layers=(_first_layer(loading, table), *others),
        final_norm=NoNorm(),
        lm_head=model.lm_head,
    )
    check_unused(weights, _SHARED, "EAGLE")
    return HiddenDraft(network)


def _first_layer(loading: DecoderLoading, cos_sin: Float | None) -> DecoderLayer:
    """Read the layer that has no input norm."""
    config = loading.config
    bare = replace(loading, config=replace(config, pre_norm=False)).layer(0, config.layers[0], cos_sin)
    return replace(bare, mlp_norm=loading.norm(_NAMES.layer.format(index=0) + _NAMES.mlp_norm))
