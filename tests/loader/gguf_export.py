"""Tiny random Hugging Face models of every GGUF architecture, and their conversion to GGUF.

Names come from the gguf package's own table, the metadata is written with its writer, and the values change as
llama.cpp's conversion scripts change them. So a loaded file is compared with an oracle that shares no code with the
loader.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

torch.set_num_threads(1)

NUM_TOKENS = 96
_SIZES: dict[str, Any] = dict(
    vocab_size=NUM_TOKENS,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)

Tensor = NDArray[np.float32]


@dataclass(frozen=True)
class Family:
    """One GGUF architecture: a tiny Transformers config, and what its conversion writes besides the common keys."""

    gguf_name: str
    config: Callable[[], PretrainedConfig]
    permutes: bool = False
    norms_plus_one: bool = False
    transposes: bool = False
    metadata: Callable[[gguf.GGUFWriter, PretrainedConfig], None] = lambda writer, config: None
    extra_tensors: Callable[[PretrainedConfig], Mapping[str, Tensor]] = lambda config: {}


def _make(model_type: str, **values: Any) -> Callable[[], PretrainedConfig]:
    return lambda: AutoConfig.for_model(model_type, **{**_SIZES, **values})


def head_size(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)


def _rope_size(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    writer.add_rope_dimension_count(
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )


def _gemma2(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    head_size(writer, config)
    writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_sliding_window(config.sliding_window)


def _gemma3(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    head_size(writer, config)
    writer.add_sliding_window(config.sliding_window)
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(8.0)


def _phi3(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    writer.add_rope_dimension_count(6)
    writer.add_rope_scaling_orig_ctx_len(64)
    writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(256 / 64) / math.log(64)))
    writer.add_sliding_window(config.sliding_window)


def _phi3_factors(config: PretrainedConfig) -> Mapping[str, Tensor]:
    parameters = config.rope_parameters
    return {
        "rope_factors_short.weight": np.array(parameters["short_factor"], np.float32),
        "rope_factors_long.weight": np.array(parameters["long_factor"], np.float32),
    }


def granite_factors(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    _rope_size(writer, config)
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)


def _llama3_factors(config: PretrainedConfig) -> Mapping[str, Tensor]:
    """Return what Llama 3.1's scaling divides each frequency by: 1 for short waves, the factor for long ones."""
    rope = config.rope_parameters
    length, factor = rope["original_max_position_embeddings"], rope["factor"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    factors = []
    for index in range(config.head_dim // 2):
        waves = length / (2 * math.pi * rope["rope_theta"] ** (2 * index / config.head_dim))
        share = min(max((waves - low) / (high - low), 0.0), 1.0)
        factors.append(1 / ((1 - share) / factor + share))
    return {"rope_freqs.weight": np.array(factors, np.float32)}


def yarn(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(64)


_YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 64}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0, 1.5, 2.0],
    "long_factor": [1.0, 2.0, 4.0],
    "original_max_position_embeddings": 64,
    "partial_rotary_factor": 0.75,
}
_GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
}

