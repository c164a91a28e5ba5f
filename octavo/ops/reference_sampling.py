"""The sampling ops in plain NumPy: the oracle, and the fall-back without the native extension.

Free functions with the contract of `ops/interface.py`; sums run in float64, so that a native result may differ only
where two candidates lie within about 1e-6 (relative) of each other's border.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.ops.interface import Float, Int

Mask = NDArray[np.bool_]
Float64 = NDArray[np.float64]


def has_nan(logits: Float) -> Mask:
    """Return [R] bool: does the row hold a NaN or +inf, or no finite entry? (NumPy's max propagates NaN.)"""
    _check_logits(logits)
    bad: Mask = ~np.isfinite(logits.max(axis=1))
    return bad


def argmax(logits: Float) -> Int:
    """Return [R] int32, the lowest index of each row's maximum; -1 in rows of which `has_nan` is true."""
    _check_logits(logits)
    best: Int = np.where(has_nan(logits), -1, logits.argmax(axis=1)).astype(np.int32)
    return best


def log_softmax(logits: Float) -> Float:
    """Return the log-softmax over the last axis, [R, V]."""
    _check_logits(logits)
    return (logits - _log_normalizer(logits)[:, None]).astype(np.float32)


def top_logprobs(logits: Float, token_ids: Int, k: int) -> tuple[Int, Float, Int]:
    """Return (ids [R, k+1], logprobs [R, k+1], ranks [R]); column 0 is token_ids, then the k most likely."""
    num_rows, vocab_size = _check_logits(logits)
    _check_vector("token_ids", token_ids, num_rows, np.int32)
    _check_ids(token_ids, vocab_size)
    if not 0 <= k <= vocab_size:
        raise ValueError(f"k must be from 0 to {vocab_size}, got {k}")
    ids = np.empty((num_rows, k + 1), np.int32)
    ranks = np.empty(num_rows, np.int32)
    ids[:, 0] = token_ids
    for row in range(num_rows):
        values, token_id = logits[row], token_ids[row]
        ids[row, 1:] = _most_likely(values, k)
        above = np.count_nonzero(values > values[token_id])
        equal_before = np.count_nonzero(values[:token_id] == values[token_id])
        ranks[row] = 1 + above + equal_before
    chosen = np.take_along_axis(logits, ids.astype(np.int64), axis=1)
    return ids, (chosen - _log_normalizer(logits)[:, None]).astype(np.float32), ranks


def apply_penalties(
    logits: Float,
    row_start: Int,
    token_ids: Int,
    output_counts: Int,
    repetition: Float,
    frequency: Float,
    presence: Float,
) -> None:
    """Penalise the seen ids of each row in place; see the interface for the formula and the layout."""
    num_rows, vocab_size = _check_logits(logits)
    _check_vector("row_start", row_start, num_rows + 1, np.int32)
    for name, values in (("repetition", repetition), ("frequency", frequency), ("presence", presence)):
        _check_vector(name, values, num_rows, np.float32)
    lengths = np.diff(row_start)
    if row_start[0] != 0 or (lengths < 0).any():
        raise ValueError("row_start must start at 0 and never fall")
    for name, ints in (("token_ids", token_ids), ("output_counts", output_counts)):
        _check_vector(name, ints, int(row_start[-1]), np.int32)
    _check_ids(token_ids, vocab_size)
    rows = np.repeat(np.arange(num_rows), lengths)
    values = logits[rows, token_ids]
    factors = repetition[rows]
    values = np.where(values > 0, values / factors, values * factors)
    values -= frequency[rows] * output_counts + presence[rows] * (output_counts > 0)
    logits[rows, token_ids] = values


def apply_bitmask(logits: Float, bitmask: Int) -> None:
    """Forbid the ids whose bits are 0, in place; see the interface for the layout."""
    num_rows, vocab_size = _check_logits(logits)
    num_words = -(-vocab_size // 32)
    if bitmask.dtype != np.int32 or bitmask.ndim != 2 or len(bitmask) != num_rows or bitmask.shape[1] < num_words:
        raise ValueError(
            f"bitmask must be int32 [{num_rows}, at least {num_words}], got {bitmask.dtype} {bitmask.shape}"
        )
    words = np.ascontiguousarray(bitmask[:, :num_words]).astype("<i4", copy=False)
    allowed = np.unpackbits(words.view(np.uint8), axis=1, count=vocab_size, bitorder="little")
    logits[allowed == 0] = -np.inf


def sample(logits: Float, temperature: Float, top_k: Int, top_p: Float, min_p: Float, uniform: Float64) -> Int:
    """Draw one id per row, for rows that pass `has_nan`. Ranks are taken before the division, which can make ties."""
    num_rows, _ = _check_logits(logits)
    _check_vector("top_k", top_k, num_rows, np.int32)
    _check_vector("uniform", uniform, num_rows, np.float64)
    for name, values in (("temperature", temperature), ("top_p", top_p), ("min_p", min_p)):
        _check_vector(name, values, num_rows, np.float32)
    token_ids = np.empty(num_rows, np.int32)
    for row in range(num_rows):
        weights = _weights(logits[row], temperature[row])
        weights[~keep_mask(logits[row], weights, int(top_k[row]), float(top_p[row]), float(min_p[row]))] = 0.0
        cumulative = np.cumsum(weights)
        drawn = int(np.searchsorted(cumulative, uniform[row] * cumulative[-1], side="right"))
        token_ids[row] = min(drawn, int(np.flatnonzero(weights)[-1]))
    return token_ids


def filter_logits(logits: Float, temperature: Float, top_k: Int, top_p: Float, min_p: Float) -> Float:
    """Return logits / temperature with -inf for every id that `sample` would never draw; [R, V], a new array."""
    filtered = logits / temperature[:, None]
    for row in range(len(logits)):
        weights = _weights(logits[row], temperature[row])
        kept = keep_mask(logits[row], weights, int(top_k[row]), float(top_p[row]), float(min_p[row]))
        filtered[row, ~kept] = -np.inf
    return filtered


def keep_mask(logits: Float, weights: Float64, top_k: int, top_p: float, min_p: float) -> Mask:
    """Return [V] bool: which ids of one row survive min_p, top_k and top_p.

    weights: [V] exp((logits - max) / temperature), so the largest is 1 and min_p compares with it directly
    """
    kept: Mask = weights >= min_p
    if 0 < top_k < len(logits):
        kept &= logits >= np.partition(logits, -top_k)[-top_k]
    if top_p < 1.0:
        candidates = np.flatnonzero(kept)
        descending = candidates[np.lexsort((candidates, -logits[candidates]))]
        mass = np.cumsum(weights[descending])
        num_kept = int(np.searchsorted(mass, top_p * mass[-1], side="left")) + 1
        kept[descending[num_kept:]] = False
    return kept


def _weights(logits: Float, temperature: np.float32) -> Float64:
    scaled = (logits.astype(np.float64) - logits.max()) / np.float64(temperature)
    weights: Float64 = np.exp(scaled)
    return weights


def _log_normalizer(logits: Float) -> Float64:
    """Return [R] log(sum(exp(logits)))."""
    largest = logits.max(axis=1).astype(np.float64)
    normalizer: Float64 = np.log(np.exp(logits - largest[:, None]).sum(axis=1)) + largest
    return normalizer


def _most_likely(values: Float, k: int) -> NDArray[np.int64]:
    """Return the ids of the k largest values, descending, ties to the lower id; NaN counts as -inf."""
    if k == 0:
        return np.empty(0, np.int64)
    values = np.nan_to_num(values, copy=True, nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    candidates = np.flatnonzero(values >= np.partition(values, -k)[-k])
    chosen: NDArray[np.int64] = candidates[np.lexsort((candidates, -values[candidates]))[:k]]
    return chosen


def _check_logits(logits: Float) -> tuple[int, int]:
    if logits.ndim != 2 or logits.dtype != np.float32 or logits.shape[1] == 0:
        raise ValueError(f"logits must be [R, V] float32 with V > 0, got {logits.shape} {logits.dtype}")
    return logits.shape[0], logits.shape[1]


def _check_vector(name: str, values: NDArray[Any], length: int, dtype: type[np.generic]) -> None:
    if values.shape != (length,) or values.dtype != dtype:
        raise ValueError(f"{name} must be [{length}] {dtype.__name__}, got {values.shape} {values.dtype}")


def _check_ids(token_ids: Int, vocab_size: int) -> None:
    if token_ids.size and (token_ids.min() < 0 or token_ids.max() >= vocab_size):
        raise ValueError(f"token ids must be from 0 to {vocab_size - 1}, got {token_ids.min()} .. {token_ids.max()}")
