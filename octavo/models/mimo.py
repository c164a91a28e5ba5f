"""MiMo: Qwen 2 with a layer for multi-token prediction (MTP), which guesses the token after next.

As in vLLM's `mimo` and `mimo_mtp`: the layer reads the last layer's output before the final norm, and of position 0 no
token. It guesses further with its own output.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from octavo.errors import UnsupportedError
from octavo.layers.linear import Embedding
from octavo.layers.parameters import Parameters
from octavo.loader.hf_config import HFConfig
from octavo.loader.weights import WeightSource
from octavo.models import qwen2
from octavo.models.config_reading import positive
from octavo.models.decoder import Decoder
from octavo.models.decoder_config import DecoderConfig, LayerConfig, WeightNames
from octavo.models.decoder_loading import DecoderLoading, check_unused
from octavo.models.hidden_drafts import FusedDraft, Fusion, HiddenDraft, check_architecture, rope_table, side_by_side
from octavo.ops.interface import Float, Int, Ops, Weight

ARCHITECTURE = "MiMoForCausalLM"
_MTP_LAYERS = r"^model\.mtp_layers\."
NAMES = replace(qwen2.NAMES, harmless=(*qwen2.NAMES.harmless, _MTP_LAYERS))
_MTP_NAMES = WeightNames(layer="mtp_layers.{index}.")


def read_config(config: HFConfig) -> DecoderConfig:
    return replace(qwen2.read_config(config), architecture=ARCHITECTURE)


def check_mtp(config: HFConfig) -> None:
    """Raise UnsupportedError unless there is a layer that guesses, and one alone."""
    check_architecture(config, [ARCHITECTURE], "MTP layers")
    number = positive(config, "num_nextn_predict_layers")
    if number != 1:
        raise UnsupportedError(f"{config.source}: num_nextn_predict_layers={number}; one MTP layer is supported")


@dataclass(frozen=True, slots=True)
class _TokenEmbedding:
    """The model's embedding; the id behind the vocabulary embeds as zeros."""

    table: Weight

    def __call__(self, ids: Int, ops: Ops) -> Float:
        """ids: [T] -> [T, H]."""
        return ops.embedding_share(ids, self.table, 0, self.table.out_features + 1)


def load_mtp(config: HFConfig, weights: WeightSource, model: Decoder, ops: Ops, max_model_len: int) -> HiddenDraft:
    """Read the MTP layer of a checkpoint. Raises CheckpointError for missing tensors."""
    whole = read_config(config)
    layer = whole.layers[0]
    own = replace(whole, layers=(LayerConfig(layer.rope, layer.attention_scale),))
    loading = DecoderLoading(own, _MTP_NAMES, "model.", Parameters(weights, ops))
    prefix = loading.root + _MTP_NAMES.layer.format(index=0)
    hidden, embedded = side_by_side(loading, [f"{prefix}input_proj"], [own.hidden_size])
    assert isinstance(model.embedding, Embedding) and model.lm_head is not None, "one worker has the whole model"
    network = FusedDraft(
        facts=replace(model.facts, num_layers=1),
        embedding=_TokenEmbedding(model.embedding.table),
        fusion=Fusion(
            loading.norm(f"{prefix}token_layernorm"), loading.norm(f"{prefix}hidden_layernorm"), embedded, hidden
        ),
        layers=(loading.layer(0, own.layers[0], rope_table(own, max_model_len)),),
        final_norm=loading.norm(f"{prefix}final_layernorm"),
        lm_head=model.lm_head,
    )
    check_unused(weights, [r"^(?!model\.mtp_layers\.)"], "MiMo's MTP layer")
    return HiddenDraft(network, taps=(model.facts.num_layers,), hides_first=True)
