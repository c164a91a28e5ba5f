"""Architecture name -> how a checkpoint is read for embedding, classification and scoring."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from octavo.errors import UnsupportedError
from octavo.layers.head import HeadStep
from octavo.layers.linear import Linear
from octavo.layers.parameters import Parameters
from octavo.loader.hf_config import HFConfig
from octavo.loader.sentence_transformers import DenseModule
from octavo.loader.weights import WeightSource
from octavo.models import bert, gte, jina, modernbert, mpnet, nomic_bert
from octavo.models.config_reading import norm_epsilon, positive, read_activation
from octavo.models.decoder_loading import load_decoder
from octavo.models.encoder_config import EncoderConfig, EncoderNames
from octavo.models.encoder_loading import load_encoder
from octavo.models.interface import ModelFacts
from octavo.models.pooling import HeadLayer, Normalise, PoolingModel, Project, load_dense_modules, load_head
from octavo.models.registry import ARCHITECTURES, Architecture
from octavo.models.sharing import ModelShare, check_context_parallel, check_sizes
from octavo.ops.interface import Ops

# Set in a config whose head is made of the output projection: ids of two tokens, that for "no" first.
CLASSIFIER_TOKEN_IDS = "classifier_token_ids"
# What a checkpoint is for: a vector or a score for each text, or for each token.
PoolingKind = Literal["embed", "classify", "token_embed", "token_classify"]


@dataclass(frozen=True)
class PoolingFacts:
    """What the engine must know of a pooling checkpoint.

    pooling: of a sequence, by the architecture's custom: CLS, LAST or MEAN
    is_causal: tokens see earlier ones only, and the KV cache is used
    labels: their names, for kinds that classify
    """

    model: ModelFacts
    kind: PoolingKind
    pooling: str
    is_causal: bool
    labels: tuple[str, ...]
    embedding_size: int


@dataclass(frozen=True)
class _Family:
    """An encoder's config mapping, weight names, and heads by kind."""

    read_config: Callable[[HFConfig], EncoderConfig]
    names: tuple[EncoderNames, ...]
    heads: Callable[[HFConfig], Mapping[PoolingKind, Sequence[HeadLayer]]]


_LABELS = Project("classifier", "labels")
_BERT_HEADS: Mapping[PoolingKind, Sequence[HeadLayer]] = {
    "classify": (Project("{root}pooler.dense"), "tanh", _LABELS),
    "token_classify": (_LABELS,),
}
_ROBERTA_HEADS: Mapping[PoolingKind, Sequence[HeadLayer]] = {
    "classify": (Project("classifier.dense"), "tanh", Project("classifier.out_proj", "labels")),
    "token_classify": (_LABELS,),
}
_DISTILBERT_HEADS: Mapping[PoolingKind, Sequence[HeadLayer]] = {
    "classify": (Project("pre_classifier"), "relu", _LABELS),
    "token_classify": (_LABELS,),
}


def _modernbert_heads(config: HFConfig) -> Mapping[PoolingKind, Sequence[HeadLayer]]:
    layers: Sequence[HeadLayer] = (
        Project("head.dense", bias=config.bool("classifier_bias", False)),
        read_activation(config, "classifier_activation", "gelu"),
        Normalise("head.norm", norm_epsilon(config, "norm_eps", 1e-5), config.bool("norm_bias", False)),
        _LABELS,
    )
    return {"classify": layers, "token_classify": layers}


