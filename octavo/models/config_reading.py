"""Reads config.json into a DecoderConfig: what architectures have in common, and the checks that nothing is ignored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from octavo.errors import CheckpointError, UnsupportedError
from octavo.loader.hf_config import HFConfig
from octavo.models.decoder_config import DecoderConfig, LayerConfig
from octavo.models.rope_reading import max_position, read_rope
from octavo.ops.interface import Activation

_ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}


def with_defaults(config: HFConfig, **defaults: object) -> HFConfig:
    """Add an architecture's defaults for keys that are absent; a null stays null ("no sliding window")."""
    return HFConfig({**defaults, **config.values}, config.source)


def read_decoder_config(config: HFConfig, architecture: str, rope_theta: float = 10_000.0) -> DecoderConfig:
    """Read a Llama-like config: every layer rotates alike and sees all keys; the biases are as the config says."""
    refuse(config, rope_interleaved=False, lm_head_bias=False, use_mrope=False)
    hidden_size, num_heads = positive(config, "hidden_size"), positive(config, "num_attention_heads")
    num_kv_heads = positive(config, "num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise CheckpointError(
            f"{config.source}: num_attention_heads={num_heads} must be a multiple of num_key_value_heads={num_kv_heads}"
        )
    head_dim = positive(config, "head_dim", hidden_size // num_heads)
    attention_bias = config.bool("attention_bias", False)
    rope = read_rope(config, head_dim, theta=rope_theta)
    layer = LayerConfig(rope=rope, attention_scale=head_dim**-0.5)
    return DecoderConfig(
        architecture=architecture,
        layers=(layer,) * num_layers(config),
        hidden_size=hidden_size,
        intermediate_size=positive(config, "intermediate_size"),
        vocab_size=positive(config, "vocab_size"),
        max_position=max_position(config, rope),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        norm_eps=norm_epsilon(config, "rms_norm_eps", 1e-6),
        activation=read_activation(config, "hidden_act", "silu"),
        tie_word_embeddings=config.bool("tie_word_embeddings", False),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=config.bool("mlp_bias", False),
        bidirectional=config.bool("use_bidirectional_attention", False) or not config.bool("is_causal", True),
    )


def read_plain_config(
    config: HFConfig, architecture: str, size_key: str, heads_key: str, layers_key: str, max_position: int
) -> DecoderConfig:
    """Read a config of GPT-2's kind, without positions: layer norms, a plain MLP, biases, as many key/value heads."""
    hidden_size, num_heads = positive(config, size_key), positive(config, heads_key)
    if hidden_size % num_heads:
        raise CheckpointError(
            f"{config.source}: {size_key}={hidden_size} must be a multiple of {heads_key}={num_heads}"
        )
    head_dim = hidden_size // num_heads
    layer = LayerConfig(rope=None, attention_scale=head_dim**-0.5)
    return DecoderConfig(
        architecture=architecture,
        layers=(layer,) * num_layers(config, layers_key),
        hidden_size=hidden_size,
        intermediate_size=positive(config, "n_inner", 4 * hidden_size),
        vocab_size=positive(config, "vocab_size"),
        max_position=max_position,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        norm_eps=norm_epsilon(config, "layer_norm_epsilon", 1e-5),
        activation="gelu_tanh",
        tie_word_embeddings=config.bool("tie_word_embeddings", True),
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        gated_mlp=False,
        norm="layer",
    )


def positive(config: HFConfig, key: str, default: int | None = None, limit: int = 2**31 - 1) -> int:
    """Read a size."""
    value = config.int(key, default)
    if not 1 <= value <= limit:
        raise CheckpointError(f"{config.source}: {key!r} must be from 1 to {limit}, got {value}")
    return value


def count(config: HFConfig, key: str, limit: int = 10_000) -> int:
    """Read how many there are of what may be absent."""
    value = config.int(key, 0)
    if not 0 <= value <= limit:
        raise CheckpointError(f"{config.source}: {key!r} must be from 0 to {limit}, got {value}")
    return value


def num_layers(config: HFConfig, key: str = "num_hidden_layers") -> int:
    """Read the number of layers, within reason: what follows allocates for each of them."""
    return positive(config, key, limit=10_000)


def inverse_root(config: HFConfig, key: str) -> float:
    """Return 1 / sqrt of a positive number."""
    return float(_positive_float(config, key) ** -0.5)


def optional_softcap(config: HFConfig, key: str) -> float | None:
    """Read a soft cap; None when there is none."""
    return _positive_float(config, key) if key in config else None


def norm_epsilon(config: HFConfig, key: str, default: float | None = None) -> float:
    """Read what a norm adds to the mean square: small, or the hidden states vanish."""
    value = config.float(key, default)
    if not 0 <= value < 1:
        raise CheckpointError(f"{config.source}: {key!r} must be at least 0 and below 1, got {value}")
    return value


def _positive_float(config: HFConfig, key: str) -> float:
    value = config.float(key)
    if value <= 0:
        raise CheckpointError(f"{config.source}: {key!r} must be positive, got {value}")
    return value


def read_activation(config: HFConfig, key: str, default: str) -> Activation:
    """Read an activation by Transformers' name."""
    name = config.str(key, default)
    if name not in _ACTIVATIONS:
        raise UnsupportedError(
            f"{config.source}: {key}={name!r} is not supported; supported: {', '.join(sorted(_ACTIVATIONS))}"
        )
    return _ACTIVATIONS[name]


def refuse(config: HFConfig, **values: object) -> None:
    """Raise UnsupportedError when a key is set to anything but null and the value given here."""
    for key, neutral in values.items():
        if key in config and config.values[key] != neutral:
            raise UnsupportedError(f"{config.source}: {key}={config.values[key]!r} is not supported, only {neutral!r}")


# -- sliding windows ---------------------------------------------------------------------------------------------------


def read_layer_types(config: HFConfig, default: Sequence[str]) -> tuple[str, ...]:
    """Return "full_attention" or "sliding_attention" for each layer: layer_types, or the architecture's default."""
    if "layer_types" not in config:
        return tuple(default)
    types = config.list("layer_types")
    if len(types) < len(default):
        raise CheckpointError(
            f"{config.source}: 'layer_types' must name all {len(default)} layers (num_hidden_layers), got {len(types)}"
        )
    for layer_type in types[: len(default)]:
        if layer_type not in ("full_attention", "sliding_attention"):
            raise UnsupportedError(
                f"{config.source}: layer type {layer_type!r} is not supported; "
                "supported: full_attention, sliding_attention"
            )
    return tuple(types[: len(default)])


def with_windows(config: HFConfig, decoder: DecoderConfig, layer_types: Sequence[str]) -> DecoderConfig:
    """Give the layers that slide the config's sliding window."""
    window = positive(config, "sliding_window") if "sliding_attention" in layer_types else None
    if window is not None and decoder.bidirectional:
        window = window // 2 + 1  # half of it on either side, beside the token itself
    layers = tuple(
        replace(layer, sliding_window=window if layer_type == "sliding_attention" else None)
        for layer, layer_type in zip(decoder.layers, layer_types, strict=True)
    )
    return replace(decoder, layers=layers)


def with_one_window(config: HFConfig, decoder: DecoderConfig) -> DecoderConfig:
    """Let all layers slide when sliding_window is set (Mistral, Phi-3, StarCoder 2)."""
    expected = ("sliding_attention" if "sliding_window" in config else "full_attention",) * len(decoder.layers)
    if read_layer_types(config, expected) != expected:
        raise UnsupportedError(
            f"{config.source}: layer_types that differ from layer to layer are not supported for {decoder.architecture}"
        )
    return with_windows(config, decoder, expected)


def with_upper_windows(config: HFConfig, decoder: DecoderConfig) -> DecoderConfig:
    """Let the layers from max_window_layers on slide when use_sliding_window is set (Qwen 2 and 3)."""
    config = with_defaults(config, sliding_window=4096, max_window_layers=28)
    if not config.bool("use_sliding_window", False):
        config = HFConfig({**config.values, "sliding_window": None}, config.source)
    return with_windows_from(config, decoder)


def with_windows_from(config: HFConfig, decoder: DecoderConfig) -> DecoderConfig:
    """Let the layers from max_window_layers on slide when sliding_window is set, unless layer_types says other."""
    first = config.int("max_window_layers")
    default = [
        "sliding_attention" if "sliding_window" in config and index >= first else "full_attention"
        for index in range(len(decoder.layers))
    ]
    return with_windows(config, decoder, read_layer_types(config, default))
