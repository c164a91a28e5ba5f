"""Jina embeddings v3 without its adapters: RoBERTa with rotary positions, as Transformers has it."""

from __future__ import annotations

from dataclasses import replace

from octavo.loader.hf_config import HFConfig
from octavo.models.bert import read_bert_config
from octavo.models.config_reading import refuse, with_defaults
from octavo.models.encoder_config import EncoderConfig, EncoderNames
from octavo.models.rope_reading import read_rope

# as Transformers saves it, and as it has it in memory
ORIGINAL_NAMES = EncoderNames(
    roots=("roberta.", ""),
    embedding_norm="emb_ln",
    layer="encoder.layers.{index}.",
    qkv=("mixer.Wqkv",),
    attention_output="mixer.out_proj",
    attention_norm="norm1",
    gate_up=("mlp.fc1",),
    down="mlp.fc2",
    mlp_norm="norm2",
)
NAMES = EncoderNames(
    roots=("roberta.", ""),
    layer="layers.{index}.",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    attention_output="self_attn.o_proj",
    attention_norm="post_attention_layernorm",
    gate_up=("mlp.fc1",),
    down="mlp.fc2",
    mlp_norm="post_mlp_layernorm",
)


def read_config(config: HFConfig) -> EncoderConfig:
    encoder = read_bert_config(with_defaults(config, layer_norm_eps=1e-5, type_vocab_size=1, head_dim=None))
    refuse(config, head_dim=encoder.head_dim)
    rope = read_rope(config, encoder.head_dim, theta=20_000.0)
    layers = tuple(replace(layer, rope=rope) for layer in encoder.layers)
    return replace(encoder, architecture="JinaEmbeddingsV3Model", layers=layers, learned_positions=False)