_BERT = _Family(bert.read_bert_config, (bert.BERT_NAMES,), lambda config: _BERT_HEADS)
_ROBERTA = _Family(bert.read_roberta_config, (bert.ROBERTA_NAMES,), lambda config: _ROBERTA_HEADS)
_GTE = _Family(gte.read_config, (gte.NAMES, gte.ORIGINAL_NAMES), lambda config: _BERT_HEADS)
ENCODERS: Mapping[str, _Family] = {
    "Bert": _BERT,
    "Camembert": _ROBERTA,
    "DistilBert": _Family(bert.read_distilbert_config, (bert.DISTILBERT_NAMES,), lambda config: _DISTILBERT_HEADS),
    "Gte": _GTE,
    "GteNew": _GTE,  # vLLM's name for New
    "JinaEmbeddingsV3": _Family(jina.read_config, (jina.NAMES, jina.ORIGINAL_NAMES), lambda config: _ROBERTA_HEADS),
    "MPNet": _Family(mpnet.read_config, (mpnet.NAMES,), lambda config: _ROBERTA_HEADS),
    "ModernBert": _Family(modernbert.read_config, (modernbert.NAMES,), _modernbert_heads),
    "New": _GTE,
    "NomicBert": _Family(nomic_bert.read_config, (nomic_bert.NAMES, nomic_bert.ORIGINAL_NAMES), lambda config: {}),
    "Roberta": _ROBERTA,
    "XLMRoberta": _ROBERTA,
}
_SUFFIXES: Mapping[str, PoolingKind] = {
    "Model": "embed",
    "ForMaskedLM": "embed",
    "ForPreTraining": "embed",
    "ForCausalLM": "embed",
    "ForSequenceClassification": "classify",
    "ForTokenClassification": "token_classify",
    "ForRewardModel": "token_classify",
    "ForProcessRewardModel": "token_classify",
}
_NAME = re.compile(rf"(?P<base>\w+?)(?P<suffix>{'|'.join(_SUFFIXES)})")
# decoders whose name for generation is not base + "ForCausalLM"
_DECODER_NAMES = {"GPT2": "GPT2LMHeadModel", "Gemma3Text": "Gemma3ForCausalLM", "GPT2LMHead": "GPT2LMHeadModel"}


@dataclass(frozen=True)
class _Architecture:
    base: str
    kind: PoolingKind
    family: _Family | None  # None for a decoder
    is_reward_model: bool = False

    @property
    def decoder_name(self) -> str:
        return _DECODER_NAMES.get(self.base, f"{self.base}ForCausalLM")


def find_architecture(names: Sequence[object]) -> _Architecture | None:
    """Return how to read the first of these architecture names that can pool; None where none can."""
    for name in names:
        if name == "HF_ColBERT":
            return _Architecture("Bert", "token_embed", _COLBERT)
        match = _NAME.fullmatch(str(name))
        if match is None:
            continue
        base, suffix = match["base"], match["suffix"]
        found = _Architecture(base, _SUFFIXES[suffix], ENCODERS.get(base), suffix.endswith("RewardModel"))
        if found.family is not None or found.decoder_name in ARCHITECTURES:
            return found
    return None


def describe_pooling(config: HFConfig) -> PoolingFacts:
    """Return a checkpoint's facts; raises UnsupportedError for an architecture or option that is not here."""
    found = _require(config)
    labels = _labels(config) if found.kind in ("classify", "token_classify") else ()
    if found.family is not None:
        encoder = found.family.read_config(config)
        pooling = "CLS"
        if found.kind == "classify" and found.base == "ModernBert":
            pooling = config.str("classifier_pooling", "cls").upper()
        size = _colbert_size(config) if found.family is _COLBERT else encoder.hidden_size
        return PoolingFacts(encoder.facts, found.kind, pooling, False, labels, size)
    decoder = ARCHITECTURES[found.decoder_name].read_config(config)
    pooling = "MEAN" if decoder.bidirectional else "LAST"
    return PoolingFacts(decoder.facts, found.kind, pooling, not decoder.bidirectional, labels, decoder.hidden_size)


def check_pooling_sizes(config: HFConfig, tp_size: int, pp_size: int, dcp_size: int) -> None:
    """Raise ConfigError or UnsupportedError when the model cannot be divided among so many workers."""
    found = _require(config)
    if found.family is None:
        decoder = ARCHITECTURES[found.decoder_name].read_config(config)
        check_sizes(decoder, tp_size, pp_size)
        check_context_parallel(decoder, tp_size, dcp_size)
        return
    encoder = found.family.read_config(config)
    check_sizes(encoder, tp_size, pp_size)
    if dcp_size > 1:
        raise UnsupportedError(
            f"decode_context_parallel_size={dcp_size} divides a KV cache, and {encoder.architecture} has none; "
            "leave it at 1"
        )


