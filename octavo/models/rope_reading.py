"""Reads rotary embeddings from a config.

Transformers 4 spells them rope_theta and rope_scaling, Transformers 5 rope_parameters (by layer type if they differ).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from octavo.errors import CheckpointError, UnsupportedError
from octavo.layers.rotary import DynamicRope, LinearRope, Llama3Rope, LongRope, Rope, YarnRope
from octavo.loader.hf_config import HFConfig

MAX_POSITION = 2**24  # the position tables grow with it; the longest contexts of real models are 10 million tokens
LAYER_TYPES = ("full_attention", "sliding_attention")


def read_rope(config: HFConfig, head_dim: int, layer_type: str | None = None, theta: float = 10_000.0) -> Rope:
    """Return the rotation of layers of `layer_type` (None: of all); `theta` is the architecture's default base."""
    parameters = rope_parameters(config, layer_type)
    _refuse_two_thetas(config, parameters, layer_type)
    theta = parameters.float("rope_theta", config.float("rope_theta", theta))
    if not 1 < theta < math.inf:
        raise CheckpointError(f"{parameters.source}: 'rope_theta' must be greater than 1, got {theta}")
    share = parameters.float("partial_rotary_factor", config.float("partial_rotary_factor", 1.0))
    rotary_dim = int(head_dim * share) if 0 < share <= 1 else 0
    if rotary_dim < 2 or rotary_dim % 2:
        raise CheckpointError(
            f"{parameters.source}: partial_rotary_factor={share} of head_dim={head_dim} must give an even number of "
            f"rotated dimensions up to head_dim, got {rotary_dim}"
        )
    rope_type = rope_type_of(parameters)
    reader = _READERS.get(rope_type)
    if reader is None:
        raise UnsupportedError(
            f"{parameters.source}: rope_type {rope_type!r} is not supported; supported: {', '.join(_READERS)}"
        )
    _refuse_unknown_keys(parameters)
    rope = reader(_RopeInput(config, parameters), theta, rotary_dim)
    _check_angles(rope, parameters.source)
    return rope


def _check_angles(rope: Rope, source: str) -> None:
    """Raise where settings that are fine one by one give no usable rotation."""
    try:
        with np.errstate(all="ignore"):
            usable = np.isfinite(rope.inverse_frequencies(MAX_POSITION)).all() and 0 < rope.magnitude() < math.inf
    except (ArithmeticError, ValueError) as error:
        raise CheckpointError(f"{source}: no rotation follows from {rope}: {error}") from error
    if not usable:
        raise CheckpointError(f"{source}: {rope} gives frequencies or a magnitude that are not finite and positive")


def _refuse_two_thetas(config: HFConfig, parameters: HFConfig, layer_type: str | None) -> None:
    """Refuse a rope_theta at the top and another in the section: none of them may be ignored in silence."""
    if layer_type is not None or "rope_theta" not in config:
        return  # Gemma 3 has a theta at the top and others for the layer types
    for key in ("rope_scaling", "rope_parameters"):
        section = config.section(key)
        if section is not None and "rope_theta" in section:
            outer, inner = config.float("rope_theta"), section.float("rope_theta")
            if outer != inner:
                raise CheckpointError(
                    f"{config.source}: rope_theta={outer:g} contradicts {key}.rope_theta={inner:g}; give one of them"
                )


def rope_parameters(config: HFConfig, layer_type: str | None = None) -> HFConfig:
    """Return the section that describes the rotation, empty when there is none; for one layer type where it differs."""
    for key in ("rope_scaling", "rope_parameters"):
        section = config.section(key)
        if section is None or not section.values:
            continue
        if not any(name in section.values for name in LAYER_TYPES):
            return section
        if layer_type is None:
            raise UnsupportedError(f"{section.source}: a rotation for each layer type is not supported here")
        return section.section(layer_type) or HFConfig({}, section.source)
    return HFConfig({}, config.source)


def rope_type_of(parameters: HFConfig) -> str:
    """Return the scaling type under its present name."""
    name = parameters.str("rope_type", parameters.str("type", "default"))
    return "longrope" if name == "su" else name


def max_position(config: HFConfig, rope: Rope) -> int:
    """Return the longest sequence that the rotation supports.

    As in vLLM: linear and dynamic multiply max_position_embeddings by their factor, yarn the original length, and
    llama3 and longrope nothing, since their max_position_embeddings already includes it. A linear or dynamic config
    that names its original length has a max_position_embeddings that may include the factor: it is not applied twice.
    """
    stated = config.int("max_position_embeddings")
    longest: float = stated
    if isinstance(rope, YarnRope):
        longest = rope.original_length * rope.factor
    elif isinstance(rope, (LinearRope, DynamicRope)):
        original = rope_parameters(config).int("original_max_position_embeddings", stated)
        longest = max(stated, original * rope.factor)
    if not 2 <= longest <= MAX_POSITION:
        raise CheckpointError(
            f"{config.source}: max_position_embeddings, scaling included, must be from 2 to {MAX_POSITION}, "
            f"got {longest:.16g}"
        )
    return int(longest)


