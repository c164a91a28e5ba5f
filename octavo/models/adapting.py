"""Gives a decoder's layers room for LoRA adapters, under the names that the model has in Transformers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from octavo.layers.adapted import AdaptedEmbedding, AdaptedLinear, AdaptedPart, AdaptedRows, AdapterRows
from octavo.layers.attention import Attention
from octavo.layers.linear import Embedding, Linear
from octavo.layers.mlp import MLP
from octavo.layers.parallel import AnyLinear, SharedEmbedding, SharedLinear
from octavo.models.decoder import Decoder, DecoderLayer
from octavo.models.decoder_config import DecoderConfig, WeightNames
from octavo.models.sharing import ModelShare, head_shares, pieces_of_stack, projected_features, stage_layers
from octavo.ops.interface import Ops
from octavo.ops.reference import ReferenceOps


@dataclass(frozen=True)
class AdaptedDecoder:
    """The decoder, which projections of the whole model adapters may change, by module name, and who uses which."""

    decoder: Decoder
    parts: dict[str, AdaptedPart]
    rows: AdapterRows


def adapt_decoder(
    decoder: Decoder, config: DecoderConfig, names: WeightNames, share: ModelShare, ops: Ops, num_slots: int
) -> AdaptedDecoder:
    """Return the decoder with slots for adapters of its embedding, attention, MLP and logits; it keeps its weights.

    Experts have no such room, nor has a query, key and value projection that is fused head by head: its outputs lie
    elsewhere here.
    """
    none = np.zeros(0, np.int32)
    adapting = _Adapting(config, names, share, ops, num_slots, AdapterRows(none, none, none), {})
    own = stage_layers(config, share.num_stages, share.stage)
    layers = []
    for index in range(len(config.layers)):
        layer = decoder.layers[index - own.start] if index in own else None
        takes: AdaptedRows = "outputs" if share.is_last and index == own[-1] else "tokens"
        adapted = adapting.layer(layer, index, takes)
        if adapted is not None:
            layers.append(adapted)
    embedding, lm_head = adapting.embedding(decoder.embedding), adapting.head(decoder.lm_head)
    adapted_decoder = dataclasses.replace(decoder, embedding=embedding, layers=tuple(layers), lm_head=lm_head)
    return AdaptedDecoder(adapted_decoder, adapting.parts, adapting.rows)


def adaptable_modules(config: DecoderConfig, names: WeightNames) -> dict[str, tuple[int, int]]:
    """Return outputs and inputs of the modules that adapters may change, by name; needs no weights."""
    none = np.zeros(0, np.int32)
    adapting = _Adapting(config, names, ModelShare(), ReferenceOps(), 0, AdapterRows(none, none, none), {})
    for index in range(len(config.layers)):
        adapting.layer(None, index, "tokens")
    adapting.embedding(None)
    adapting.head(None)
    return {name: part.shape for name, part in adapting.parts.items()}


@dataclass(frozen=True, slots=True)
class _Adapting:
    config: DecoderConfig
    names: WeightNames
    share: ModelShare
    ops: Ops
    num_slots: int
    rows: AdapterRows
    parts: dict[str, AdaptedPart]

    def layer(self, layer: DecoderLayer | None, index: int, takes: AdaptedRows) -> DecoderLayer | None:
        """Note a layer's modules, and return it adapted; None: another stage has it. takes: the rows of its MLP"""
        config, names, share = self.config, self.names, self.share
        query, key = (count * config.head_dim for count in (config.num_heads, config.num_kv_heads))
        hidden, inner, number = config.hidden_size, config.intermediate_size, 2 if config.gated_mlp else 1
        to_hidden = [(hidden, share.of(hidden))]
        projected = projected_features(config, head_shares(config, share.group.size)[share.group.rank])
        qkv: AnyLinear | None = None
        inputs: AnyLinear | None = None
        output = down = None
        if layer is not None:
            assert isinstance(layer.attention, Attention), "encoders have no adapters"
            qkv, output = layer.attention.qkv, layer.attention.output
            if isinstance(layer.mlp, MLP):
                inputs, down = layer.mlp.inputs, layer.mlp.down

        def adapt(
            linear: AnyLinear | None, parts: Sequence[str], in_features: int, outputs: Sequence[tuple[int, range]]
        ) -> AnyLinear | None:
            roots = [root + names.layer.format(index=index) for root in names.roots]
            rows = takes if parts in (names.gate_up, (names.down,)) else "tokens"
            return self._adapt(linear, [[root + part for root in roots] for part in parts], in_features, outputs, rows)

        if not names.qkv_by_head:
            qkv = adapt(qkv, names.qkv, hidden, list(zip((query, key, key), projected, strict=True)))
        output = adapt(output, (names.attention_output,), query, to_hidden)
        if config.layers[index].experts is None:
            inputs = adapt(inputs, names.gate_up, hidden, [(inner, share.of(inner))] * number)
            down = adapt(down, (names.down,), inner, to_hidden)
        if layer is None:
            return None
        attention, mlp = layer.attention, layer.mlp
        if isinstance(mlp, MLP):
            mlp = dataclasses.replace(mlp, inputs=inputs, down=down)  # type: ignore[arg-type]
        attention = dataclasses.replace(attention, qkv=qkv, output=output)  # type: ignore[arg-type]
        return dataclasses.replace(layer, attention=attention, mlp=mlp)

    def embedding(self, embedding: object) -> AdaptedEmbedding | None:
        config, share = self.config, self.share
        assert isinstance(embedding, Embedding | SharedEmbedding | None), "it is adapted once"
        tokens, slots = share.of(config.vocab_size), None
        if embedding is not None:
            slots = self.ops.adapter_slots((config.hidden_size,), len(tokens), self.num_slots)
        part = AdaptedPart(slots, 0, 1, (config.hidden_size, config.vocab_size), False, tokens=tokens)
        self.parts.update({root + self.names.embedding: part for root in self.names.roots})
        if embedding is None or slots is None:
            return None
        return AdaptedEmbedding(embedding.table, tokens.start, config.vocab_size, share.group, slots, self.rows)

    def head(self, lm_head: AnyLinear | None) -> AnyLinear | None:
        vocab_size = self.config.vocab_size
        outputs = [(vocab_size, self.share.of(vocab_size))]
        return self._adapt(lm_head, [self.names.lm_heads], self.config.hidden_size, outputs, "logits")

    def _adapt(
        self,
        linear: AnyLinear | None,
        names: Sequence[Sequence[str]],
        in_features: int,
        outputs: Sequence[tuple[int, range]],
        takes: AdaptedRows,
    ) -> AnyLinear | None:
        """Note what is stacked in a layer, and return it adapted; None: another stage has it.

        names: of each module, whatever a checkpoint calls it; outputs: of each part all features, and this rank's
        """
        if isinstance(linear, SharedLinear):
            adapted = self._adapt(linear.linear, names, in_features, outputs, takes)
            assert isinstance(adapted, AdaptedLinear)
            return dataclasses.replace(linear, linear=adapted)
        assert isinstance(linear, Linear | None), "it is adapted once"
        sizes, shares = zip(*outputs, strict=True)
        is_fused = len(names) < len(sizes)  # one module in the model too
        pieces = pieces_of_stack(self.share, sizes, shares, is_fused)
        if is_fused:
            sizes = (sum(sizes),)
        own = [None] * len(sizes) if pieces is None else [np.array([*chain(*ranges)], np.intp) for ranges in pieces]
        slots, rounds_inputs = None, False
        if linear is not None:
            own_sizes = [size if features is None else len(features) for size, features in zip(sizes, own, strict=True)]
            slots = self.ops.adapter_slots(own_sizes, in_features, self.num_slots)
            rounds_inputs = linear.weight.rounds_inputs
        for index, (size, features) in enumerate(zip(sizes, own, strict=True)):
            part = AdaptedPart(slots, index, len(sizes), (size, in_features), True, rounds_inputs, features)
            self.parts.update(dict.fromkeys(names[index], part))
        return None if linear is None or slots is None else AdaptedLinear(linear, slots, self.rows, takes)
