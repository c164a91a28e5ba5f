"""BERT and what differs from it in names, positions and types only: RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT."""

from __future__ import annotations

from dataclasses import replace

from octavo.errors import CheckpointError
from octavo.loader.hf_config import HFConfig
from octavo.models.config_reading import norm_epsilon, num_layers, positive, read_activation, refuse, with_defaults
from octavo.models.decoder_config import LayerConfig
from octavo.models.encoder_config import EncoderConfig, EncoderNames

BERT_NAMES = EncoderNames(roots=("bert.", ""))
ROBERTA_NAMES = EncoderNames(roots=("roberta.", ""))
DISTILBERT_NAMES = EncoderNames(
    roots=("distilbert.", ""),
    layer="transformer.layer.{index}.",
    qkv=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    attention_output="attention.out_lin",
    attention_norm="sa_layer_norm",
    gate_up=("ffn.lin1",),
    down="ffn.lin2",
    mlp_norm="output_layer_norm",
)


def read_bert_config(config: HFConfig) -> EncoderConfig:
    refuse(config, position_embedding_type="absolute", is_decoder=False, add_cross_attention=False)
    return EncoderConfig(
        architecture="BertModel",
        layers=read_layers(config, num_layers(config)),
        hidden_size=positive(config, "hidden_size"),
        intermediate_size=positive(config, "intermediate_size"),
        vocab_size=positive(config, "vocab_size"),
        max_position=positive(config, "max_position_embeddings"),
        num_heads=positive(config, "num_attention_heads"),
        norm_eps=norm_epsilon(config, "layer_norm_eps", 1e-12),
        activation=read_activation(config, "hidden_act", "gelu"),
        num_token_types=positive(config, "type_vocab_size", 2),
    )


def read_roberta_config(config: HFConfig) -> EncoderConfig:
    """As BERT; the first position is the row after the padding token's id."""
    encoder = read_bert_config(with_defaults(config, layer_norm_eps=1e-5, type_vocab_size=1))
    offset = config.int("pad_token_id", 1) + 1
    if not 0 <= offset < encoder.max_position - 1:
        raise CheckpointError(f"{config.source}: 'pad_token_id' must leave positions over, got {offset - 1}")
    return replace(
        encoder, architecture="RobertaModel", max_position=encoder.max_position - offset, position_offset=offset
    )


def read_distilbert_config(config: HFConfig) -> EncoderConfig:
    renamed = {
        "hidden_size": "dim",
        "intermediate_size": "hidden_dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "hidden_act": "activation",
    }
    values = {ours: config.values[theirs] for ours, theirs in renamed.items() if theirs in config}
    encoder = read_bert_config(HFConfig({**config.values, **values}, config.source))
    return replace(encoder, architecture="DistilBertModel", num_token_types=0)


def read_layers(config: HFConfig, count: int) -> tuple[LayerConfig, ...]:
    """Return layers that do not rotate, for a config with hidden_size and num_attention_heads."""
    return (LayerConfig(rope=None, attention_scale=head_size(config) ** -0.5),) * count


def head_size(config: HFConfig) -> int:
    """Return the size of a head: the hidden state is divided among them."""
    hidden_size, num_heads = positive(config, "hidden_size"), positive(config, "num_attention_heads")
    if hidden_size % num_heads:
        raise CheckpointError(
            f"{config.source}: hidden_size={hidden_size} must be a multiple of num_attention_heads={num_heads}"
        )
    return hidden_size // num_heads
