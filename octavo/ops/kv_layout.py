"""How keys and values lie in a cache array, as NumPy sees it; the native side has its own copy of this rule.

A cache is [B, 2, K, S, D] float32 or float16, or [B, 2, K, S, D + 4] int8. The last two axes together are one piece of
memory that belongs to a block and a head: keys (plane 0) as [D, S], so that one element of several keys lies side by
side; values (plane 1) as [S, D]. An int8 piece holds codes and, behind them, S float32 scales: element = code * scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

KVCache = NDArray[Any]

_DTYPES: dict[str, type[np.generic]] = {"float32": np.float32, "float16": np.float16, "int8": np.int8}
_SCALE_BYTES = 4
INT8_MAX = 127
FLOAT16_MAX = 65504.0


class CacheSizes(NamedTuple):
    """Blocks, heads, tokens per block, elements per head."""

    num_blocks: int
    num_kv_heads: int
    block_size: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class DealtTokens:
    """Which of a row's tokens a cache has: of runs of `run` tokens, dealt out in turn to num_parts caches, one part's.

    As it stands: all.
    """

    part: int = 0
    num_parts: int = 1
    run: int = 1

    def count(self, num_tokens: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return how many of a row's first tokens it has."""
        rounds, rest = np.divmod(num_tokens, self.run * self.num_parts)
        dealt: NDArray[np.int32] = rounds * self.run + np.clip(rest - self.part * self.run, 0, self.run)
        return dealt

    def has(self, positions: NDArray[Any]) -> NDArray[np.bool_]:
        """Say of each position whether it has the token there."""
        mine: NDArray[np.bool_] = positions // self.run % self.num_parts == self.part
        return mine


ALL_TOKENS = DealtTokens()


def cache_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(_DTYPES[name])


def cache_shape(sizes: CacheSizes, dtype: np.dtype[Any]) -> tuple[int, int, int, int, int]:
    """Return the shape of a cache array."""
    width = sizes.head_dim + (_SCALE_BYTES if dtype == np.int8 else 0)
    return sizes.num_blocks, 2, sizes.num_kv_heads, sizes.block_size, width


def cache_sizes(cache: KVCache) -> CacheSizes:
    """Return the sizes of a cache array; raises ValueError if it is none."""
    if cache.dtype.type not in _DTYPES.values() or cache.ndim != 5 or cache.shape[1] != 2:
        got = f"{cache.dtype} {list(cache.shape)}"
        raise ValueError(f"cache must be a float32, float16 or int8 array [any, 2, any, any, any], got {got}")
    num_blocks, _, num_kv_heads, block_size, width = cache.shape
    return CacheSizes(num_blocks, num_kv_heads, block_size, width - (_SCALE_BYTES if cache.dtype == np.int8 else 0))


def keys_of(cache: KVCache) -> NDArray[Any]:
    """Return the keys' elements or codes, a view [B, K, S, D]."""
    sizes = cache_sizes(cache)
    flat = _flat(cache, 0)[..., : sizes.block_size * sizes.head_dim]
    return flat.reshape(*flat.shape[:2], sizes.head_dim, sizes.block_size).swapaxes(2, 3)


def values_of(cache: KVCache) -> NDArray[Any]:
    """Return the values' elements or codes, a view [B, K, S, D]."""
    sizes = cache_sizes(cache)
    flat = _flat(cache, 1)[..., : sizes.block_size * sizes.head_dim]
    return flat.reshape(*flat.shape[:2], sizes.block_size, sizes.head_dim)


def scales_of(cache: KVCache, plane: int) -> NDArray[np.float32]:
    """Return the scales of an int8 cache's keys (plane 0) or values (1), a view [B, K, S]."""
    sizes = cache_sizes(cache)
    return _flat(cache, plane)[..., sizes.block_size * sizes.head_dim :].view(np.float32)


def store(cache: KVCache, blocks: NDArray[np.integer], offsets: NDArray[np.integer], key: Any, value: Any) -> None:
    """Write key and value [N, K, D] float32 to N places, rounded to the cache's element type."""
    for plane, (elements, x) in enumerate(((keys_of(cache), key), (values_of(cache), value))):
        if cache.dtype == np.int8:
            codes, scales = _to_int8(x)
            elements[blocks, :, offsets] = codes
            scales_of(cache, plane)[blocks, :, offsets] = scales
        elif cache.dtype == np.float16:
            elements[blocks, :, offsets] = np.clip(x, -FLOAT16_MAX, FLOAT16_MAX)
        else:
            elements[blocks, :, offsets] = x


def gather(cache: KVCache, blocks: NDArray[np.integer]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return keys and values of some blocks as float32, each [K, len(blocks) * S, D]."""
    sizes = cache_sizes(cache)
    gathered = []
    for plane, elements in enumerate((keys_of(cache), values_of(cache))):
        x = elements[blocks].astype(np.float32)
        if cache.dtype == np.int8:
            x *= scales_of(cache, plane)[blocks][..., None]
        gathered.append(x.swapaxes(0, 1).reshape(sizes.num_kv_heads, -1, sizes.head_dim))
    return gathered[0], gathered[1]


def _to_int8(x: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return codes and scales of the last axis: largest magnitude / 127; NaN where x is not finite."""
    largest = np.abs(x).max(axis=-1)
    finite = np.isfinite(largest)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        inverse = np.where((largest > 0) & finite, np.float32(INT8_MAX) / largest, np.float32(0))
        codes = np.rint(np.clip(np.where(finite[..., None], x, 0) * inverse[..., None], -INT8_MAX, INT8_MAX))
    scales = np.where(finite, largest / np.float32(INT8_MAX), np.float32(np.nan)).astype(np.float32)
    return codes.astype(np.int8), scales


def _flat(cache: KVCache, plane: int) -> NDArray[Any]:
    """Return a plane as [B, K, memory of one block and head]."""
    part = cache[:, plane]
    return part.reshape(*part.shape[:2], part.shape[2] * part.shape[3])
