"""EAGLE-3 (Li et al., arXiv 2503.01840): a Llama layer that guesses from the states of three layers of the model.

As in the published code (SafeAILab/EAGLE, `cnets.py`) and vLLM's `llama_eagle3`: `fc` makes one state of the three; the
layer's queries, keys and values are projected from the embedding and the state side by side, each normalised; logits
are over a vocabulary of the network's own, whose ids `d2t` leads to the model's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from octavo.attention.context import ForwardContext
from octavo.errors import CheckpointError, ConfigError, UnsupportedError
from octavo.layers.attention import Attention
from octavo.layers.linear import Embedding, Linear
from octavo.layers.norm import Norm
from octavo.layers.parallel import AnyLinear
from octavo.layers.parameters import Parameters
from octavo.loader.hf_config import HFConfig
from octavo.loader.weights import WeightSource
from octavo.models.config_reading import positive, read_decoder_config, refuse
from octavo.models.decoder import Decoder, DecoderLayer, layer_specs
from octavo.models.decoder_config import DecoderConfig, WeightNames
from octavo.models.decoder_loading import DecoderLoading, check_unused
from octavo.models.hidden_drafts import (
    HiddenDraft,
    check_architecture,
    check_made_for,
    checked_ids,
    rope_table,
)
from octavo.models.interface import ModelFacts
from octavo.ops.interface import Float, Int, Ops
from octavo.types.kv_spec import KVCacheSpec

_ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "LlamaForCausalLM")
_NUM_STATES = 3
_HARMLESS = (r"^(d2t|t2d)$", r"\.rotary_emb\.inv_freq$")


@dataclass(frozen=True, slots=True)
class Eagle3Config:
    """layer_ids: of the model's layers, whose inputs are read; vocab_size: of the network's logits"""

    decoder: DecoderConfig
    layer_ids: tuple[int, ...]
    vocab_size: int
    norm_before_residual: bool


def read_eagle3(config: HFConfig, model: ModelFacts) -> Eagle3Config:
    """Read an EAGLE-3 network's config. Raises ConfigError where it was not made for the model, UnsupportedError."""
    check_architecture(config, _ARCHITECTURES, "EAGLE-3 networks")
    refuse(config, parallel_drafting=False, norm_before_fc=False)
    decoder = read_decoder_config(config, "EAGLE-3")
    hidden_size = positive(config, "target_hidden_size", decoder.hidden_size)
    check_made_for(config, model, hidden_size=hidden_size, vocab_size=decoder.vocab_size)
    if len(decoder.layers) != 1:
        raise UnsupportedError(f"{config.source}: {len(decoder.layers)} layers; EAGLE-3 networks of one are supported")
    vocab_size = positive(config, "draft_vocab_size", decoder.vocab_size, limit=decoder.vocab_size)
    norm_first = config.bool("norm_before_residual", False)
    return Eagle3Config(decoder, _layer_ids(config, model), vocab_size, norm_first)


