"""Rounding float matrices to 8 and 4 bits per weight, in groups of 32 input features."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from octavo.loader.compact import QuantizedMatrix
from octavo.platforms.cpu import usable_cores

_GROUP_SIZE = 32
_CHUNK = 1 << 17  # weights rounded at a time: the temporary arrays stay in the caches
# Ranges tried for 4 bits, as shares of the group's full range: cutting its ends off makes the steps between finer.
_INT4_RANGES = (0.76, 0.82, 0.88, 0.94, 1.0)


def quantize_int8(values: NDArray[np.float32]) -> QuantizedMatrix:
    """Round to w = scale * code, code in -127 .. 127; scale float16. values: [out_features, in_features]."""
    num_groups = -(-values.shape[1] // _GROUP_SIZE)
    codes = np.empty(values.shape, np.int8)
    scales = np.empty((values.shape[0], num_groups), np.float16)

    def round_rows(rows: slice) -> None:
        groups = _grouped(values[rows])
        chunk_scales = _half_at_least(np.abs(groups).max(axis=-1) / np.float32(127))
        divisor = np.where(chunk_scales > 0, chunk_scales, 1)[..., None].astype(np.float32)
        chunk_codes = np.rint(groups / divisor).clip(-127, 127).astype(np.int8)
        scales[rows] = chunk_scales
        codes[rows] = chunk_codes.reshape(len(groups), -1)[:, : values.shape[1]]

    _in_parallel(round_rows, values)
    return QuantizedMatrix(8, _GROUP_SIZE, codes, scales)


def quantize_int4(values: NDArray[np.float32]) -> QuantizedMatrix:
    """Round to w = scale * code + minimum, code in 0 .. 15, with the range of least squared error of each group.

    Scale and minimum are float16. A matrix whose input features are no multiple of 32 is rounded to 8 bits instead.
    """
    if values.shape[1] % _GROUP_SIZE:
        return quantize_int8(values)
    codes = np.empty(values.shape, np.uint8)
    scales = np.empty((values.shape[0], values.shape[1] // _GROUP_SIZE), np.float16)
    minimums = np.empty_like(scales)

    def round_rows(rows: slice) -> None:
        chunk_codes, scales[rows], minimums[rows] = _round_groups(_grouped(values[rows]))
        codes[rows] = chunk_codes.reshape(-1, values.shape[1])

    _in_parallel(round_rows, values)
    return QuantizedMatrix(4, _GROUP_SIZE, codes, scales, minimums)


def _round_groups(groups: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float16], NDArray[np.float16]]:
    """Return codes [rows, groups, 32], scales and minimums [rows, groups] of the best range tried for each group."""
    high, low = groups.max(axis=-1), groups.min(axis=-1)
    centre, half_range = (high + low) / 2, (high - low) / 2
    best_error = np.full(high.shape, np.inf, np.float32)
    best_scale, best_minimum = np.zeros(high.shape, np.float16), np.zeros(high.shape, np.float16)
    codes, rounded = np.empty_like(groups), np.empty_like(groups)
    for share in _INT4_RANGES:
        scale = (half_range * np.float32(2 * share / 15)).astype(np.float16)
        minimum = (centre - half_range * np.float32(share)).astype(np.float16)
        _codes_of(groups, scale, minimum, out=codes)
        np.multiply(codes, scale[..., None].astype(np.float32), out=rounded)
        rounded += minimum[..., None].astype(np.float32)
        rounded -= groups
        error = np.einsum("rgk,rgk->rg", rounded, rounded)
        better = error < best_error
        best_error = np.where(better, error, best_error)
        best_scale, best_minimum = np.where(better, scale, best_scale), np.where(better, minimum, best_minimum)
    return _codes_of(groups, best_scale, best_minimum, out=codes).astype(np.uint8), best_scale, best_minimum


def _codes_of(
    groups: NDArray[np.float32], scale: NDArray[np.float16], minimum: NDArray[np.float16], out: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return rint((w - minimum) / scale) in 0 .. 15, in `out`; 0 where the scale is 0."""
    inverse = np.float32(1) / np.where(scale > 0, scale, np.float16(1)).astype(np.float32)
    np.subtract(groups, minimum[..., None].astype(np.float32), out=out)
    out *= inverse[..., None]
    np.rint(out, out=out)
    return np.clip(out, 0, 15, out=out)


def _half_at_least(values: NDArray[np.float32]) -> NDArray[np.float16]:
    """Round up, so that the largest weight of a group is not cut off: small scales are coarse in float16."""
    halves = values.astype(np.float16)
    return np.where(halves < values, np.nextafter(halves, np.float16(np.inf)), halves)


def _grouped(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return values [rows, in_features] as [rows, groups, 32], the last group filled with zeros."""
    missing = -values.shape[1] % _GROUP_SIZE
    padded = np.pad(values, ((0, 0), (0, missing))) if missing else values
    return padded.reshape(values.shape[0], -1, _GROUP_SIZE)


def _in_parallel(round_rows: Callable[[slice], None], values: NDArray[np.float32]) -> None:
    """Call it for some rows at a time on every usable core; NumPy works without the interpreter's lock."""
    step = max(1, _CHUNK // max(1, values.shape[1]))
    chunks = [slice(start, start + step) for start in range(0, values.shape[0], step)]
    if len(chunks) == 1:
        round_rows(chunks[0])
        return
    with ThreadPoolExecutor(usable_cores()) as pool:
        list(pool.map(round_rows, chunks))