def build_pooling_model(
    config: HFConfig,
    weights: WeightSource,
    dense: Sequence[DenseModule],
    ops: Ops,
    max_model_len: int,
    share: ModelShare | None = None,
) -> PoolingModel:
    """Read the weights and build the model, or a worker's share of it, for sequences of up to max_model_len tokens.

    dense: linear layers on top that sentence-transformers keeps beside the model
    Every worker has the whole head, which is small; the last stage computes it.
    Raises CheckpointError when tensors are missing, of the wrong shape, or left over.
    """
    found = _require(config)
    num_labels = len(_labels(config))
    parameters, share = Parameters(weights, ops), share or ModelShare()
    if found.family is None:
        architecture = ARCHITECTURES[found.decoder_name]
        names = architecture.names
        # the output projection is not needed, wherever it is
        names = replace(names, roots=(*names.roots, ""), lm_heads=(), harmless=(*names.harmless, r"(^|\.)lm_head\."))
        decoder = replace(architecture.read_config(config), tie_word_embeddings=True)
        if CLASSIFIER_TOKEN_IDS in config:
            steps: tuple[HeadStep, ...] = (_two_way_score(config, architecture, weights, ops),)
        else:
            steps = load_head(_decoder_head(found), parameters, decoder.hidden_size, num_labels)
        body = load_decoder(decoder, names, weights, ops, max_model_len, share)
        return PoolingModel(body, (*steps, *load_dense_modules(dense, ops)), second_text_offset=0)
    family, encoder = found.family, found.family.read_config(config)
    encoder_names, root = _names(family, weights)
    layers = family.heads(config).get(found.kind, ())
    steps = load_head(layers, parameters, encoder.hidden_size, num_labels, root)
    body = load_encoder(encoder, encoder_names, root, parameters, max_model_len, share)
    return PoolingModel(body, (*steps, *load_dense_modules(dense, ops)), encoder.second_text_offset)


def _two_way_score(config: HFConfig, architecture: Architecture, weights: WeightSource, ops: Ops) -> Linear:
    """Return the head whose sigmoid is the second token's share when only two tokens could follow (Qwen3-Reranker)."""
    decoder, names = architecture.read_config(config), architecture.names
    first, second = config.list(CLASSIFIER_TOKEN_IDS)
    tables = [f"{root}{names.embedding}" for root in (*names.roots, "")]
    if not decoder.tie_word_embeddings:
        tables = list(names.lm_heads)
    name = next((f"{table}.weight" for table in tables if weights.has(f"{table}.weight")), f"{tables[0]}.weight")
    rows = weights.get(name, (decoder.vocab_size, decoder.hidden_size)).float32()
    return Linear(ops.pack([rows[[second]] - rows[[first]]]))


def _require(config: HFConfig) -> _Architecture:
    names = config.list("architectures", [])
    found = find_architecture(names)
    if found is None:
        decoders = sorted(name.removesuffix("ForCausalLM") for name in ARCHITECTURES)
        raise UnsupportedError(
            f"{config.source}: architecture {', '.join(map(str, names)) or 'none'} is not supported for pooling; "
            f"supported: {', '.join([*sorted(ENCODERS), *decoders])} followed by {', '.join(_SUFFIXES)}"
        )
    if found.family is not None and found.kind not in ("embed", *found.family.heads(config)):
        raise UnsupportedError(f"{config.source}: architecture {names[0]} is not supported: its head is not built")
    return found


def _names(family: _Family, weights: WeightSource) -> tuple[EncoderNames, str]:
    """Return the names under which the checkpoint has its tensors, and what stands before them."""
    for names in family.names:
        for root in names.roots:
            first = root + names.layer.format(index=0) + names.qkv[0]
            if weights.has(f"{root}{names.embedding}.weight") and weights.has(f"{first}.weight"):
                return names, root
    return family.names[0], family.names[0].roots[0]


def _decoder_head(found: _Architecture) -> Sequence[HeadLayer]:
    if found.is_reward_model:
        return (Project("score.0"), "relu", Project("score.2", "labels"))
    if found.kind == "classify":
        return (Project("score", "labels", bias=False),)
    return (Project("score", "labels"),) if found.kind == "token_classify" else ()


def _labels(config: HFConfig) -> tuple[str, ...]:
    """Return the names of the labels; Transformers' default is two without meaning."""
    names = config.section("id2label")
    count = len(names.values) if names is not None else positive(config, "num_labels", 2)
    if names is None:
        return tuple(f"LABEL_{index}" for index in range(count))
    return tuple(names.str(str(index), f"LABEL_{index}") for index in range(count))


def _colbert_size(config: HFConfig) -> int:
    return positive(config, "dim", positive(config, "colbert_dim", 128))


_COLBERT = replace(_BERT, heads=lambda config: {"token_embed": (Project("linear", _colbert_size(config), bias=False),)})
