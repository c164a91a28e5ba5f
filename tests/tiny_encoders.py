"""Tiny random encoders with a WordPiece tokenizer of letters, written to folders like any other checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, BertModel, PreTrainedModel

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz", *(f"##{c}" for c in "abcdefghij")]
SIZES: dict[str, Any] = dict(
    vocab_size=len(WORDS),
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=64,
)


def write_encoder(folder: Path, model: PreTrainedModel, **files: Any) -> Path:
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, value in files.items():
        path = folder / name.replace("__", "/").replace("_json", ".json")
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(value))
    return folder


def sentence_modules(*kinds: str) -> list[dict[str, Any]]:
    names = ["", *(f"{i}_{kind}" for i, kind in enumerate(kinds, 1))]
    return [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(zip(names, ("Transformer", *kinds), strict=True))
    ]


def write_bert(folder: Path) -> Path:
    """Write a sentence-transformers folder: mean pooling, Dense, normalised, prompts, texts cut to 12 tokens."""
    files: dict[str, Any] = {
        "modules_json": sentence_modules("Pooling", "Dense", "Normalize"),
        "1_Pooling__config_json": {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True},
        "2_Dense__config_json": {"in_features": 32, "out_features": 8, "bias": True, "activation_function": "x.Tanh"},
        "sentence_bert_config_json": {"max_seq_length": 12, "do_lower_case": False},
        "config_sentence_transformers_json": {"prompts": {"query": "a a "}, "default_prompt_name": None},
    }
    write_encoder(folder, BertModel(BertConfig(**SIZES)), **files)
    weight, bias = dense_parameters()
    save_file({"linear.weight": weight, "linear.bias": bias}, folder / "2_Dense" / "model.safetensors")
    return folder


def dense_parameters() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weight and bias of the Dense layer of `write_bert`."""
    torch.manual_seed(2)
    return torch.randn(8, 32), torch.randn(8)


def write_cross_encoder(folder: Path) -> Path:
    """Write a BERT that scores pairs, with a sigmoid."""
    config = BertConfig(**SIZES, num_labels=1)
    config.sentence_transformers = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
    return write_encoder(folder, BertForSequenceClassification(config))
