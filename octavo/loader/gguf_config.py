"""GGUF metadata -> the config.json and generation_config.json that the same model has on the Hugging Face hub.

Keys are those of ggml's docs/gguf.md and llama.cpp's gguf-py (constants.py). What a conversion leaves out is filled in
as llama.cpp does when it loads the model. RoPE parameters come out as `rope_theta` and `rope_scaling`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from octavo.errors import UnsupportedError
from octavo.loader.end_of_generation import find_end_of_generation_ids
from octavo.loader.gguf_experts import expert_values, shared_expert_size, sigmoid_expert_values
from octavo.loader.gguf_file import GGUFFile
from octavo.loader.gguf_heads import has_roberta_head, roberta_head
from octavo.loader.gguf_reading import (
    attention_heads,
    head_dim,
    layer_count,
    layer_types,
    number,
    size,
    vocab_size,
)
from octavo.loader.gguf_rope import rope_values
from octavo.loader.hf_config import HFConfig
from octavo.log import get_logger

logger = get_logger(__name__)

ConfigValues = dict[str, Any]

_CONTROL_TOKEN = 3  # of tokenizer.ggml.token_type
_POOLINGS = {1: "MEAN", 2: "CLS", 3: "LAST"}  # llama.cpp's llama_pooling_type; 0: none
_RANK_POOLING = 4
_SAMPLING_KEYS = {
    "general.sampling.temp": ("temperature", float),
    "general.sampling.top_k": ("top_k", int),
    "general.sampling.top_p": ("top_p", float),
    "general.sampling.min_p": ("min_p", float),
    "general.sampling.penalty_repeat": ("repetition_penalty", float),
}


def gguf_config(file: GGUFFile) -> HFConfig:
    """Return the file's model config. Raises UnsupportedError for an architecture that is not known here."""
    name = file.architecture
    architecture = _ARCHITECTURES.get(name)
    if architecture is None:
        raise UnsupportedError(
            f"{file.path} has the architecture {name!r}; supported GGUF architectures: {', '.join(_ARCHITECTURES)}"
        )
    if file.get(f"{name}.expert_count", int) and not architecture.has_experts:
        raise UnsupportedError(f"{file.path} is a mixture-of-experts model, which is not supported for {name!r}")
    values: ConfigValues = {
        "architectures": [architecture.hf_class],
        "model_type": architecture.model_type,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        **_special_token_ids(file),
    }
    values.update(architecture.describe(file))
    return HFConfig(values, f"{file.path} (metadata)")


def gguf_generation_config(file: GGUFFile) -> ConfigValues:
    """Return eos_token_id (a list, the tokenizer's own first), bos_token_id and the sampling defaults, where known."""
    values: ConfigValues = {}
    eos_token_ids = _eos_token_ids(file)
    if eos_token_ids:
        values["eos_token_id"] = eos_token_ids
    bos_token_id = _token_id(file, "tokenizer.ggml.bos_token_id")
    if bos_token_id is not None:
        values["bos_token_id"] = bos_token_id
    for key, (field, kind) in _SAMPLING_KEYS.items():
        value = file.get(key, kind)
        if value is not None:
            values[field] = value
    return values


def gguf_pooling(file: GGUFFile) -> str | None:
    """Return the pooling of an embedding model (CLS, LAST or MEAN); None where the file names none, or has a head.

    Raises UnsupportedError for a head other than RoBERTa's: the conversion leaves out a part of it, or what lies in it.
    """
    number = file.get(f"{file.architecture}.pooling_type", int)
    is_classifier = number == _RANK_POOLING or any(name.startswith("cls.") for name in file.tensors)
    if is_classifier and not has_roberta_head(file):
        raise UnsupportedError(
            f"{file.path} is a reranker or classifier; of these RoBERTa's and XLM-RoBERTa's are read from GGUF, for "
            "other heads the file does not have or does not say all; give the original model's folder"
        )
    return None if number is None else _POOLINGS.get(number)


