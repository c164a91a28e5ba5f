"""The polynomials of csrc/kernels/math.h against float64, through the ops that use them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from octavo.ops.interface import Ops


def arguments(limit: float) -> NDArray[np.float32]:
    """Return a dense grid of both signs, finer near 0, as one row."""
    magnitudes = np.concatenate([np.linspace(0, limit, 40001), np.geomspace(1e-30, 1, 20000)])
    return np.concatenate([magnitudes, -magnitudes]).astype(np.float32)[None]


def ulps(actual: NDArray[np.float32], exact: NDArray[np.float64]) -> float:
    """Return the largest error in units of the last place of the exact value."""
    return float(np.max(np.abs(actual - exact) / np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)))


def test_tanh(native: Ops) -> None:
    x = arguments(12)
    assert ulps(native.softcap(x, 1.0), np.tanh(x.astype(np.float64))) < 3
    assert native.softcap(np.array([[100.0, -100.0, np.inf, -np.inf]], np.float32), 1.0).tolist() == [[1, -1, 1, -1]]


def test_exp_through_silu(native: Ops) -> None:
    x = arguments(80)
    wide = x.astype(np.float64)
    assert ulps(native.activation(x, "silu"), wide / (1 + np.exp(-wide))) < 4
    ends = native.activation(np.array([[200.0, -200.0, -1e30, np.inf]], np.float32), "silu")
    assert ends[0, 0] == 200 and ends[0, 3] == np.inf and (ends[0, 1:3] == 0).all()


def test_erf_through_gelu(native: Ops) -> None:
    """1 + erf cancels for negative arguments (as in PyTorch): hence an absolute bound."""
    x = arguments(8)
    erf = np.vectorize(math.erf)(x.astype(np.float64) * math.sqrt(0.5))
    exact = 0.5 * x.astype(np.float64) * (1 + erf)
    assert np.max(np.abs(native.activation(x, "gelu") - exact) / np.maximum(np.abs(x), 1e-30)) < 2.5e-7


def test_gelu_tanh(native: Ops) -> None:
    x = arguments(8)
    wide = x.astype(np.float64)
    exact = 0.5 * wide * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
    assert np.max(np.abs(native.activation(x, "gelu_tanh") - exact) / np.maximum(np.abs(x), 1e-30)) < 2.5e-7
