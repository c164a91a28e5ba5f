"""GGUF tensor names <-> Hugging Face names, and what the conversion to GGUF changed in the values.

Facts from llama.cpp's gguf-py (tensor_mapping.py) and its conversion scripts: `attn_q` and `attn_k` rows are reordered
for the llama family (LlamaModel.permute), Gemma's norm weights are stored with 1 added, GPT-2's Conv1D matrices are
transposed. Knows names only; reads no file.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field


class Change(enum.Enum):
    """What has to be undone to get back the Hugging Face values."""

    NONE = enum.auto()
    QUERY_ROWS = enum.auto()  # rows of each head interleaved for rotary pairs (2i, 2i+1)
    KEY_ROWS = enum.auto()
    TRANSPOSED = enum.auto()
    NORM_PLUS_ONE = enum.auto()


@dataclass(frozen=True)
class HFName:
    """The Hugging Face name of a GGUF tensor, and what the conversion did to it."""

    name: str
    change: Change = Change.NONE


@dataclass(frozen=True)
class _Layout:
    """One family's names without `.weight` or `.bias`: GGUF -> Hugging Face."""

    whole: Mapping[str, str]  # outside the layers
    layer: Mapping[str, str]  # inside a layer
    layer_prefix: str = "model.layers."
    changes: Mapping[str, Change] = field(default_factory=dict)  # GGUF layer name -> change of its weight
    change_bias: bool = False  # whether `changes` holds for `.bias` too
    norm_plus_one: bool = False


_DECODER_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_ATTENTION = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
_GATED_MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_PRE_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_POST_NORMS = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
_ENCODER_WHOLE = {
    "token_embd": "embeddings.word_embeddings",
    "position_embd": "embeddings.position_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
}
_ROTARY_ROWS = {"attn_q": Change.QUERY_ROWS, "attn_k": Change.KEY_ROWS}

# of all experts in one tensor
_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
_MIXTRAL_EXPERTS = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.w1",
    "ffn_up_exps": "block_sparse_moe.experts.w3",
    "ffn_down_exps": "block_sparse_moe.experts.w2",
}
_GRANITE_EXPERTS = {
    "ffn_gate_inp": "block_sparse_moe.router.layer",
    "ffn_gate_exps": "block_sparse_moe.gate_linear",
    "ffn_up_exps": "block_sparse_moe.up_linear",
    "ffn_down_exps": "block_sparse_moe.output_linear",
    "ffn_gate_shexp": "shared_mlp.gate_linear",
    "ffn_up_shexp": "shared_mlp.up_linear",
    "ffn_down_shexp": "shared_mlp.output_linear",
}
_SHARED_EXPERT = {"ffn_gate_shexp": "gate_proj", "ffn_up_shexp": "up_proj", "ffn_down_shexp": "down_proj"}
_QWEN2_SHARED = {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    **{stem: f"mlp.shared_expert.{name}" for stem, name in _SHARED_EXPERT.items()},
}
_DEEPSEEK_SHARED = {
    "exp_probs_b": "mlp.gate.e_score_correction_bias",
    **{stem: f"mlp.shared_experts.{name}" for stem, name in _SHARED_EXPERT.items()},
}

_PLAIN = _Layout(_DECODER_WHOLE, {**_ATTENTION, **_GATED_MLP, **_PRE_NORMS})
_LLAMA = _Layout(_DECODER_WHOLE, {**_PLAIN.layer, **_MIXTRAL_EXPERTS}, changes=_ROTARY_ROWS, change_bias=True)
_MOE = _Layout(_DECODER_WHOLE, {**_PLAIN.layer, **_EXPERTS})
_GEMMA = _Layout(
    _DECODER_WHOLE,
    {
        **_ATTENTION,
        **_GATED_MLP,
        **_POST_NORMS,
        "attn_norm": "input_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
    },
    norm_plus_one=True,
)

