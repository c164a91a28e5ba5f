"""Gemma 3, text: as Gemma 2 without attention soft caps, with norms on query and key heads and two rotations.

Sliding layers rotate with their own base and no scaling. Of the checkpoints that can also see (Gemma 3 4B and up), the
text half is used.
"""

from __future__ import annotations

from dataclasses import replace

from octavo.errors import CheckpointError
from octavo.loader.hf_config import HFConfig
from octavo.models.config_reading import (
    inverse_root,
    optional_softcap,
    positive,
    read_activation,
    read_decoder_config,
    read_layer_types,
    refuse,
    with_defaults,
    with_windows,
)
from octavo.models.decoder_config import DecoderConfig, LayerConfig, WeightNames
from octavo.models.rope_reading import LAYER_TYPES, read_rope

NAMES = WeightNames(
    roots=("model.", "model.language_model.", "language_model.model."),
    lm_heads=("lm_head", "language_model.lm_head"),
    mlp_norm="pre_feedforward_layernorm",
    harmless=(r"\.rotary_emb\.inv_freq$", r"^(model\.)?(vision_tower|multi_modal_projector)\."),
)


def read_config(config: HFConfig) -> DecoderConfig:
    return _read_text_config(config, "Gemma3ForCausalLM")


def read_multimodal_config(config: HFConfig) -> DecoderConfig:
    text = config.section("text_config")
    if text is None:
        raise CheckpointError(f"{config.source} has no 'text_config', which Gemma3ForConditionalGeneration needs")
    if "tie_word_embeddings" in config:
        text = with_defaults(text, tie_word_embeddings=config.bool("tie_word_embeddings"))
    return _read_text_config(text, "Gemma3ForConditionalGeneration")


def _read_text_config(config: HFConfig, architecture: str) -> DecoderConfig:
    config = with_defaults(
        config,
        vocab_size=262_208,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=256,
        max_position_embeddings=131_072,
        sliding_window=4096,
        query_pre_attn_scalar=256,
        tie_word_embeddings=True,
    )
    refuse(config, attn_logit_softcapping=None, mlp_bias=False)
    config = _with_rope_of_each_type(config)
    # The rotations come below, one for each layer type; the common reader must not see them.
    decoder = read_decoder_config(HFConfig({**config.values, "rope_parameters": None}, config.source), architecture)
    period = positive(config, "sliding_window_pattern", 6)
    default = [
        "sliding_attention" if index % period else "full_attention" for index in range(1, len(decoder.layers) + 1)
    ]
    layer_types = read_layer_types(config, default)
    ropes = {name: read_rope(config, decoder.head_dim, name) for name in LAYER_TYPES}
    scale = inverse_root(config, "query_pre_attn_scalar")
    decoder = replace(
        decoder,
        layers=tuple(LayerConfig(ropes[name], scale) for name in layer_types),
        norm="rms_plus_one",
        post_norm=True,
        qk_norm="head",
        activation=read_activation(config, "hidden_activation", "gelu_pytorch_tanh"),
        embedding_scale=decoder.hidden_size**0.5,
        logits_softcap=optional_softcap(config, "final_logit_softcapping"),
    )
    return with_windows(config, decoder, layer_types)


def _with_rope_of_each_type(config: HFConfig) -> HFConfig:
    """Bring the older spelling (rope_theta, rope_local_base_freq, rope_scaling) into the newer one."""
    scaling, parameters = config.section("rope_scaling"), config.section("rope_parameters")
    full: dict[str, object] = {"rope_theta": config.float("rope_theta", 1_000_000.0)}
    sliding: dict[str, object] = {"rope_theta": config.float("rope_local_base_freq", 10_000.0)}
    if parameters is not None and any(name in parameters.values for name in LAYER_TYPES):
        for values, name in ((full, "full_attention"), (sliding, "sliding_attention")):
            section = parameters.section(name)
            values.update(section.values if section is not None else {})
    elif parameters is not None:
        full.update(parameters.values)
    if scaling is not None:
        full.update(scaling.values)
    ropes = {"full_attention": full, "sliding_attention": sliding}
    return HFConfig({**config.values, "rope_scaling": None, "rope_parameters": ropes}, config.source)
