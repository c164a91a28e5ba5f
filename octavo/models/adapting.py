"""Gives a decoder's linear layers room for LoRA adapters, under the names that the model has in Transformers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octavo.layers.adapted import AdaptedEmbedding, AdaptedLinear, AdaptedPart, AdapterRows
from octavo.layers.attention import Attention
from octavo.layers.linear import Embedding, Linear
from octavo.layers.parallel import SharedLinear
from octavo.models.decoder import Decoder, DecoderLayer
from octavo.models.decoder_config import DecoderConfig, WeightNames
from octavo.ops.interface import Ops


@dataclass(frozen=True)
class AdaptedDecoder:
    """The decoder, which projections of it adapters may change, by module name, and what says who uses which."""

    decoder: Decoder
    parts: dict[str, AdaptedPart]
    rows: AdapterRows


def adapt_decoder(
    decoder: Decoder, config: DecoderConfig, names: WeightNames, ops: Ops, num_slots: int
) -> AdaptedDecoder:
    """Return the decoder with slots for adapters of its embedding, attention and MLP; weights are shared with it.

    A query, key and value projection that is fused head by head has no such room: its outputs lie elsewhere here.
    """
    none = np.zeros(0, np.int32)
    adapting = _Adapting(config, names, ops, num_slots, AdapterRows(none, none), {})
    last = len(decoder.layers) - 1
    layers = tuple(adapting.layer(layer, index, index == last) for index, layer in enumerate(decoder.layers))
    embedding = adapting.embedding(decoder.embedding)
    adapted = dataclasses.replace(decoder, embedding=embedding, layers=layers)
    return AdaptedDecoder(adapted, adapting.parts, adapting.rows)


@dataclass(frozen=True, slots=True)
class _Adapting:
    config: DecoderConfig
    names: WeightNames
    ops: Ops
    num_slots: int
    rows: AdapterRows
    parts: dict[str, AdaptedPart]

    def layer(self, layer: DecoderLayer, index: int, is_last: bool) -> DecoderLayer:
        config, names, attention, mlp = self.config, self.names, layer.attention, layer.mlp
        assert isinstance(attention, Attention), "encoders have no adapters"
        heads, kv_heads = (count * config.head_dim for count in (config.num_heads, config.num_kv_heads))
        qkv = attention.qkv
        if not names.qkv_by_head:
            qkv = self._adapt(qkv, index, names.qkv, (heads, kv_heads, kv_heads))
        output = self._adapt(attention.output, index, (names.attention_output,), (config.hidden_size,))
        down = self._adapt(mlp.down, index, (names.down,), (config.hidden_size,), is_last)
        inner = (config.intermediate_size,) * (2 if mlp.is_gated else 1)
        inputs = self._adapt(mlp.inputs, index, names.gate_up, inner, is_last)
        return dataclasses.replace(
            layer,
            attention=dataclasses.replace(attention, qkv=qkv, output=output),
            mlp=dataclasses.replace(mlp, inputs=inputs, down=down),
        )

    def embedding(self, embedding: object) -> AdaptedEmbedding:
        assert isinstance(embedding, Embedding), "one worker has the whole model, and it is adapted once"
        sizes = (embedding.table.in_features, embedding.table.out_features)
        slots = self.ops.adapter_slots(sizes[:1], sizes[1], self.num_slots)
        for root in self.names.roots:
            self.parts[root + self.names.embedding] = AdaptedPart(slots, 0, 1, sizes, False, False)
        return AdaptedEmbedding(embedding.table, slots, self.rows)

    def _adapt(
        self,
        linear: Linear | AdaptedLinear | SharedLinear,
        index: int,
        names: Sequence[str],
        sizes: tuple[int, ...],
        takes_outputs: bool = False,
    ) -> AdaptedLinear:
        assert isinstance(linear, Linear), "one worker has the whole layer, and it is adapted once"
        if len(names) < len(sizes):  # one module in the model too
            sizes = (sum(sizes),)
        in_features = linear.weight.in_features
        slots = self.ops.adapter_slots(sizes, in_features, self.num_slots)
        for part, name in enumerate(names):
            for root in self.names.roots:
                module = root + self.names.layer.format(index=index) + name
                shape, rounds = (sizes[part], in_features), linear.weight.rounds_inputs
                self.parts[module] = AdaptedPart(slots, part, len(sizes), shape, True, rounds)
        return AdaptedLinear(linear, slots, self.rows, takes_outputs)
