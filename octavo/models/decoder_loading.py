"""Builds a decoder from its config, its weight names and a checkpoint's tensors."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octavo.errors import CheckpointError, ConfigError
from octavo.layers.attention import Attention, QKNorm
from octavo.layers.encoder_attention import EncoderAttention
from octavo.layers.linear import Embedding, Linear
from octavo.layers.mlp import GatedMLP, PlainMLP
from octavo.layers.norm import LayerNorm, NoNorm, Norm, RMSNorm
from octavo.layers.parameters import Parameters
from octavo.layers.rotary import cos_sin_table
from octavo.loader.weights import WeightSource
from octavo.models.decoder import Decoder, DecoderLayer
from octavo.models.decoder_config import DecoderConfig, LayerConfig, WeightNames
from octavo.ops.interface import Float, Ops, Weight

logger = logging.getLogger(__name__)


def load_decoder(
    config: DecoderConfig, names: WeightNames, weights: WeightSource, ops: Ops, max_model_len: int
) -> Decoder:
    """Read every tensor that the model needs, and refuse a checkpoint that has others.

    A tensor without a place would mean a computation that the model leaves out, that is silently wrong text.
    """
    if config.learned_positions and max_model_len > config.max_position:
        raise ConfigError(
            f"max_model_len={max_model_len} exceeds the {config.max_position} learned positions of "
            f"{config.architecture}; lower max_model_len"
        )
    root = next((root for root in names.roots if weights.has(f"{root}{names.embedding}.weight")), names.roots[0])
    loading = _Loading(config, names, root, Parameters(weights, ops, names.transposed))
    table, lm_head = loading.embedding_and_head()
    tables = {rope: cos_sin_table(rope, max_model_len) for rope in {layer.rope for layer in config.layers} if rope}
    decoder = Decoder(
        facts=config.facts,
        embedding=Embedding(table),
        position_embedding=loading.position_embedding() if config.learned_positions else None,
        layers=tuple(
            loading.layer(index, layer, tables[layer.rope] if layer.rope else None)
            for index, layer in enumerate(config.layers)
        ),
        final_norm=loading.norm(f"{root}{names.final_norm}"),
        lm_head=Linear(lm_head),
        embedding_scale=config.embedding_scale,
        logits_scale=config.logits_scale,
        logits_softcap=config.logits_softcap,
    )
    check_unused(weights, names.harmless, config.architecture)
    return decoder


def check_unused(weights: WeightSource, harmless: Sequence[str], architecture: str) -> None:
    """Raise CheckpointError for tensors that nobody asked for, but those whose names match a harmless pattern."""
    unused = [name for name in weights.unused() if not any(re.search(pattern, name) for pattern in harmless)]
    if unused:
        listed = ", ".join(unused[:5]) + (f" and {len(unused) - 5} more" if len(unused) > 5 else "")
        raise CheckpointError(
            f"the checkpoint holds tensors that {architecture} with this config does not use: {listed}; "
            "the config and the weights are not of the same model"
        )


@dataclass(frozen=True, slots=True)
class _Loading:
    """One decoder while it is read."""

    config: DecoderConfig
    names: WeightNames
    root: str
    parameters: Parameters

    def embedding_and_head(self) -> tuple[Weight, Weight]:
        """Return the embedding table and the output projection: one Weight when they are tied.

        A checkpoint that is tied by its config and still has an lm_head of other values is not tied: Transformers
        decides the same way.
        """
        config, parameters, source = self.config, self.parameters, self.parameters.source
        size = (config.vocab_size, config.hidden_size)
        name = f"{self.root}{self.names.embedding}"
        if not config.tie_word_embeddings:
            head = next((head for head in self.names.lm_heads if source.has(f"{head}.weight")), None)
            if head is None:
                raise CheckpointError(
                    f"the config says tie_word_embeddings=false, but the checkpoint has no "
                    f"{self.names.lm_heads[0]}.weight; set tie_word_embeddings to true if the model is tied"
                )
            return parameters.table(name, *size), parameters.table(head, *size)

        # Only a file that lists an lm_head has a spare one; a source of dummy weights has any name but lists none.
        listed = source.unused()
        head = next((head for head in self.names.lm_heads if f"{head}.weight" in listed), None)
        if head is None or f"{name}.weight" not in listed:
            table = parameters.table(head or name, *size)
            return table, table
        table, head_table = parameters.table(name, *size), parameters.table(head, *size)
        matrix, head_matrix = (source.get(f"{tensor}.weight", size).float32() for tensor in (name, head))
        if np.array_equal(matrix, head_matrix):
            return table, table
        logger.warning(
            "The config says tie_word_embeddings=true, but the checkpoint's %s differs from %s: using both", head, name
        )
        return table, head_table

    def position_embedding(self) -> Embedding:
        name = f"{self.root}{self.names.positions}"
        return Embedding(self.parameters.table(name, self.config.max_position, self.config.hidden_size))

    def layer(self, index: int, layer: LayerConfig, cos_sin: Float | None) -> DecoderLayer:
        config, names = self.config, self.names
        prefix = self.root + names.layer.format(index=index)
        return DecoderLayer(
            input_norm=self.norm(prefix + names.input_norm) if config.pre_norm else NoNorm(),
            attention=self._attention(f"layers.{index}.attention", prefix, layer, cos_sin),
            post_attention_norm=self.norm(prefix + names.post_attention_norm) if config.post_norm else NoNorm(),
            mlp_norm=self.norm(prefix + names.mlp_norm) if config.pre_norm else NoNorm(),
            mlp=self._mlp(prefix),
            post_mlp_norm=self.norm(prefix + names.post_mlp_norm) if config.post_norm else NoNorm(),
            residual_scale=config.residual_scale,
        )

    def norm(self, name: str) -> Norm:
        config = self.config
        if config.norm == "layer":
            bias = self.parameters.vector(f"{name}.bias", config.hidden_size)
            return LayerNorm(self.parameters.vector(f"{name}.weight", config.hidden_size), bias, config.norm_eps)
        return self._rms_norm(name, config.hidden_size)

    def _rms_norm(self, name: str, size: int) -> RMSNorm:
        weight = self.parameters.vector(f"{name}.weight", size)
        if self.config.norm == "rms_plus_one":
            weight = weight + np.float32(1)
        return RMSNorm(weight, self.config.norm_eps)

    def _attention(self, name: str, prefix: str, layer: LayerConfig, cos_sin: Float | None) -> Attention | EncoderAttention:
        config, names = self.config, self.names
        query_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        attention = Attention(
            name=name,
            qkv=self._stacked(prefix, names.qkv, (query_size, kv_size, kv_size), config.qkv_bias),
            output=self.parameters.linear(
                [prefix + names.attention_output], [config.hidden_size], query_size, config.output_bias
            ),
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            scale=layer.attention_scale,
            cos_sin=cos_sin,
            qk_norm=self._qk_norm(prefix, query_size, kv_size),
            sliding_window=layer.sliding_window,
            softcap=config.attention_softcap,
        )
        return EncoderAttention.like(attention) if config.bidirectional else attention

    def _qk_norm(self, prefix: str, query_size: int, kv_size: int) -> QKNorm | None:
        over = self.config.qk_norm
        if over is None:
            return None
        if over == "head":
            query_size = kv_size = self.config.head_dim
        return QKNorm(
            query=self._rms_norm(prefix + self.names.q_norm, query_size),
            key=self._rms_norm(prefix + self.names.k_norm, kv_size),
            over=over,
        )

    def _mlp(self, prefix: str) -> GatedMLP | PlainMLP:
        config, names = self.config, self.names
        size = config.intermediate_size
        down = self.parameters.linear([prefix + names.down], [config.hidden_size], size, config.mlp_bias)
        if config.gated_mlp:
            gate_up = self._stacked(prefix, names.gate_up, (size, size), config.mlp_bias)
            return GatedMLP(gate_up, down, config.activation)
        return PlainMLP(self._stacked(prefix, names.gate_up, (size,), config.mlp_bias), down, config.activation)

    def _stacked(self, prefix: str, parts: tuple[str, ...], sizes: tuple[int, ...], bias: bool) -> Linear:
        """Read projections of the hidden state that the checkpoint stores one by one, or fused under one name."""
        out_sizes = sizes if len(parts) == len(sizes) else (sum(sizes),)
        return self.parameters.linear([prefix + part for part in parts], out_sizes, self.config.hidden_size, bias)