_LAYOUTS: dict[str, _Layout] = {
    "llama": _LLAMA,
    "granite": _LLAMA,
    "smollm3": _LLAMA,
    "qwen2": _PLAIN,
    "qwen3": _PLAIN,
    "qwen2moe": _Layout(_DECODER_WHOLE, {**_MOE.layer, **_QWEN2_SHARED}),
    "qwen3moe": _MOE,
    "olmoe": _MOE,
    "granitemoe": _Layout(_DECODER_WHOLE, {**_PLAIN.layer, **_GRANITE_EXPERTS}, changes=_ROTARY_ROWS, change_bias=True),
    "gpt-oss": _Layout(
        _DECODER_WHOLE,
        {
            **_ATTENTION,
            **_EXPERTS,
            "attn_norm": "input_layernorm",
            "attn_sinks": "self_attn.sinks",
            "ffn_gate_inp": "mlp.router",
            "post_attention_norm": "post_attention_layernorm",
        },
    ),
    "dots1": _Layout(_DECODER_WHOLE, {**_MOE.layer, **_DEEPSEEK_SHARED}),
    "glm4moe": _Layout(
        _DECODER_WHOLE, {**_MOE.layer, **_DEEPSEEK_SHARED, "post_attention_norm": "post_attention_layernorm"}
    ),
    "gemma2": _GEMMA,
    "gemma3": _GEMMA,
    "olmo2": _Layout(_DECODER_WHOLE, {**_ATTENTION, **_GATED_MLP, **_POST_NORMS}),
    "phi3": _Layout(
        _DECODER_WHOLE,
        {
            **_PRE_NORMS,
            "attn_qkv": "self_attn.qkv_proj",
            "attn_output": "self_attn.o_proj",
            "ffn_up": "mlp.gate_up_proj",
            "ffn_down": "mlp.down_proj",
        },
    ),
    "starcoder2": _Layout(_DECODER_WHOLE, {**_ATTENTION, **_PRE_NORMS, "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}),
    "gpt2": _Layout(
        {
            "token_embd": "transformer.wte",
            "position_embd": "transformer.wpe",
            "output_norm": "transformer.ln_f",
            "output": "lm_head",
        },
        {
            "attn_norm": "ln_1",
            "attn_qkv": "attn.c_attn",
            "attn_output": "attn.c_proj",
            "ffn_norm": "ln_2",
            "ffn_up": "mlp.c_fc",
            "ffn_down": "mlp.c_proj",
        },
        layer_prefix="transformer.h.",
        changes=dict.fromkeys(("attn_qkv", "attn_output", "ffn_up", "ffn_down"), Change.TRANSPOSED),
    ),
    "bert": _Layout(
        {**_ENCODER_WHOLE, "cls": "classifier.dense", "cls.output": "classifier.out_proj"},
        {
            "attn_q": "attention.self.query",
            "attn_k": "attention.self.key",
            "attn_v": "attention.self.value",
            "attn_output": "attention.output.dense",
            "attn_output_norm": "attention.output.LayerNorm",
            "ffn_up": "intermediate.dense",
            "ffn_down": "output.dense",
            "layer_output_norm": "output.LayerNorm",
        },
        layer_prefix="encoder.layer.",
    ),
    "nomic-bert": _Layout(
        {**_ENCODER_WHOLE, "token_embd_norm": "emb_ln"},
        {
            "attn_qkv": "attn.Wqkv",
            "attn_output": "attn.out_proj",
            "attn_output_norm": "norm1",
            "ffn_gate": "mlp.fc12",
            "ffn_up": "mlp.fc11",
            "ffn_down": "mlp.fc2",
            "layer_output_norm": "norm2",
        },
        layer_prefix="encoder.layers.",
    ),
}

_WITHOUT_SUFFIX = ("exp_probs_b", "attn_sinks")  # tensors that have none in the Hugging Face convention
_TENSOR_NAME = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<stem>[a-z0-9_]+(?:\.output)?)\.(?P<suffix>weight|bias)")


def hf_name(architecture: str, gguf_name: str) -> HFName | None:
    """Return the Hugging Face name of a GGUF tensor, or None when the architecture has no such tensor."""
    layout = _LAYOUTS[architecture]
    match = _TENSOR_NAME.fullmatch(gguf_name)
    if match is None:
        return None
    layer, stem, suffix = match["layer"], match["stem"], match["suffix"]
    if layer is None:
        target = layout.whole.get(stem)
        prefix = ""
    else:
        target = layout.layer.get(stem)
        prefix = f"{layout.layer_prefix}{int(layer)}."
    if target is None:
        return None
    if stem in _WITHOUT_SUFFIX:
        return HFName(prefix + target)
    return HFName(f"{prefix}{target}.{suffix}", _change(layout, stem, suffix))


def _change(layout: _Layout, stem: str, suffix: str) -> Change:
    if layout.norm_plus_one and stem.endswith("norm") and suffix == "weight":
        return Change.NORM_PLUS_ONE
    if suffix == "bias" and not layout.change_bias:
        return Change.NONE
    return layout.changes.get(stem, Change.NONE)
