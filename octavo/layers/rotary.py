"""Rotary position embeddings: every scaling type as a small dataclass that yields frequencies and a magnitude.

The formulas are those of Transformers' `modeling_rope_utils` (5.x), computed in float32 in the same order, so that
angles round alike at large positions.

A cached key keeps the rotation that it was stored with. Types whose frequencies depend on the length of the sequence
(dynamic, longrope) therefore take those that Transformers would use for a sequence of `max_length` tokens, the longest
that the engine admits, from the first token on: vLLM's rule for longrope, and the same for dynamic. To get the
short-context frequencies set max_model_len to the original length or below.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from octavo.ops.interface import Float


@dataclass(frozen=True, slots=True)
class Rope:
    """One rotation: which dimensions turn how fast. As it stands the plain one, frequencies theta^(-2i/dim)."""

    theta: float
    dim: int

    def inverse_frequencies(self, max_length: int) -> Float:
        """Return [dim / 2] float32, radians per position."""
        return _inverse_powers(self.theta, self.dim)

    def magnitude(self) -> float:
        """Return the factor on cosine and sine."""
        return 1.0


def cos_sin_table(rope: Rope, max_length: int) -> Float:
    """Return the table for `Ops.rope`: [max_length, rotary_dim] float32, cosines left and sines right."""
    positions = np.arange(max_length, dtype=np.float32)
    angles = positions[:, None] * rope.inverse_frequencies(max_length)[None, :]
    table: Float = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    table *= np.float32(rope.magnitude())
    return table


def _inverse_powers(theta: float, dim: int, divisors: float | Float = 1.0) -> Float:
    """Return 1 / (divisors * theta^(2i/dim)), [dim / 2] float32."""
    exponents = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    powers: Float = np.power(np.float32(theta), exponents)
    frequencies: Float = np.float32(1) / (np.asarray(divisors, dtype=np.float32) * powers)
    return frequencies


@dataclass(frozen=True, slots=True)
class LinearRope(Rope):
    """Positions divided by `factor`."""

    factor: float

    def inverse_frequencies(self, max_length: int) -> Float:
        return _inverse_powers(self.theta, self.dim) / np.float32(self.factor)


@dataclass(frozen=True, slots=True)
class DynamicRope(Rope):
    """NTK-aware: beyond the original length the base grows with the sequence (see the module's docstring)."""

    factor: float
    original_length: int

    def inverse_frequencies(self, max_length: int) -> Float:
        length = max(max_length, self.original_length)
        stretch = self.factor * length / self.original_length - (self.factor - 1)
        return _inverse_powers(self.theta * stretch ** (self.dim / (self.dim - 2)), self.dim)


@dataclass(frozen=True, slots=True)
class YarnRope(Rope):
    """YaRN (arXiv 2309.00071): fast dimensions keep their frequency, slow ones are interpolated, a ramp between."""

    factor: float
    original_length: int
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    def inverse_frequencies(self, max_length: int) -> Float:
        low, high = self._turning_dimension(self.beta_fast), self._turning_dimension(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.dim - 1)
        width = high - low or 0.001  # a ramp of no width would divide by zero
        ramp = (np.arange(self.dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(width)
        interpolated_share = np.clip(ramp, np.float32(0), np.float32(1))
        frequencies = _inverse_powers(self.theta, self.dim)
        mixed: Float = frequencies / np.float32(self.factor) * interpolated_share + frequencies * (
            1 - interpolated_share
        )
        return mixed

    def magnitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._mscale(self.mscale) / self._mscale(self.mscale_all_dim)
        return self._mscale(1.0)

    def _turning_dimension(self, num_rotations: float) -> float:
        """Return the dimension that makes `num_rotations` turns over the original length."""
        turns = self.original_length / (num_rotations * 2 * math.pi)
        return self.dim * math.log(turns) / (2 * math.log(self.theta))

    def _mscale(self, multiplier: float) -> float:
        return 0.1 * multiplier * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0


@dataclass(frozen=True, slots=True)
class Llama3Rope(Rope):
    """Llama 3.1: long wavelengths divided by `factor`, short ones kept, a smooth passage between."""

    factor: float
    original_length: int
    low_freq_factor: float
    high_freq_factor: float

    def inverse_frequencies(self, max_length: int) -> Float:
        frequencies = _inverse_powers(self.theta, self.dim)
        turns = np.float32(self.original_length) * frequencies / np.float32(2 * math.pi)
        smooth = (turns - np.float32(self.low_freq_factor)) / np.float32(self.high_freq_factor - self.low_freq_factor)
        kept_share: Float = np.clip(smooth, np.float32(0), np.float32(1))
        mixed: Float = (1 - kept_share) * frequencies / np.float32(self.factor) + kept_share * frequencies
        return mixed


@dataclass(frozen=True, slots=True)
class LongRope(Rope):
    """LongRoPE (arXiv 2402.13753): one divisor per dimension, a set for short and one for long contexts.

    factor: how much longer than the original length the model's positions reach; sets the magnitude
    """

    factor: float
    original_length: int
    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    attention_factor: float | None = None

    def inverse_frequencies(self, max_length: int) -> Float:
        divisors = self.long_factors if max_length > self.original_length else self.short_factors
        return _inverse_powers(self.theta, self.dim, np.array(divisors, dtype=np.float32))

    def magnitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.factor <= 1:
            return 1.0
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original_length))
