"""The transformer that look-alike models share; what a model lacks is absent from its layers.

An encoder (BERT and its relatives) has layers whose attention looks both ways and keeps no keys, and no lm_head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from octavo.attention.context import ForwardContext
from octavo.layers.adapted import AdaptedEmbedding
from octavo.layers.attention import Attention
from octavo.layers.encoder_attention import EncoderAttention
from octavo.layers.linear import Embedding
from octavo.layers.moe import FeedForward
from octavo.layers.norm import Norm
from octavo.layers.parallel import AnyLinear, SharedEmbedding
from octavo.models.interface import ModelFacts
from octavo.ops.interface import Float, Int, Ops
from octavo.types.kv_spec import KVCacheSpec


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Attention and MLP, each with its norms around it; norms that a model does not have are `NoNorm`."""

    input_norm: Norm
    attention: Attention | EncoderAttention
    post_attention_norm: Norm
    mlp_norm: Norm
    mlp: FeedForward
    post_mlp_norm: Norm
    residual_scale: float

    def __call__(
        self, x: Float, residual: Float | None, positions: Int, context: ForwardContext, output_rows: Int | None
    ) -> tuple[Float, Float]:
        """Return (this layer's MLP output, the residual stream it is still to be added to), both [T, H].

        x, residual: the same of the layer before; in the first layer x is the embeddings and residual None.
        output_rows: the rows to return, [R, H]; None: all
        """
        ops = context.ops
        if residual is None:
            x, residual = self.input_norm(x, ops), x
        else:
            x, residual = self.input_norm.add(x, residual, ops)
        x = self.attention(x, positions, context)
        return self.after_attention(x, residual, ops, output_rows)

    def after_attention(self, x: Float, residual: Float, ops: Ops, output_rows: Int | None) -> tuple[Float, Float]:
        """Return what the layer does, from the output of its attention and the residual stream, both [T, H]."""
        if output_rows is not None:
            x, residual = ops.take_rows(x, output_rows), ops.take_rows(residual, output_rows)
        x = _scaled(self.post_attention_norm(x, ops), self.residual_scale, ops)

        x, residual = self.mlp_norm.add(x, residual, ops)
        x = self.mlp(x, ops)
        x = _scaled(self.post_mlp_norm(x, ops), self.residual_scale, ops)
        return x, residual


@dataclass(frozen=True, slots=True)
class Decoder:
    """Token embedding, layers, final norm and output projection: a `CausalLM`.

    A stage of a pipeline has some of the layers; all but the first have no embeddings, all but the last no final norm
    and no lm_head. embedding_norm: in a later stage, the norm of what comes in
    """

    facts: ModelFacts
    embedding: Embedding | AdaptedEmbedding | SharedEmbedding | None
    position_embedding: Embedding | None
    embedding_norm: Norm
    layers: tuple[DecoderLayer, ...]
    final_norm: Norm | None
    lm_head: AnyLinear | None
    embedding_scale: float
    logits_scale: float
    logits_softcap: float | None

    def kv_cache_specs(self, block_size: int, dtype: str) -> Mapping[str, KVCacheSpec]:
        return layer_specs(self.layers, block_size, dtype)

    def forward(self, token_ids: Int, positions: Int, context: ForwardContext) -> Float:
        ops = context.ops
        x = self._enter(token_ids, positions, context)
        residual: Float | None = None
        for index, layer in enumerate(self.layers[:-1]):
            _tap(index, x, residual, context)
            x, residual = layer(x, residual, positions, context, None)
        _tap(len(self.layers) - 1, x, residual, context)
        if self.final_norm is None:
            x, residual = self.layers[-1](x, residual, positions, context, None)
            return ops.add(x, residual)
        # After the last attention, tokens that nobody asks for have no more to give.
        x, residual = self.layers[-1](x, residual, positions, context, context.output_rows)
        hidden, stream = self.final_norm.add(x, residual, ops)
        _tap(len(self.layers), stream, None, context)
        return hidden

    def _enter(self, token_ids: Int, positions: Int, context: ForwardContext) -> Float:
        """Return what the first layer takes, [T, H]: embeddings, or what the stage before has sent."""
        if self.embedding is None:
            assert context.hidden is not None, "a later stage gets its input from the one before"
            return self.embedding_norm(context.hidden, context.ops)
        x = _scaled(self.embedding(token_ids, context.ops), self.embedding_scale, context.ops)
        if self.position_embedding is not None:
            x = context.ops.add(x, self.position_embedding(positions, context.ops))
        return self.embedding_norm(x, context.ops)

    def compute_logits(self, hidden: Float, ops: Ops) -> Float:
        assert self.lm_head is not None, "only the last stage gives logits, and not where they are pooled"
        logits = _scaled(self.lm_head(hidden, ops), self.logits_scale, ops)
        return logits if self.logits_softcap is None else ops.softcap(logits, self.logits_softcap)


def layer_specs(layers: Sequence[DecoderLayer], block_size: int, dtype: str) -> dict[str, KVCacheSpec]:
    """Return what the layers store, by name."""
    attentions = (layer.attention for layer in layers)
    return {each.name: each.kv_cache_spec(block_size, dtype) for each in attentions if isinstance(each, Attention)}


def _tap(layer: int, x: Float, residual: Float | None, context: ForwardContext) -> None:
    if layer in context.taps:
        context.tapped.append(x if residual is None else context.ops.add(x, residual))


def _scaled(x: Float, factor: float, ops: Ops) -> Float:
    return x if factor == 1.0 else ops.scale(x, factor)