@dataclass(frozen=True)
class _Architecture:
    hf_class: str
    model_type: str
    describe: Callable[[GGUFFile], ConfigValues]  # everything but names, special tokens and tying
    has_experts: bool = False  # or may have


def _decoder(file: GGUFFile) -> ConfigValues:
    """Return what all decoders with RMSNorm and rotary embeddings share."""
    num_query_heads, num_kv_heads = attention_heads(file)
    hidden_size = size(file, "embedding_length")
    return {
        "hidden_size": hidden_size,
        "intermediate_size": size(file, "feed_forward_length"),
        "num_hidden_layers": layer_count(file),
        "num_attention_heads": num_query_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim(file),
        "hidden_act": "silu",
        "max_position_embeddings": size(file, "context_length"),
        "rms_norm_eps": file.get(f"{file.architecture}.attention.layer_norm_rms_epsilon", float),
        "vocab_size": vocab_size(file),
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        **rope_values(file, head_dim(file)),
    }


def _llama(file: GGUFFile) -> ConfigValues:
    values = {**_decoder(file), "mlp_bias": "blk.0.ffn_up.bias" in file.tensors}
    if not file.get("llama.expert_count", int):
        return values
    mixtral = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
    experts = expert_values(file, normalizes=True)
    return {**values, **mixtral, **experts, "intermediate_size": experts["moe_intermediate_size"]}


def _qwen2_moe(file: GGUFFile) -> ConfigValues:
    values = _decoder(file)
    return {
        **values,
        **expert_values(file, normalizes=False),
        "qkv_bias": values["attention_bias"],
        "shared_expert_intermediate_size": shared_expert_size(file),
    }


def _qwen3_moe(file: GGUFFile) -> ConfigValues:
    return {**_decoder(file), **expert_values(file, normalizes=True)}


def _olmoe(file: GGUFFile) -> ConfigValues:
    return {**_decoder(file), **expert_values(file, normalizes=False)}


def _gpt_oss(file: GGUFFile) -> ConfigValues:
    values = {**_decoder(file), **expert_values(file, normalizes=True)}
    scaling = values["rope_scaling"]
    return {
        **values,
        "intermediate_size": values["moe_intermediate_size"],
        "sliding_window": size(file, "attention.sliding_window"),
        "layer_types": layer_types(file, values["num_hidden_layers"], default_period=2),
        # not in the metadata: the model was made so
        "rope_scaling": scaling and {**scaling, "truncate": False},
    }


def _granite_moe(file: GGUFFile) -> ConfigValues:
    shared_size = shared_expert_size(file)
    shared = {"architectures": ["GraniteMoeSharedForCausalLM"], "model_type": "granitemoeshared"} if shared_size else {}
    return {
        **_granite(file),
        **expert_values(file, normalizes=True),
        **shared,
        "shared_intermediate_size": shared_size,
    }


def _sigmoid_moe(file: GGUFFile) -> ConfigValues:
    """Return GLM 4.5's and dots.llm1's. The former's file counts layers that guess further tokens among the layers."""
    values = _decoder(file)
    num_draft_layers = file.get(f"{file.architecture}.nextn_predict_layers", int) or 0
    return {
        **values,
        **sigmoid_expert_values(file),
        "num_hidden_layers": values["num_hidden_layers"] - num_draft_layers,
        "num_nextn_predict_layers": num_draft_layers,
        "use_qk_norm": "blk.0.attn_q_norm.weight" in file.tensors,
    }


