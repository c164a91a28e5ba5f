"""MPNet: BERT without token types, with biases by the distance of tokens that all layers share."""

from __future__ import annotations

from dataclasses import replace

from octavo.errors import CheckpointError
from octavo.loader.hf_config import HFConfig
from octavo.models.bert import read_bert_config
from octavo.models.config_reading import refuse
from octavo.models.encoder_config import EncoderConfig, EncoderNames

NAMES = EncoderNames(
    roots=("mpnet.", ""),
    qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
    attention_output="attention.attn.o",
    attention_norm="attention.LayerNorm",
)
_NUM_BUCKETS = 32
_OFFSET = 2  # rows of the position table that no token has, whatever pad_token_id says


def read_config(config: HFConfig) -> EncoderConfig:
    refuse(config, relative_attention_num_buckets=_NUM_BUCKETS)
    encoder = read_bert_config(config)
    if encoder.max_position <= _OFFSET + 1:
        raise CheckpointError(
            f"{config.source}: 'max_position_embeddings' must be more than {_OFFSET + 1}, got {encoder.max_position}"
        )
    return replace(
        encoder,
        architecture="MPNetModel",
        max_position=encoder.max_position - _OFFSET,
        position_offset=_OFFSET,
        num_token_types=0,
        distance_buckets=_NUM_BUCKETS,
    )
