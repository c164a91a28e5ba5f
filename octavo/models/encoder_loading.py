"""Builds an encoder from its config, its weight names and a checkpoint's tensors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo.errors import ConfigError
from octavo.layers.encoder_attention import EncoderAttention
from octavo.layers.linear import Embedding, Linear
from octavo.layers.mlp import MLP
from octavo.layers.norm import LayerNorm, NoNorm, Norm, PostNorm
from octavo.layers.parameters import Parameters
from octavo.layers.rotary import Rope, cos_sin_table
from octavo.models.decoder import DecoderLayer
from octavo.models.encoder import Encoder
from octavo.models.encoder_config import EncoderConfig, EncoderNames
from octavo.ops.interface import Float


def load_encoder(
    config: EncoderConfig, names: EncoderNames, root: str, parameters: Parameters, max_model_len: int
) -> Encoder:
    """Read the tensors of an encoder; root: what stands before their names."""
    if config.learned_positions and max_model_len > config.max_position:
        raise ConfigError(
            f"max_model_len={max_model_len} exceeds the {config.max_position} learned positions of "
            f"{config.architecture}; lower max_model_len"
        )
    ropes = {layer.rope: cos_sin_table(layer.rope, max_model_len) for layer in config.layers if layer.rope}
    return _Loading(config, names, root, parameters, ropes).encoder()


@dataclass(frozen=True, slots=True)
class _Loading:
    """One encoder while it is read."""

    config: EncoderConfig
    names: EncoderNames
    root: str
    parameters: Parameters
    ropes: dict[Rope, Float]

    def encoder(self) -> Encoder:
        config, names = self.config, self.names
        types = self._rows(names.token_types, config.num_token_types) if config.num_token_types else None
        positions = None
        if config.learned_positions:
            rows = self._rows(names.positions, config.position_offset + config.max_position)[config.position_offset :]
            # one table for each text of a pair, so that one look-up adds position and type
            tables = [rows] if types is None else [rows + row for row in types]
            positions = Embedding(self.parameters.ops.pack([np.concatenate(tables)]))
        return Encoder(
            facts=config.facts,
            embedding=self._embedding(types if positions is None else None),
            position_embedding=positions,
            second_text_offset=config.max_position if positions is not None and config.num_token_types > 1 else 0,
            embedding_norm=self._norm(self.root + names.embedding_norm),
            layers=tuple(self._layer(index) for index in range(len(config.layers))),
            final_norm=self._norm_after(len(config.layers)),
        )

    def _embedding(self, types: Float | None) -> Embedding:
        """Return the token embeddings, with the first text's type in them where there are no learned positions."""
        config, parameters, name = self.config, self.parameters, self.root + self.names.embedding
        if types is None:
            return Embedding(parameters.table(name, config.vocab_size, config.hidden_size))
        return Embedding(parameters.ops.pack([self._rows(self.names.embedding, config.vocab_size) + types[0]]))

    def _rows(self, name: str, num_rows: int) -> Float:
        tensor = self.parameters.source.get(f"{self.root}{name}.weight", (num_rows, self.config.hidden_size))
        return tensor.float32()

    def _layer(self, index: int) -> DecoderLayer:
        config, names = self.config, self.names
        prefix = self._prefix(index)
        if config.post_norm:
            mlp_norm: Norm = PostNorm(self._norm(prefix + names.attention_norm))
        else:
            mlp_norm = self._norm(prefix + names.mlp_norm)
        return DecoderLayer(
            input_norm=self._norm_after(index) if index else NoNorm(),
            attention=self._attention(index, prefix),
            post_attention_norm=NoNorm(),
            mlp_norm=mlp_norm,
            mlp=self._mlp(prefix),
            post_mlp_norm=NoNorm(),
            residual_scale=1.0,
        )

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
        size = config.hidden_size
        return EncoderAttention(
            name=f"layers.{index}.attention",
            qkv=self._stacked(prefix, names.qkv, (size, size, size), config.qkv_bias),
            output=self._stacked(prefix, (names.attention_output,), (size,), config.output_bias),
            num_heads=config.num_heads,
            num_kv_heads=config.num_heads,
            head_dim=size // config.num_heads,
            scale=layer.attention_scale,
            cos_sin=self.ropes[layer.rope] if layer.rope else None,
            sliding_window=layer.sliding_window,
        )

    def _mlp(self, prefix: str) -> MLP:
        config, names = self.config, self.names
        size = config.intermediate_size
        down = self.parameters.linear([prefix + names.down], [config.hidden_size], size, config.mlp_bias)
        sizes = (size,) * (2 if config.gated_mlp else 1)
        inputs = self._stacked(prefix, names.gate_up, sizes, config.mlp_bias)
        return MLP(inputs, down, config.activation, config.gated_mlp)

    def _stacked(self, prefix: str, parts: tuple[str, ...], sizes: tuple[int, ...], bias: bool) -> Linear:
        """Read projections of the hidden state that the checkpoint stores one by one, or fused under one name."""
        out_sizes = sizes if len(parts) == len(sizes) else (sum(sizes),)
        return self.parameters.linear([prefix + part for part in parts], out_sizes, self.config.hidden_size, bias)
