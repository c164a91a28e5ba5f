"""Builds an encoder from its config, its weight names and a checkpoint's tensors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo.errors import ConfigError
from octavo.layers.distances import distance_buckets
from octavo.layers.encoder_attention import EncoderAttention
from octavo.layers.linear import Embedding, Linear
from octavo.layers.mlp import MLP
from octavo.layers.norm import LayerNorm, NoNorm, Norm, PostNorm
from octavo.layers.parallel import SharedEmbedding, SharedLinear
from octavo.layers.parameters import Parameters
from octavo.layers.rotary import Rope, cos_sin_table
from octavo.models.decoder import Decoder, DecoderLayer
from octavo.models.decoder_loading import check_unused, projection_to_hidden, shared_embedding
from octavo.models.encoder_config import EncoderConfig, EncoderNames
from octavo.models.sharing import ModelShare, head_shares, pieces_of_stack, stage_layers
from octavo.ops.interface import Float


def load_encoder(
    config: EncoderConfig,
    names: EncoderNames,
    root: str,
    parameters: Parameters,
    max_model_len: int,
    share: ModelShare,
) -> Decoder:
    """Read the tensors of an encoder or a share of it, and refuse a checkpoint that has others.

    root: what stands before their names
    """
    if config.learned_positions and max_model_len > config.max_position:
        raise ConfigError(
            f"max_model_len={max_model_len} exceeds the {config.max_position} learned positions of "
            f"{config.architecture}; lower max_model_len"
        )
    ropes = {layer.rope: cos_sin_table(layer.rope, max_model_len) for layer in config.layers if layer.rope}
    bias: Float | None = None
    if config.distance_buckets:
        shape = (config.distance_buckets, config.num_heads)
        table = parameters.source.get(f"{root}{names.distances}.weight", shape).float32()
        heads = head_shares(config, share.group.size)[share.group.rank].query
        bias = table[distance_buckets(config.distance_buckets, max_model_len), heads.start : heads.stop].T.copy()
    own_layers = stage_layers(config, share.num_stages, share.stage, has_logits=False)
    encoder = _Loading(config, names, root, parameters, ropes, bias, share).encoder(own_layers)
    elsewhere = [names.layer.format(index=index) for index in range(len(config.layers)) if index not in own_layers]
    if not share.is_first:
        first = (names.embedding, names.positions, names.token_types, names.embedding_norm)
        elsewhere += [f"{name}." for name in first]
    if not share.is_last:  # the next stage begins with the norm after this one's last layer
        last = names.layer.format(index=own_layers.stop - 1) + names.mlp_norm if config.post_norm else names.final_norm
        elsewhere.append(f"{last}.")
    elsewhere = [root + name for name in elsewhere]
    check_unused(parameters.source, names.harmless, config.architecture, elsewhere)
    return encoder


@dataclass(frozen=True, slots=True)
class _Loading:
    """One encoder while it is read. distance_bias: of this rank's heads, see `Ops.encoder_attention`"""

    config: EncoderConfig
    names: EncoderNames
    root: str
    parameters: Parameters
    ropes: dict[Rope, Float]
    distance_bias: Float | None
    share: ModelShare

    def encoder(self, layers: range) -> Decoder:
        share = self.share
        return Decoder(
            facts=self.config.facts,
            embedding=self._embedding() if share.is_first else None,
            position_embedding=self._positions() if self.config.learned_positions and share.is_first else None,
            embedding_norm=self._norm_before(layers.start),
            layers=tuple(self._layer(index, is_entry=index == layers.start) for index in layers),
            final_norm=self._norm_after(layers.stop) if share.is_last else None,
            lm_head=None,
            embedding_scale=1.0,
            logits_scale=1.0,
            logits_softcap=None,
        )

    def _embedding(self) -> Embedding | SharedEmbedding:
        """Return the token embeddings, with the first text's type in them where there are no learned positions."""
        config, share = self.config, self.share
        rows = share.of(config.vocab_size) if share.group.size > 1 else None
        if config.num_token_types and not config.learned_positions:
            types = self._rows(self.names.token_types, config.num_token_types)
            matrix = self._rows(self.names.embedding, config.vocab_size) + types[0]
            table = self.parameters.ops.pack([matrix if rows is None else matrix[rows.start : rows.stop]])
        else:
            name = self.root + self.names.embedding
            table = self.parameters.table(name, config.vocab_size, config.hidden_size, rows)
        return shared_embedding(table, share, config.vocab_size)

    def _positions(self) -> Embedding:
        """Return learned positions, one table for each text of a pair: one look-up adds position and type."""
        config, names = self.config, self.names
        tables = [self._rows(names.positions, config.position_offset + config.max_position)[config.position_offset :]]
        if config.num_token_types:
            tables = [tables[0] + row for row in self._rows(names.token_types, config.num_token_types)]
        return Embedding(self.parameters.ops.pack([np.concatenate(tables)]))

    def _rows(self, name: str, num_rows: int) -> Float:
        tensor = self.parameters.source.get(f"{self.root}{name}.weight", (num_rows, self.config.hidden_size))
        return tensor.float32()

    def _layer(self, index: int, is_entry: bool) -> DecoderLayer:
        """is_entry: the stage's first, before which `_norm_before` stands"""
        config, names = self.config, self.names
        prefix = self._prefix(index)
        if config.post_norm:
            mlp_norm: Norm = PostNorm(self._norm(prefix + names.attention_norm))
        else:
            mlp_norm = self._norm(prefix + names.mlp_norm)
        has_norm = index > 0 and not (config.post_norm and is_entry)
        return DecoderLayer(
            input_norm=self._norm_after(index) if has_norm else NoNorm(),
            attention=self._attention(index, prefix),
            post_attention_norm=NoNorm(),
            mlp_norm=mlp_norm,
            mlp=self._mlp(prefix),
            post_mlp_norm=NoNorm(),
            residual_scale=1.0,
        )

    def _norm_before(self, num_layers: int) -> Norm:
        """Return the norm of what a stage starts with, embeddings or what has passed so many layers."""
        if num_layers == 0:
            return self._norm(self.root + self.names.embedding_norm)
        return self._norm_after(num_layers) if self.config.post_norm else NoNorm()

    def _norm_after(self, num_layers: int) -> Norm:
        """Return the norm between the first `num_layers` layers and what follows."""
        config, names = self.config, self.names
        if config.post_norm:
            return PostNorm(self._norm(self._prefix(num_layers - 1) + names.mlp_norm))
        if num_layers == len(config.layers):
            return self._norm(self.root + names.final_norm)
        return self._norm(self._prefix(num_layers) + names.attention_norm)

    def _prefix(self, index: int) -> str:
        return self.root + self.names.layer.format(index=index)

    def _norm(self, name: str) -> LayerNorm:
        config, parameters = self.config, self.parameters
        bias = parameters.vector(f"{name}.bias", config.hidden_size) if config.norm_bias else None
        return LayerNorm(parameters.vector(f"{name}.weight", config.hidden_size), bias, config.norm_eps)

    def _attention(self, index: int, prefix: str) -> EncoderAttention:
        config, names, layer = self.config, self.names, self.config.layers[index]
        size, width = config.hidden_size, config.head_dim
        heads = [own.query for own in head_shares(config, self.share.group.size)]
        own = heads[self.share.group.rank]
        features = range(own.start * width, own.stop * width)
        widths = [len(others) * width for others in heads]
        return EncoderAttention(
            name=f"layers.{index}.attention",
            qkv=self._stacked(prefix, names.qkv, (size,) * 3, config.qkv_bias, features),
            output=self._to_hidden(prefix + names.attention_output, size, config.output_bias, widths),
            num_heads=len(own),
            num_kv_heads=len(own),
            head_dim=width,
            scale=layer.attention_scale,
            cos_sin=self.ropes[layer.rope] if layer.rope else None,
            sliding_window=layer.sliding_window,
            distance_bias=self.distance_bias,
        )

    def _mlp(self, prefix: str) -> MLP:
        config, names = self.config, self.names
        size = config.intermediate_size
        down = self._to_hidden(prefix + names.down, size, config.down_bias, self.share.widths(size))
        sizes = (size,) * (2 if config.gated_mlp else 1)
        inputs = self._stacked(prefix, names.gate_up, sizes, config.mlp_bias, self.share.of(size))
        return MLP(inputs, down, config.activation, config.gated_mlp)

    def _stacked(self, prefix: str, parts: tuple[str, ...], sizes: tuple[int, ...], bias: bool, own: range) -> Linear:
        """Read projections of the hidden state that the checkpoint stores one by one, or fused under one name.

        own: this rank's output features of each
        """
        is_fused = len(parts) < len(sizes)
        pieces = pieces_of_stack(self.share, sizes, [own] * len(sizes), is_fused)
        if parts == self.names.gate_up and self.names.up_first:
            width = sizes[0]
            pieces = [[range(start + own.start, start + own.stop) for start in (width, 0)]]
        out_sizes = (sum(sizes),) if is_fused else sizes
        names = [prefix + part for part in parts]
        return self.parameters.linear(names, out_sizes, self.config.hidden_size, bias, pieces)

    def _to_hidden(self, name: str, in_features: int, bias: bool, in_widths: list[int]) -> Linear | SharedLinear:
        sizes = (self.config.hidden_size, in_features)
        return projection_to_hidden(self.parameters, self.share, name, sizes, bias, in_widths)
