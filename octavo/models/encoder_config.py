"""What tells one encoder from another: flags, sizes and weight names. The defaults are BERT's."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.models.decoder_config import LayerConfig
from octavo.models.interface import ModelFacts
from octavo.ops.interface import Activation


@dataclass(frozen=True)
class EncoderConfig:
    """One encoder.

    learned_positions: position embeddings are a table, added to the token embeddings
    position_offset: rows of that table before the first position (RoBERTa)
    num_token_types: rows of the table that tells a pair's texts apart; 0: there is none
    distance_buckets: rows of the table of what distances add to scores, by head (MPNet); 0: there is none
    post_norm: norms follow the sums; else they precede attention and MLP, but for the first attention, with one more at
        the end (ModernBERT)
    """

    architecture: str
    layers: tuple[LayerConfig, ...]
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    max_position: int
    num_heads: int
    norm_eps: float
    activation: Activation
    learned_positions: bool = True
    position_offset: int = 0
    num_token_types: int = 0
    distance_buckets: int = 0
    qkv_bias: bool = True
    output_bias: bool = True
    mlp_bias: bool = True
    down_bias: bool = True
    norm_bias: bool = True
    gated_mlp: bool = False
    post_norm: bool = True

    @property
    def num_kv_heads(self) -> int:
        return self.num_heads

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def mlp_widths(self) -> list[dict[int, int]]:
        return [{self.intermediate_size: 1}] * len(self.layers)

    @property
    def second_text_offset(self) -> int:
        """What is added to the positions of a pair's second text, which has rows of its own; 0: texts are alike."""
        return self.max_position if self.learned_positions and self.num_token_types > 1 else 0

    @property
    def facts(self) -> ModelFacts:
        return ModelFacts(self.architecture, len(self.layers), self.hidden_size, self.vocab_size, self.max_position)


@dataclass(frozen=True)
class EncoderNames:
    """Where a checkpoint keeps its tensors, without ".weight" and ".bias"; see `WeightNames`.

    attention_norm, mlp_norm: after the sum where the model's norms follow, else before attention and MLP
    final_norm: only where the norms precede
    up_first: gate_up is one tensor, and has the gate behind what it multiplies
    """

    roots: tuple[str, ...]
    embedding: str = "embeddings.word_embeddings"
    positions: str = "embeddings.position_embeddings"
    token_types: str = "embeddings.token_type_embeddings"
    distances: str = "encoder.relative_attention_bias"
    embedding_norm: str = "embeddings.LayerNorm"
    layer: str = "encoder.layer.{index}."
    qkv: tuple[str, ...] = ("attention.self.query", "attention.self.key", "attention.self.value")
    attention_output: str = "attention.output.dense"
    attention_norm: str = "attention.output.LayerNorm"
    gate_up: tuple[str, ...] = ("intermediate.dense",)
    down: str = "output.dense"
    mlp_norm: str = "output.LayerNorm"
    final_norm: str = ""
    up_first: bool = False
    harmless: tuple[str, ...] = (
        r"(^|\.)embeddings\.(position|token_type)_ids$",
        r"^(\w+\.)?pooler\.",  # not what makes embeddings
        r"^(cls|lm_head|vocab_\w+)\.",  # pre-training
    )