FAMILIES: dict[str, Family] = {
    "llama": Family("llama", _make("llama", head_dim=8), permutes=True, metadata=_rope_size),
    "llama-biased": Family("llama", _make("llama", attention_bias=True, mlp_bias=True), permutes=True),
    "llama3": Family(
        "llama",
        _make("llama", head_dim=16, rope_parameters=_LLAMA3),
        permutes=True,
        metadata=head_size,
        extra_tensors=_llama3_factors,
    ),
    "mistral-wide-heads": Family(
        "llama", _make("llama", head_dim=16, tie_word_embeddings=True), permutes=True, metadata=head_size
    ),
    "qwen2": Family("qwen2", _make("qwen2", tie_word_embeddings=True)),
    "qwen2-yarn": Family("qwen2", _make("qwen2", rope_parameters=_YARN), metadata=yarn),
    "qwen3": Family("qwen3", _make("qwen3", head_dim=16), metadata=head_size),
    "gemma2": Family(
        "gemma2", _make("gemma2", head_dim=16, query_pre_attn_scalar=16), norms_plus_one=True, metadata=_gemma2
    ),
    "gemma3": Family(
        "gemma3",
        _make(
            "gemma3_text",
            num_hidden_layers=7,
            head_dim=16,
            query_pre_attn_scalar=16,
            sliding_window=20,
            rope_parameters=_GEMMA3_ROPE,
        ),
        norms_plus_one=True,
        metadata=_gemma3,
    ),
    "phi3": Family(
        "phi3",
        _make(
            "phi3",
            sliding_window=100,
            rope_parameters=_LONGROPE,
            original_max_position_embeddings=64,
        ),
        metadata=_phi3,
        extra_tensors=_phi3_factors,
    ),
    "granite": Family(
        "granite",
        _make(
            "granite", attention_multiplier=0.2, embedding_multiplier=12.0, residual_multiplier=0.25, logits_scaling=8.0
        ),
        permutes=True,
        metadata=granite_factors,
    ),
    "olmo2": Family("olmo2", _make("olmo2")),
    "smollm3": Family("smollm3", _make("smollm3", num_hidden_layers=5), permutes=True, metadata=_rope_size),
    "starcoder2": Family("starcoder2", _make("starcoder2", sliding_window=None, use_bias=True)),
    "gpt2": Family(
        "gpt2",
        lambda: AutoConfig.for_model(
            "gpt2", vocab_size=NUM_TOKENS, n_embd=32, n_inner=64, n_layer=2, n_head=4, n_positions=64,
            bos_token_id=1, eos_token_id=2,
        ),
        transposes=True,
    ),
}  # fmt: skip


def random_model(config: PretrainedConfig) -> PreTrainedModel:
    """Return a model in which no two tensors, and no two rows, are alike."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter))
    model.tie_weights()
    return model


def stored_tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return what a safetensors folder of the model holds: a tied lm_head is left out."""
    tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    return tensors


def write_gguf(
    model: PreTrainedModel,
    family: Family,
    path: Path,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    **writer_options: Any,
) -> None:
    """Write the model; matrices whose rows fill blocks of `kind` in that type."""
    config = model.config
    writer = gguf.GGUFWriter(path, family.gguf_name, **writer_options)
    common_metadata(writer, config)
    family.metadata(writer, config)
    for name, values in _converted(stored_tensors(model), config, family).items():
        if (
            kind == gguf.GGMLQuantizationType.F32
            or values.ndim != 2
            or values.shape[1] % gguf.GGML_QUANT_SIZES[kind][0]
        ):
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    for name, values in family.extra_tensors(config).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def common_metadata(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(getattr(config, "intermediate_size", None) or config.n_inner)
    writer.add_head_count(config.num_attention_heads)
    if hasattr(config, "num_key_value_heads"):
        writer.add_head_count_kv(config.num_key_value_heads)
    if hasattr(config, "rms_norm_eps"):
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    else:
        writer.add_layer_norm_eps(getattr(config, "norm_epsilon", None) or config.layer_norm_epsilon)
    rope = getattr(config, "rope_parameters", None)
    if rope:
        writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"token{index}" for index in range(config.vocab_size)])
    writer.add_token_types([gguf.TokenType.NORMAL] * config.vocab_size)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def _converted(tensors: Mapping[str, Tensor], config: PretrainedConfig, family: Family) -> dict[str, Tensor]:
    arch = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == family.gguf_name)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    converted: dict[str, Tensor] = {}
    for name, values in tensors.items():
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert gguf_name is not None, name
        if family.permutes and ".q_proj." in name:
            values = permuted(values, config.num_attention_heads)
        if family.permutes and ".k_proj." in name:
            values = permuted(values, config.num_key_value_heads)
        if family.norms_plus_one and name.endswith("norm.weight"):
            values = values + 1
        if family.transposes and name.endswith(
            ("c_attn.weight", "c_proj.weight", "c_fc.weight")  # Conv1D
        ):
            values = np.ascontiguousarray(values.T)
        converted[gguf_name] = values
    return converted


def permuted(values: Tensor, num_heads: int) -> Tensor:
    """Interleave the two rotary halves of each head, as llama.cpp's convert scripts do for the llama family."""
    half = values.shape[0] // num_heads // 2
    rows = [head * 2 * half + part * half + i for head in range(num_heads) for i in range(half) for part in range(2)]
    return values[rows]
