"""What tells one decoder-only architecture from another: flags, sizes and weight names. The defaults are Llama's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo.layers.rotary import Rope
from octavo.models.interface import ModelFacts
from octavo.ops.interface import Activation, Routing


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """A mixture of experts.

    intermediate_size: of each expert; shared_size: of one more that all tokens go to, 0 where there is none
    routing: but for its bias, which has_routing_bias says to be in the checkpoint
    has_shared_gate: the shared expert's output is multiplied by the sigmoid of a projection
    has_biases: router and experts have them
    """

    count: int
    intermediate_size: int
    routing: Routing
    has_routing_bias: bool = False
    shared_size: int = 0
    has_shared_gate: bool = False
    has_biases: bool = False

    @property
    def widths(self) -> dict[int, int]:
        """The inner features of experts -> how many have so many."""
        widths = {self.intermediate_size: self.count}
        if self.shared_size:
            widths[self.shared_size] = widths.get(self.shared_size, 0) + 1
        return widths


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """What may differ from layer to layer.

    rope: None for a layer that does not rotate (NoPE, learned positions); experts: in place of the MLP
    """

    rope: Rope | None
    attention_scale: float
    sliding_window: int | None = None
    experts: ExpertsConfig | None = None


@dataclass(frozen=True)
class DecoderConfig:
    """One decoder-only model.

    max_position: longest sequence, RoPE scaling included
    norm: "rms_plus_one" is Gemma's RMS norm, which multiplies by 1 + weight
    norm_bias: layer norms have biases
    qk_norm: RMS norm of queries and keys, by "head" or over "all_heads" of a token
    pre_norm, post_norm: norm before, and after, each block's attention and MLP
    learned_positions: position embeddings are a table of max_position rows, added to the token embeddings
    embedding_norm: a norm follows the embeddings
    alibi_max_bias: see `octavo.layers.alibi`; None where the model has no ALiBi
    embedding_scale, residual_scale, logits_scale: factors on embeddings, on each block's output, on logits
    logits_softcap, attention_softcap: c in c * tanh(x / c)
    has_sinks: every head has a score that takes part in the softmax without a value
    num_draft_layers: how many layers a checkpoint has behind these that only guess further tokens, and are not read
    bidirectional: tokens see later ones too; such a model makes embeddings, and cannot generate
    """

    architecture: str
    layers: tuple[LayerConfig, ...]
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    max_position: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    activation: Activation
    tie_word_embeddings: bool
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    gated_mlp: bool = True
    norm: Literal["rms", "rms_plus_one", "layer"] = "rms"
    norm_bias: bool = True
    qk_norm: Literal["head", "all_heads"] | None = None
    pre_norm: bool = True
    post_norm: bool = False
    learned_positions: bool = False
    embedding_norm: bool = False
    alibi_max_bias: float | None = None
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logits_scale: float = 1.0
    logits_softcap: float | None = None
    attention_softcap: float | None = None
    has_sinks: bool = False
    num_draft_layers: int = 0
    bidirectional: bool = False

    @property
    def mlp_widths(self) -> list[dict[int, int]]:
        """Of each layer, how many MLPs or experts have how many inner features: features -> number."""
        dense = {self.intermediate_size: 1}
        return [dense if layer.experts is None else layer.experts.widths for layer in self.layers]

    @property
    def facts(self) -> ModelFacts:
        return ModelFacts(self.architecture, len(self.layers), self.hidden_size, self.vocab_size, self.max_position)


@dataclass(frozen=True)
class ExpertNames:
    """The same for a layer's mixture of experts.

    gate_up, down: see `Parameters.experts` for "{expert}"; routing_bias: its full name
    interleaves: gate_up is one name, of a tensor with a row of one and of the other in turn
    split_gate_up, split_shared_gate_up: the names in GGUF files, where conversions split what is one tensor else
    """

    router: str = "mlp.gate"
    routing_bias: str = "mlp.gate.e_score_correction_bias"
    gate_up: tuple[str, ...] = ("mlp.experts.{expert}.gate_proj", "mlp.experts.{expert}.up_proj")
    down: str = "mlp.experts.{expert}.down_proj"
    shared_gate_up: tuple[str, ...] = ("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj")
    shared_down: str = "mlp.shared_experts.down_proj"
    shared_gate: str = "mlp.shared_expert_gate"
    interleaves: bool = False
    split_gate_up: tuple[str, ...] = ()
    split_shared_gate_up: tuple[str, ...] = ()


@dataclass(frozen=True)
class WeightNames:
    """Where a checkpoint keeps its tensors, without ".weight" and ".bias".

    roots: what stands before all names but lm_head's; the first under which the checkpoint has an embedding counts
    qkv, gate_up: one name when the checkpoint stores the projections fused, else one for each part
    qkv_by_head: the fused projection holds a head's query, key and value, then the next head's
    mlp_norm: the norm before the MLP, whatever the checkpoint calls it
    sinks: a full name
    transposed: projections are stored [in, out]
    harmless: regular expressions for tensors that a checkpoint may have and the model does not need
    """

    roots: tuple[str, ...] = ("model.",)
    embedding: str = "embed_tokens"
    positions: str = "wpe"
    embedding_norm: str = "embed_norm"
    final_norm: str = "norm"
    lm_heads: tuple[str, ...] = ("lm_head",)
    layer: str = "layers.{index}."
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    qkv_by_head: bool = False
    attention_output: str = "self_attn.o_proj"
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    sinks: str = "self_attn.sinks"
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    input_norm: str = "input_layernorm"
    post_attention_norm: str = "post_attention_layernorm"
    mlp_norm: str = "post_attention_layernorm"
    post_mlp_norm: str = "post_feedforward_layernorm"
    experts: ExpertNames = ExpertNames()
    transposed: bool = False
    harmless: tuple[str, ...] = (r"\.rotary_emb\.inv_freq$",)