def _gemma(file: GGUFFile, large_num_layers: int) -> ConfigValues:
    """Return what Gemma 2 and 3 share. Their 27B models scale queries by hidden_size / heads instead of head_dim."""
    values = _decoder(file)
    is_large = values["num_hidden_layers"] == large_num_layers
    scale_dim = values["hidden_size"] // values["num_attention_heads"] if is_large else values["head_dim"]
    del values["hidden_act"]
    return {**values, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": scale_dim}


def _gemma2(file: GGUFFile) -> ConfigValues:
    values = _gemma(file, large_num_layers=46)
    return {
        **values,
        "attn_logit_softcapping": number(file, "attn_logit_softcapping", 50.0),
        "final_logit_softcapping": number(file, "final_logit_softcapping", 30.0),
        "sliding_window": size(file, "attention.sliding_window", 4096),
        "layer_types": layer_types(file, values["num_hidden_layers"], default_period=2),
    }


def _gemma3(file: GGUFFile) -> ConfigValues:
    values = _gemma(file, large_num_layers=62)
    num_layers = values["num_hidden_layers"]
    window = file.get("gemma3.attention.sliding_window", int)
    return {
        **values,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": file.get("gemma3.final_logit_softcapping", float),
        "sliding_window": window,
        "layer_types": layer_types(file, num_layers, default_period=6) if window else ["full_attention"] * num_layers,
        "rope_local_base_freq": number(file, "rope.freq_base_swa", 10_000.0),
    }


def _phi3(file: GGUFFile) -> ConfigValues:
    return {**_decoder(file), "sliding_window": file.get("phi3.attention.sliding_window", int) or None}


def _granite(file: GGUFFile) -> ConfigValues:
    values = _llama(file)
    return {
        **values,
        "attention_multiplier": number(file, "attention.scale", values["head_dim"] ** -0.5),
        "embedding_multiplier": number(file, "embedding_scale", 1.0),
        "residual_multiplier": number(file, "residual_scale", 1.0),
        "logits_scaling": number(file, "logit_scale", 1.0),
    }


def _olmo2(file: GGUFFile) -> ConfigValues:
    if file.get("olmo2.attention.sliding_window", int):  # OLMo 3 goes by the same name
        raise UnsupportedError(f"{file.path} is an OLMo 3 model (sliding-window layers), which is not supported")
    return _decoder(file)


def _smollm3(file: GGUFFile) -> ConfigValues:
    values = _llama(file)
    # Not in the metadata: every fourth layer has no rotary embedding (1 = rotary), as in all SmolLM3 models.
    layers = range(1, values["num_hidden_layers"] + 1)
    return {**values, "no_rope_layers": [int(layer % 4 != 0) for layer in layers], "no_rope_layer_interval": 4}


def _starcoder2(file: GGUFFile) -> ConfigValues:
    values = _decoder(file)
    del values["rms_norm_eps"]
    return {
        **values,
        "hidden_act": "gelu_pytorch_tanh",
        "norm_epsilon": file.require("starcoder2.attention.layer_norm_epsilon", float),
        "use_bias": values["attention_bias"],
    }


def _gpt2(file: GGUFFile) -> ConfigValues:
    num_heads, _ = attention_heads(file)
    return {
        "n_embd": size(file, "embedding_length"),
        "n_inner": size(file, "feed_forward_length"),
        "n_layer": layer_count(file),
        "n_head": num_heads,
        "n_positions": size(file, "context_length"),
        "layer_norm_epsilon": file.require("gpt2.attention.layer_norm_epsilon", float),
        "activation_function": "gelu_new",
        "vocab_size": vocab_size(file),
    }


def _bert(file: GGUFFile) -> ConfigValues:
    """Return what encoders share. BERT, and RoBERTa without the rows of its position table that no token has."""
    types = file.tensors.get("token_types.weight")
    num_query_heads, _ = attention_heads(file)
    return {
        "hidden_size": size(file, "embedding_length"),
        "intermediate_size": size(file, "feed_forward_length"),
        "num_hidden_layers": layer_count(file),
        "num_attention_heads": num_query_heads,
        "max_position_embeddings": size(file, "context_length"),
        "layer_norm_eps": file.require(f"{file.architecture}.attention.layer_norm_epsilon", float),
        "vocab_size": vocab_size(file),
        "type_vocab_size": 1 if types is None else types.shape[0],
    }


def _bert_or_roberta(file: GGUFFile) -> ConfigValues:
    return {**_bert(file), **(roberta_head(file) if has_roberta_head(file) else {})}


def _nomic_bert(file: GGUFFile) -> ConfigValues:
    rope = rope_values(file, head_dim(file))
    return {**_bert(file), "rope_theta": rope["rope_theta"], "rope_scaling": rope["rope_scaling"]}


_ARCHITECTURES: dict[str, _Architecture] = {
    "llama": _Architecture("LlamaForCausalLM", "llama", _llama, has_experts=True),
    "qwen2": _Architecture("Qwen2ForCausalLM", "qwen2", _decoder),
    "qwen3": _Architecture("Qwen3ForCausalLM", "qwen3", _decoder),
    "qwen2moe": _Architecture("Qwen2MoeForCausalLM", "qwen2_moe", _qwen2_moe, has_experts=True),
    "qwen3moe": _Architecture("Qwen3MoeForCausalLM", "qwen3_moe", _qwen3_moe, has_experts=True),
    "olmoe": _Architecture("OlmoeForCausalLM", "olmoe", _olmoe, has_experts=True),
    "granitemoe": _Architecture("GraniteMoeForCausalLM", "granitemoe", _granite_moe, has_experts=True),
    "gpt-oss": _Architecture("GptOssForCausalLM", "gpt_oss", _gpt_oss, has_experts=True),
    "dots1": _Architecture("Dots1ForCausalLM", "dots1", _sigmoid_moe, has_experts=True),
    "glm4moe": _Architecture("Glm4MoeForCausalLM", "glm4_moe", _sigmoid_moe, has_experts=True),
    "gemma2": _Architecture("Gemma2ForCausalLM", "gemma2", _gemma2),
    "gemma3": _Architecture("Gemma3ForCausalLM", "gemma3_text", _gemma3),
    "phi3": _Architecture("Phi3ForCausalLM", "phi3", _phi3),
    "granite": _Architecture("GraniteForCausalLM", "granite", _granite),
    "olmo2": _Architecture("Olmo2ForCausalLM", "olmo2", _olmo2),
    "smollm3": _Architecture("SmolLM3ForCausalLM", "smollm3", _smollm3),
    "starcoder2": _Architecture("Starcoder2ForCausalLM", "starcoder2", _starcoder2),
    "gpt2": _Architecture("GPT2LMHeadModel", "gpt2", _gpt2),
    "bert": _Architecture("BertModel", "bert", _bert_or_roberta),
    "nomic-bert": _Architecture("NomicBertModel", "nomic_bert", _nomic_bert),
}


def _special_token_ids(file: GGUFFile) -> ConfigValues:
    keys = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    return {field: _token_id(file, f"tokenizer.ggml.{name}_token_id") for field, name in keys.items()}


def _eos_token_ids(file: GGUFFile) -> list[int]:
    """Return every id that ends a generation, the tokenizer's own end-of-sequence id first."""
    ids = {role: _token_id(file, f"tokenizer.ggml.{role}_token_id") for role in ("eos", "eot", "eom")}
    types = file.numbers("tokenizer.ggml.token_type")
    control_ids = set() if types is None else set((types == _CONTROL_TOKEN).nonzero()[0].tolist())
    tokens = file.strings("tokenizer.ggml.tokens") or []
    return list(find_end_of_generation_ids(tokens, control_ids, {r: i for r, i in ids.items() if i is not None}))


def _token_id(file: GGUFFile, key: str) -> int | None:
    value = file.get(key, int)
    num_tokens = len(file.strings("tokenizer.ggml.tokens") or [])
    if value is None or 0 <= value < num_tokens:
        return value
    logger.warning("%s: ignoring %s = %d, the vocabulary has %d tokens", file.path, key, value, num_tokens)
    return None
