"""Normalisations: one interface, so that a decoder layer is written once for models with and without each norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from octavo.ops.interface import Float, Ops


class Norm(Protocol):
    """A normalisation over the last axis."""

    def __call__(self, x: Float, ops: Ops) -> Float:
        """x: [..., H] -> [..., H]."""

    def add(self, x: Float, residual: Float, ops: Ops) -> tuple[Float, Float]:
        """Return (norm(x + residual), x + residual), both [T, H]."""


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """x / rms(x) * weight. Gemma's (1 + w) is folded into `weight` at load."""

    weight: Float
    eps: float

    def __call__(self, x: Float, ops: Ops) -> Float:
        return ops.rms_norm(x, self.weight, self.eps)

    def add(self, x: Float, residual: Float, ops: Ops) -> tuple[Float, Float]:
        return ops.add_rms_norm(x, residual, self.weight, self.eps)


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """(x - mean) / std * weight + bias."""

    weight: Float
    bias: Float | None
    eps: float

    def __call__(self, x: Float, ops: Ops) -> Float:
        return ops.layer_norm(x, self.weight, self.bias, self.eps)

    def add(self, x: Float, residual: Float, ops: Ops) -> tuple[Float, Float]:
        total = ops.add(x, residual)
        return self(total, ops), total


@dataclass(frozen=True, slots=True)
class PostNorm:
    """A norm after the sum: what it gives is also the residual stream that goes on (BERT)."""

    norm: LayerNorm

    def __call__(self, x: Float, ops: Ops) -> Float:
        return self.norm(x, ops)

    def add(self, x: Float, residual: Float, ops: Ops) -> tuple[Float, Float]:
        normed, _ = self.norm.add(x, residual, ops)
        return normed, normed


@dataclass(frozen=True, slots=True)
class NoNorm:
    """The place of a norm that this model does not have."""

    def __call__(self, x: Float, ops: Ops) -> Float:
        return x

    def add(self, x: Float, residual: Float, ops: Ops) -> tuple[Float, Float]:
        total = ops.add(x, residual)
        return total, total