class _RopeInput:
    """The values that one scaling type is read from."""

    def __init__(self, config: HFConfig, parameters: HFConfig) -> None:
        self.config = config
        self.parameters = parameters
        self.max_position = config.int("max_position_embeddings")
        # Phi-3 keeps the original length outside of the section, and there it counts first.
        self.original_length = config.int(
            "original_max_position_embeddings", parameters.int("original_max_position_embeddings", self.max_position)
        )
        if not (2 <= self.original_length <= MAX_POSITION and 2 <= self.max_position <= MAX_POSITION):
            raise CheckpointError(
                f"{config.source}: max_position_embeddings and its original must be from 2 to {MAX_POSITION}, "
                f"got {self.max_position} and {self.original_length}"
            )

    def factor(self, default: float | None = None) -> float:
        factor = self.parameters.float("factor", default)
        if not 0 < factor < math.inf:
            raise CheckpointError(f"{self.parameters.source}: 'factor' must be positive, got {factor}")
        return factor

    def optional(self, key: str) -> float | None:
        return self.parameters.float(key) if key in self.parameters else None

    def divisors(self, key: str, rotary_dim: int) -> tuple[float, ...]:
        values = self.parameters.list(key)
        if len(values) != rotary_dim // 2 or not all(
            isinstance(value, (int, float)) and 0 < value < 1e30 for value in values
        ):
            raise CheckpointError(
                f"{self.parameters.source}: {key!r} must be {rotary_dim // 2} positive numbers, one for each pair of "
                f"rotated dimensions, got {len(values)} values"
            )
        return tuple(float(value) for value in values)


def _read_default(source: _RopeInput, theta: float, rotary_dim: int) -> Rope:
    return Rope(theta, rotary_dim)


def _read_linear(source: _RopeInput, theta: float, rotary_dim: int) -> Rope:
    return LinearRope(theta, rotary_dim, source.factor())


def _read_dynamic(source: _RopeInput, theta: float, rotary_dim: int) -> Rope:
    if rotary_dim == 2:
        raise UnsupportedError(f"{source.parameters.source}: dynamic needs more than 2 rotated dimensions")
    return DynamicRope(theta, rotary_dim, source.factor(), source.max_position)


def _read_yarn(source: _RopeInput, theta: float, rotary_dim: int) -> Rope:
    return YarnRope(
        theta,
        rotary_dim,
        factor=source.factor(source.max_position / source.original_length),
        original_length=source.original_length,
        attention_factor=source.optional("attention_factor"),
        beta_fast=source.optional("beta_fast") or 32.0,
        beta_slow=source.optional("beta_slow") or 1.0,
        mscale=source.optional("mscale"),
        mscale_all_dim=source.optional("mscale_all_dim"),
        truncate=source.parameters.bool("truncate", True),
    )


def _read_llama3(source: _RopeInput, theta: float, rotary_dim: int) -> Rope:
    low, high = source.parameters.float("low_freq_factor"), source.parameters.float("high_freq_factor")
    if high <= low:
        raise CheckpointError(
            f"{source.parameters.source}: high_freq_factor must exceed low_freq_factor, got {high} and {low}"
        )
    return Llama3Rope(theta, rotary_dim, source.factor(), source.original_length, low, high)


def _read_longrope(source: _RopeInput, theta: float, rotary_dim: int) -> Rope:
    return LongRope(
        theta,
        rotary_dim,
        factor=source.factor(source.max_position / source.original_length),
        original_length=source.original_length,
        short_factors=source.divisors("short_factor", rotary_dim),
        long_factors=source.divisors("long_factor", rotary_dim),
        attention_factor=source.optional("attention_factor"),
    )


_READERS: Mapping[str, Callable[[_RopeInput, float, int], Rope]] = {
    "default": _read_default,
    "linear": _read_linear,
    "dynamic": _read_dynamic,
    "yarn": _read_yarn,
    "llama3": _read_llama3,
    "longrope": _read_longrope,
}

_KNOWN_KEYS = frozenset(
    (
        *("rope_theta", "rope_type", "type", "factor", "partial_rotary_factor", "original_max_position_embeddings"),
        *("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),  # yarn
        *("low_freq_factor", "high_freq_factor"),  # llama3
        *("short_factor", "long_factor"),  # longrope
        "finetuned",  # a remark without an effect
    )
)


def _refuse_unknown_keys(parameters: HFConfig) -> None:
    unknown = sorted(key for key in parameters.values if key not in _KNOWN_KEYS and key in parameters)
    if unknown:
        raise UnsupportedError(f"{parameters.source}: rotary settings {', '.join(unknown)} are not supported")
