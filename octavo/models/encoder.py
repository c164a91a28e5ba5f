"""The encoder that BERT and its relatives share: a decoder's layers, looking both ways and keeping no keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from octavo.attention.context import ForwardContext
from octavo.layers.linear import Embedding
from octavo.layers.norm import Norm
from octavo.models.decoder import DecoderLayer
from octavo.models.interface import ModelFacts
from octavo.ops.interface import Float, Int
from octavo.types.kv_spec import KVCacheSpec


@dataclass(frozen=True, slots=True)
class Encoder:
    """Embeddings and layers: a `Body`.

    position_embedding: learned positions; a pair's second text has rows of its own, see second_text_offset
    second_text_offset: is added to the positions of a pair's second text; 0: the model does not tell texts apart
    """

    facts: ModelFacts
    embedding: Embedding
    position_embedding: Embedding | None
    second_text_offset: int
    embedding_norm: Norm
    layers: tuple[DecoderLayer, ...]
    final_norm: Norm

    def kv_cache_specs(self, block_size: int, dtype: str) -> Mapping[str, KVCacheSpec]:
        return {}

    def forward(self, token_ids: Int, positions: Int, context: ForwardContext) -> Float:
        ops = context.ops
        x = self.embedding(token_ids, ops)
        if self.position_embedding is not None:
            x = ops.add(x, self.position_embedding(positions, ops))
        x = self.embedding_norm(x, ops)
        residual: Float | None = None
        for layer in self.layers[:-1]:
            x, residual = layer(x, residual, positions, context, None)
        # After the last attention, tokens that nobody asks for have no more to give.
        x, residual = self.layers[-1](x, residual, positions, context, context.output_rows)
        hidden, _ = self.final_norm.add(x, residual, ops)
        return hidden
