"""Builds a decoder from its config, its weight names and a checkpoint's tensors."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octavo.errors import CheckpointError, ConfigError
from octavo.layers.alibi import alibi_slopes
from octavo.layers.attention import Attention, QKNorm
from octavo.layers.context_parallel import DealtAttention
from octavo.layers.encoder_attention import EncoderAttention
from octavo.layers.linear import Embedding, Linear
from octavo.layers.mlp import MLP
from octavo.layers.moe import FeedForward, MoE
from octavo.layers.norm import LayerNorm, NoNorm, Norm, RMSNorm
from octavo.layers.parallel import SharedEmbedding, SharedLinear
from octavo.layers.parameters import Parameters
from octavo.layers.rotary import cos_sin_table
from octavo.loader.weights import WeightSource
from octavo.models.decoder import Decoder, DecoderLayer
from octavo.models.decoder_config import DecoderConfig, ExpertsConfig, LayerConfig, WeightNames
from octavo.models.expert_loading import ExpertLoading
from octavo.models.sharing import (
    HeadShare,
    ModelShare,
    head_shares,
    pieces_of_stack,
    projected_features,
    stage_layers,
)
from octavo.ops.interface import Float, Ops, Weight

logger = logging.getLogger(__name__)


def load_decoder(
    config: DecoderConfig,
    names: WeightNames,
    weights: WeightSource,
    ops: Ops,
    max_model_len: int,
    share: ModelShare | None = None,
) -> Decoder:
    """Read every tensor that the model (or a share of it) needs, and refuse a checkpoint that has others.

    A tensor without a place would mean a computation that the model leaves out, that is silently wrong text.
    """
    if config.learned_positions and max_model_len > config.max_position:
        raise ConfigError(
            f"max_model_len={max_model_len} exceeds the {config.max_position} learned positions of "
            f"{config.architecture}; lower max_model_len"
        )
    root = next((root for root in names.roots if weights.has(f"{root}{names.embedding}.weight")), names.roots[0])
    share = share or ModelShare()
    loading = DecoderLoading(config, names, root, Parameters(weights, ops, names.transposed), share)
    table, lm_head = loading.embedding_and_head()
    own_layers = stage_layers(config, share.num_stages, share.stage, has_logits=len(names.lm_heads) > 0)
    layers = [(index, config.layers[index]) for index in own_layers]
    has_logits = share.is_last and len(names.lm_heads) > 0
    tables = {rope: cos_sin_table(rope, max_model_len) for rope in {layer.rope for _, layer in layers} if rope}
    decoder = Decoder(
        facts=config.facts,
        embedding=shared_embedding(table, share, config.vocab_size) if share.is_first else None,
        position_embedding=loading.position_embedding() if config.learned_positions and share.is_first else None,
        embedding_norm=loading.norm(f"{root}{names.embedding_norm}")
        if config.embedding_norm and share.is_first
        else NoNorm(),
        layers=tuple(
            loading.layer(index, layer, tables[layer.rope] if layer.rope else None) for index, layer in layers
        ),
        final_norm=loading.norm(f"{root}{names.final_norm}") if share.is_last else None,
        lm_head=loading.head(lm_head) if has_logits else None,
        embedding_scale=config.embedding_scale,
        logits_scale=config.logits_scale,
        logits_softcap=config.logits_softcap,
    )
    all_layers = range(len(config.layers) + config.num_draft_layers)
    elsewhere = [root + names.layer.format(index=index) for index in all_layers if index not in own_layers]
    if not share.is_first:
        elsewhere += [f"{root}{name}." for name in (names.embedding, names.positions, names.embedding_norm)]
    if not share.is_last:
        elsewhere += [f"{name}." for name in (root + names.final_norm, *names.lm_heads)]
    check_unused(weights, names.harmless, config.architecture, elsewhere)
    return decoder


def check_unused(
    weights: WeightSource, harmless: Sequence[str], architecture: str, elsewhere: Sequence[str] = ()
) -> None:
    """Raise CheckpointError for tensors that nobody asked for, but those whose names match a harmless pattern.

    elsewhere: how the names of those begin that other pipeline stages, or nobody here, read
    """
    passed = [*harmless, *(f"^{re.escape(name)}" for name in elsewhere)]
    unused = [name for name in weights.unused() if not any(re.search(pattern, name) for pattern in passed)]
    if unused:
        listed = ", ".join(unused[:5]) + (f" and {len(unused) - 5} more" if len(unused) > 5 else "")
        raise CheckpointError(
            f"{weights.where}: the checkpoint holds tensors that {architecture} with this config does not use: "
            f"{listed}; the config and the weights are not of the same model"
        )


@dataclass(frozen=True, slots=True)
class DecoderLoading:
    """One decoder while it is read.

    qkv_columns: the last of the features that query, key and value are projected from, where others come before the
        hidden state's
    """

    config: DecoderConfig
    names: WeightNames
    root: str
    parameters: Parameters
    share: ModelShare = ModelShare()
    qkv_columns: range | None = None

    def embedding_and_head(self) -> tuple[Weight | None, Weight | None]:
        """Return the embedding table and the output projection, where the stage has them: one Weight when tied.

        A checkpoint that is tied by its config and still has an lm_head of other values is not tied: Transformers
        decides the same way.
        """
        config, source = self.config, self.parameters.source
        size = (config.vocab_size, config.hidden_size)
        name = f"{self.root}{self.names.embedding}"
        if not config.tie_word_embeddings:
            table = self._table(name) if self.share.is_first else None  # first: without it the names are all others
            head = next((head for head in self.names.lm_heads if source.has(f"{head}.weight")), None)
            if head is None:
                raise CheckpointError(
                    f"{source.where}: the config says tie_word_embeddings=false, but the checkpoint has no "
                    f"{self.names.lm_heads[0]}.weight; set tie_word_embeddings to true if the model is tied"
                )
            return table, self._table(head) if self.share.is_last else None
        if not (self.share.is_first or (self.share.is_last and self.names.lm_heads)):
            return None, None

        # Only a file that lists an lm_head has a spare one; a source of dummy weights has any name but lists none.
        listed = source.unused()
        head = next((head for head in self.names.lm_heads if f"{head}.weight" in listed), None)
        if head is None or f"{name}.weight" not in listed:
            table = self._table(head or name)
            return table, table
        table, head_table = self._table(name), self._table(head)
        matrix, head_matrix = (source.get(f"{tensor}.weight", size).float32() for tensor in (name, head))
        if np.array_equal(matrix, head_matrix):
            return table, table
        logger.warning(
            "The config says tie_word_embeddings=true, but the checkpoint's %s differs from %s: using both", head, name
        )
        return table, head_table

    def _table(self, name: str) -> Weight:
        """Pack a rank's tokens of a table [V, H]."""
        vocab_size, group = self.config.vocab_size, self.share.group
        tokens = self.share.of(vocab_size) if group.size > 1 else None
        return self.parameters.table(name, vocab_size, self.config.hidden_size, tokens)

    def head(self, weight: Weight | None) -> Linear | SharedLinear:
        assert weight is not None, "the last stage gives the logits"
        group, widths = self.share.group, self.share.widths(self.config.vocab_size)
        return Linear(weight) if group.size == 1 else SharedLinear(Linear(weight), None, widths, group)

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
            mlp=self._feed_forward(prefix, layer.experts),
            post_mlp_norm=self.norm(prefix + names.post_mlp_norm) if config.post_norm else NoNorm(),
            residual_scale=config.residual_scale,
        )

    def norm(self, name: str) -> Norm:
        config = self.config
        if config.norm == "layer":
            bias = self.parameters.vector(f"{name}.bias", config.hidden_size) if config.norm_bias else None
            return LayerNorm(self.parameters.vector(f"{name}.weight", config.hidden_size), bias, config.norm_eps)
        return self._rms_norm(name, config.hidden_size)

    def _rms_norm(self, name: str, size: int) -> RMSNorm:
        weight = self.parameters.vector(f"{name}.weight", size)
        if self.config.norm == "rms_plus_one":
            weight = weight + np.float32(1)
        return RMSNorm(weight, self.config.norm_eps)

    def _attention(
        self, name: str, prefix: str, layer: LayerConfig, cos_sin: Float | None
    ) -> Attention | EncoderAttention:
        config, names = self.config, self.names
        all_heads = head_shares(config, self.share.group.size)
        heads = all_heads[self.share.group.rank]
        query_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        widths = [len(share.query) * config.head_dim for share in all_heads]
        attention = Attention(
            name=name,
            qkv=self._stacked(
                prefix, names.qkv, (query_size, kv_size, kv_size), config.qkv_bias, projected_features(config, heads)
            ),
            output=self._to_hidden(prefix + names.attention_output, query_size, config.output_bias, widths),
            num_heads=len(heads.query),
            num_kv_heads=len(heads.kv),
            heads_of_kv=heads.heads_of_kv(config.num_heads // config.num_kv_heads),
            head_dim=config.head_dim,
            scale=layer.attention_scale,
            cos_sin=cos_sin,
            qk_norm=self._qk_norm(prefix, heads),
            sliding_window=layer.sliding_window,
            softcap=config.attention_softcap,
            alibi_slopes=self._alibi_slopes(heads.query),
            sinks=self._sinks(prefix, heads.query),
            dealt=self._dealt_attention(all_heads),
        )
        return EncoderAttention.like(attention) if config.bidirectional else attention

    def _dealt_attention(self, all_heads: Sequence[HeadShare]) -> DealtAttention | None:
        rank, context = self.share.group.rank, self.share.context
        if context.size == 1:
            return None
        sharers = all_heads[rank - context.rank : rank - context.rank + context.size]
        return DealtAttention(context, [len(own.query) for own in sharers], self.share.dealt)

    def _alibi_slopes(self, heads: range) -> Float | None:
        if self.config.alibi_max_bias is None:
            return None
        return alibi_slopes(self.config.num_heads, self.config.alibi_max_bias)[heads.start : heads.stop]

    def _sinks(self, prefix: str, heads: range) -> Float | None:
        if not self.config.has_sinks:
            return None
        return self.parameters.vector(prefix + self.names.sinks, self.config.num_heads)[heads.start : heads.stop]

    def _qk_norm(self, prefix: str, heads: HeadShare) -> QKNorm | None:
        config, names = self.config, self.names
        if config.qk_norm is None:
            return None
        num_query, num_kv = (config.num_heads, config.num_kv_heads) if config.qk_norm == "all_heads" else (1, 1)
        return QKNorm(
            query=self._rms_norm(prefix + names.q_norm, num_query * config.head_dim),
            key=self._rms_norm(prefix + names.k_norm, num_kv * config.head_dim),
            over=config.qk_norm,
            query_heads=heads.query,
            key_heads=heads.kv,
        )

    def _feed_forward(self, prefix: str, experts: ExpertsConfig | None) -> FeedForward:
        if experts is None:
            return self._mlp(prefix, self.names.gate_up, self.names.down, self.config.intermediate_size)
        names = self.names.experts
        loading = ExpertLoading(self.config, self.parameters, self.share, names.interleaves)
        gate_up = self._gate_up(prefix, names.gate_up, names.split_gate_up)
        routed = loading.experts(
            experts, prefix + names.router, prefix + names.routing_bias, gate_up, prefix + names.down
        )
        if not experts.shared_size:
            return routed
        gate_up = self._gate_up(prefix, names.shared_gate_up, names.split_shared_gate_up)
        down = prefix + names.shared_down
        if not experts.has_shared_gate:
            return MoE(routed, self._mlp("", gate_up, down, experts.shared_size))
        return MoE(routed, loading.gated_expert(prefix + names.shared_gate, gate_up, down, experts.shared_size))

    def _gate_up(self, prefix: str, names: tuple[str, ...], split: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names that the checkpoint has."""
        is_split = bool(split) and self.parameters.source.has(f"{prefix}{split[0]}.weight")
        return tuple(prefix + name for name in (split if is_split else names))

    def _mlp(self, prefix: str, gate_up: tuple[str, ...], down_name: str, size: int) -> MLP:
        config, own = self.config, self.share.of(size)
        down = self._to_hidden(prefix + down_name, size, config.mlp_bias, self.share.widths(size))
        number = 2 if config.gated_mlp else 1
        inputs = self._stacked(prefix, gate_up, (size,) * number, config.mlp_bias, [own] * number)
        return MLP(inputs, down, config.activation, config.gated_mlp)

    def _stacked(
        self, prefix: str, parts: tuple[str, ...], sizes: tuple[int, ...], bias: bool, shares: Sequence[range]
    ) -> Linear:
        """Read projections of the hidden state that the checkpoint stores one by one, or fused under one name.

        shares: this rank's output features of each
        """
        names = [prefix + part for part in parts]
        is_fused = len(parts) < len(sizes)
        out_sizes = (sum(sizes),) if is_fused else sizes
        if parts == self.names.qkv and self.names.qkv_by_head:
            pieces: list[list[range]] | None = [self._by_head(shares)]
        else:
            pieces = pieces_of_stack(self.share, sizes, shares, is_fused)
        columns = self.qkv_columns if parts == self.names.qkv else None
        in_features = self.config.hidden_size if columns is None else columns.stop
        return self.parameters.linear(names, out_sizes, in_features, bias, pieces, columns)

    def _by_head(self, shares: Sequence[range]) -> list[range]:
        """Return where a projection that is fused head by head has these parts, in the order of parts."""
        width, count = self.config.head_dim, len(shares)
        starts = (
            (head * count + part) * width
            for part, own in enumerate(shares)
            for head in range(own.start // width, own.stop // width)
        )
        return [range(start, start + width) for start in starts]

    def _to_hidden(self, name: str, in_features: int, bias: bool, in_widths: Sequence[int]) -> Linear | SharedLinear:
        return projection_to_hidden(
            self.parameters, self.share, name, (self.config.hidden_size, in_features), bias, in_widths
        )


# -- parts of a rank, in decoders and encoders alike -------------------------------------------------------------------


def shared_embedding(table: Weight | None, share: ModelShare, num_ids: int) -> Embedding | SharedEmbedding:
    """Return the embedding of num_ids tokens of which `table` holds this rank's."""
    assert table is not None, "the first stage has the embeddings"
    if share.group.size == 1:
        return Embedding(table)
    return SharedEmbedding(table, share.of(num_ids).start, num_ids, share.group)


def projection_to_hidden(
    parameters: Parameters, share: ModelShare, name: str, sizes: tuple[int, int], bias: bool, in_widths: Sequence[int]
) -> Linear | SharedLinear:
    """Read a projection to the hidden state, or this rank's share of it.

    sizes: features of the hidden state and of the input; in_widths: how many of the latter each rank has computed
    """
    size, in_features = sizes
    if share.group.size == 1:
        return parameters.linear([name], [size], in_features, bias)
    linear = parameters.linear([name], [size], in_features, bias, [[share.of(size)]])
    return SharedLinear(linear, in_widths, share.widths(size), share.group)