def _layer_ids(config: HFConfig, model: ModelFacts) -> tuple[int, ...]:
    nested = config.section("eagle_config") or HFConfig({})
    refuse(nested, use_aux_hidden_state=True)
    key, num_layers = "eagle_aux_hidden_state_layer_ids", model.num_layers
    default = [2, num_layers // 2, num_layers - 3]
    given = config.list(key, []) or nested.list(key, []) or default
    ids = {layer for layer in given if type(layer) is int and 0 <= layer <= num_layers}
    if len(given) != _NUM_STATES or len(ids) != _NUM_STATES:
        raise ConfigError(
            f"{config.source}: {key} must name {_NUM_STATES} different layers of 0 to {num_layers}, got {given}"
            + (f", the default for {model.architecture} with {num_layers} layers" if given is default else "")
        )
    return tuple(sorted(ids))


@dataclass(frozen=True, slots=True)
class Eagle3Draft:
    """A CausalLM. Its layer's input norm is the embeddings'; its hidden states are those before the final norm.

    embedding_qkv: what of an embedding goes into queries, keys and values
    """

    facts: ModelFacts
    embedding: Embedding
    hidden_norm: Norm
    norm_before_residual: bool
    embedding_qkv: Linear
    layer: DecoderLayer
    final_norm: Norm
    lm_head: AnyLinear

    def kv_cache_specs(self, block_size: int, dtype: str) -> Mapping[str, KVCacheSpec]:
        return layer_specs([self.layer], block_size, dtype)

    def forward(self, token_ids: Int, positions: Int, context: ForwardContext) -> Float:
        ops, layer, attention, hidden = context.ops, self.layer, self.layer.attention, context.hidden
        assert hidden is not None and isinstance(attention, Attention), "it guesses from hidden states, in order"
        embedded = layer.input_norm(self.embedding(token_ids, ops), ops)
        normed = self.hidden_norm(hidden, ops)
        projected = ops.add(self.embedding_qkv(embedded, ops), attention.qkv(normed, ops))
        x = attention.attend(projected, positions, context)
        residual = normed if self.norm_before_residual else hidden
        x, residual = layer.after_attention(x, residual, ops, context.output_rows)
        return ops.add(x, residual)

    def compute_logits(self, hidden: Float, ops: Ops) -> Float:
        return self.lm_head(self.final_norm(hidden, ops), ops)


def load_eagle3(config: HFConfig, weights: WeightSource, model: Decoder, ops: Ops, max_model_len: int) -> HiddenDraft:
    """Read the network. Raises CheckpointError for tensors that are missing, of another shape, or left over."""
    own = read_eagle3(config, model.facts)
    decoder, size = own.decoder, own.decoder.hidden_size
    prefix = "midlayer." if weights.has("midlayer.hidden_norm.weight") else "layers.0."
    names, parameters = WeightNames(layer=prefix), Parameters(weights, ops)
    loading = DecoderLoading(decoder, names, "", parameters, qkv_columns=range(size, 2 * size))
    head_sizes = [count * decoder.head_dim for count in (decoder.num_heads, decoder.num_kv_heads, decoder.num_kv_heads)]
    qkv_names = [prefix + name for name in names.qkv]
    network = Eagle3Draft(
        facts=ModelFacts("EAGLE-3", 1, size, own.vocab_size, decoder.max_position),
        embedding=_embedding(loading, model),
        hidden_norm=loading.norm(f"{prefix}hidden_norm"),
        norm_before_residual=own.norm_before_residual,
        embedding_qkv=parameters.linear(qkv_names, head_sizes, 2 * size, False, columns=range(size)),
        layer=loading.layer(0, decoder.layers[0], rope_table(decoder, max_model_len)),
        final_norm=loading.norm("norm"),
        lm_head=_lm_head(loading, own, model),
    )
    fc = parameters.linear(["fc"], [size], _NUM_STATES * model.facts.hidden_size, False)
    check_unused(weights, _HARMLESS, "EAGLE-3")
    return HiddenDraft(network, own.layer_ids, fc, token_ids=_token_ids(config, own, parameters))


def _embedding(loading: DecoderLoading, model: Decoder) -> Embedding:
    """Return the network's embedding, if it has one, else the model's."""
    config = loading.config
    if loading.parameters.source.has("embed_tokens.weight"):
        return Embedding(loading.parameters.table("embed_tokens", config.vocab_size, config.hidden_size))
    assert isinstance(model.embedding, Embedding), "one worker has the whole model"
    if config.hidden_size != model.facts.hidden_size:
        raise CheckpointError(
            f"{loading.parameters.source.where}: the EAGLE-3 network has no embed_tokens.weight, and its hidden_size "
            f"{config.hidden_size} is not that of the model, {model.facts.hidden_size}, whose embeddings it would read"
        )
    return model.embedding


def _lm_head(loading: DecoderLoading, own: Eagle3Config, model: Decoder) -> AnyLinear:
    is_own = loading.parameters.source.has("lm_head.weight") or own.vocab_size != model.facts.vocab_size
    if is_own or model.lm_head is None:
        return Linear(loading.parameters.table("lm_head", own.vocab_size, own.decoder.hidden_size))
    return model.lm_head


def _token_ids(config: HFConfig, own: Eagle3Config, parameters: Parameters) -> Int | None:
    """Add to each of the network's ids how far the model's lies above it."""
    if not parameters.source.has("d2t"):
        if own.vocab_size != own.decoder.vocab_size:
            raise CheckpointError(
                f"{config.source}: draft_vocab_size is {own.vocab_size} of {own.decoder.vocab_size}, but there is no "
                "tensor 'd2t' that says which tokens these are"
            )
        return None
    token_ids = np.arange(own.vocab_size, dtype=np.int32) + parameters.ids("d2t", own.vocab_size)
    return checked_ids(config, "d2t", token_ids, own.decoder.vocab_size)
