"""Tiny random Hugging Face models with a real byte-level tokenizer, written to a folder like any other checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, PretrainedConfig

VOCAB_SIZE = 320
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SIZES: dict[str, Any] = dict(
    vocab_size=VOCAB_SIZE,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=512,
    bos_token_id=0,
    eos_token_id=0,
    pad_token_id=0,
)


def llama_config(**changes: Any) -> LlamaConfig:
    return LlamaConfig(**{**_SIZES, **changes})


def gemma3_config(sliding_window: int = 20, **changes: Any) -> Gemma3TextConfig:
    """Three layers: sliding, full, sliding; a window that is no multiple of the usual block sizes."""
    sizes = {**_SIZES, "num_hidden_layers": 3, "query_pre_attn_scalar": 16, "sliding_window": sliding_window}
    layer_types = ["sliding_attention", "full_attention", "sliding_attention"]
    return Gemma3TextConfig(**{**sizes, "layer_types": layer_types, **changes})


def write_tiny_model(folder: Path, config: PretrainedConfig, seed: int = 0) -> Path:
    """Write config, random weights (larger than usual, so that greedy text varies), tokenizer and chat template."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
            else:
                parameter.copy_(torch.randn_like(parameter) * parameter.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """Write a byte-level BPE tokenizer of VOCAB_SIZE tokens, trained on this file."""
    import json

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([Path(__file__).read_text(encoding="utf-8")], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "bos_token": SPECIAL_TOKENS[0],
        "eos_token": SPECIAL_TOKENS[0],
        "chat_template": CHAT_TEMPLATE,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
