"""What quantised weights mean, in NumPy: the oracle of the native quantised linear."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo.loader.compact import BlockMatrix, CompactMatrix, QuantizedMatrix
from octavo.ops.interface import Float

_STEPS = np.float32(254)
_TINY = np.float32(1e-30)  # a group whose values lie closer together counts as constant


@dataclass(frozen=True, slots=True)
class ReferencePart:
    """Rows of a weight in float32; group_size: of the rounding of its input, None for none."""

    matrix: Float
    group_size: int | None


def reference_part(matrix: Float | CompactMatrix) -> ReferencePart:
    """Dequantise a matrix."""
    if isinstance(matrix, np.ndarray):
        return ReferencePart(matrix, None)
    group_size = matrix.group_size if isinstance(matrix, (BlockMatrix, QuantizedMatrix)) else None
    return ReferencePart(matrix.dequantized(), group_size)


def round_activations(x: Float, group_size: int) -> Float:
    """Return x [T, I] as the quantised linear sees it; the formula is in `octavo.ops.interface.Ops.linear`."""
    num_tokens, size = x.shape
    padded = np.zeros((num_tokens, -(-size // group_size) * group_size), np.float32)
    padded[:, :size] = x
    groups = padded.reshape(num_tokens, -1, group_size)
    with np.errstate(invalid="ignore", over="ignore"):
        high, low = groups.max(axis=-1, keepdims=True), groups.min(axis=-1, keepdims=True)
        spread = high - low
        varies = spread >= _TINY
        zero = np.float32(0.5) * (high + low)
        inverse = np.where(varies, _STEPS / np.where(varies, spread, np.float32(1)), np.float32(0))
        scale = np.where(varies, spread / _STEPS, np.float32(0))
        codes = np.clip(np.rint((groups - zero) * inverse), -127, 127)
        rounded: Float = (scale * codes + zero).reshape(padded.shape)[:, :size]
    return np.where(np.isfinite(groups).all(axis=-1).repeat(group_size, axis=1)[:, :size], rounded, np.float32(np.nan))
