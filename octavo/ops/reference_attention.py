"""Attention in plain NumPy; see `octavo.ops.interface.Ops` for the contract of each function."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from octavo.ops import kv_layout
from octavo.ops.checks import check_array, check_range
from octavo.ops.interface import AttentionMetadata, Float, Int
from octavo.ops.kv_layout import ALL_TOKENS, DealtTokens, KVCache, cache_sizes


def paged_attention(
    query: Float,
    cache: KVCache,
    metadata: AttentionMetadata,
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    alibi_slopes: Float | None = None,
    sinks: Float | None = None,
    heads_of_kv: Sequence[int] | None = None,
) -> Float:
    _check_attention(query, cache, metadata)
    _check_window(sliding_window)
    sizes = cache_sizes(cache)
    counts = _query_heads(query, sizes.num_kv_heads, heads_of_kv)
    num_tokens, num_heads, head_dim = query.shape
    for name, per_head in (("alibi_slopes", alibi_slopes), ("sinks", sinks)):
        if per_head is not None:
            check_array(name, per_head, (num_heads,))
    result = np.empty((num_tokens, num_heads * head_dim), dtype=np.float32)
    starts = metadata.query_start.tolist()
    for row, seq_len in enumerate(metadata.seq_lens.tolist()):
        start, end = starts[row], starts[row + 1]
        if start == end:
            continue
        stored = kv_layout.gather(cache, metadata.block_table[row, : -(-seq_len // sizes.block_size)])
        key, value = (np.repeat(x[:, :seq_len], counts, axis=0) for x in stored)
        distance = _distances(np.arange(seq_len - (end - start), seq_len), seq_len)
        visible = distance >= 0
        if sliding_window is not None:
            visible &= distance < sliding_window
        scores = _scores(query[start:end], key, scale)
        if softcap is not None:
            scores = capped(scores, softcap)
        if alibi_slopes is not None:
            scores -= alibi_slopes[:, None, None] * distance.astype(np.float32)
        result[start:end] = _attend(scores, value, visible, sinks).reshape(end - start, -1)
    return result


def partial_attention(
    query: Float, cache: KVCache, metadata: AttentionMetadata, scale: float, dealt: DealtTokens
) -> Float:
    _check_attention(query, cache, metadata, dealt)
    counts = _query_heads(query, cache_sizes(cache).num_kv_heads, None)
    result = np.zeros((*query.shape[:2], query.shape[2] + 2), np.float32)
    for row, seq_len in enumerate(metadata.seq_lens.tolist()):
        start, end = metadata.query_start[row : row + 2].tolist()
        positions = np.flatnonzero(dealt.has(np.arange(seq_len)))
        stored = kv_layout.gather(cache, metadata.block_table[row])
        key, value = (np.repeat(x[:, : len(positions)], counts, axis=0) for x in stored)
        visible = positions <= np.arange(seq_len - (end - start), seq_len)[:, None]
        scores = np.where(visible, _scores(query[start:end], key, scale), np.float32(-np.inf))
        largest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        weights = np.where(visible, np.exp(scores - np.where(np.isinf(largest), 0, largest)), np.float32(0))
        state = (weights @ value, largest, weights.sum(axis=-1, keepdims=True))
        result[start:end] = np.concatenate(state, axis=-1).transpose(1, 0, 2)
    return result.reshape(query.shape[0], -1)


def merge_attention(parts: Float, num_parts: int, num_heads: int, heads: range) -> Float:
    num_tokens = parts.shape[0]
    state = parts.reshape(num_tokens, num_parts, num_heads, -1)[:, :, heads.start : heads.stop]
    values, largest, total = state[..., :-2], state[..., -2:-1], state[..., -1:]
    factors = np.exp(largest - largest.max(axis=1, keepdims=True))
    merged: Float = (values * factors).sum(axis=1) / (total * factors).sum(axis=1)
    return merged.reshape(num_tokens, -1)


def encoder_attention(
    query: Float,
    key: Float,
    value: Float,
    query_start: Int,
    scale: float,
    sliding_window: int | None = None,
    distance_bias: Float | None = None,
) -> Float:
    num_tokens, num_heads, head_dim = query.shape
    check_array("query", query, (None, None, None))
    check_array("key", key, (num_tokens, None, head_dim))
    check_array("value", value, key.shape)
    check_array("query_start", query_start, (None,), np.int32)
    counts = _query_heads(query, key.shape[1], None)
    _check_window(sliding_window)
    _check_query_start(query_start, num_tokens)
    if distance_bias is not None:
        _check_distance_bias(distance_bias, num_heads, query_start)
    result = np.empty((num_tokens, num_heads * head_dim), dtype=np.float32)
    for start, end in pairwise(query_start.tolist()):
        if start == end:
            continue
        distance = _distances(np.arange(end - start), end - start)
        visible = np.abs(distance) < (end - start if sliding_window is None else sliding_window)
        keys, values = (np.repeat(x[start:end].swapaxes(0, 1), counts, axis=0) for x in (key, value))
        scores = _scores(query[start:end], keys, scale)
        if distance_bias is not None:
            scores += distance_bias[:, (distance_bias.shape[1] - 1) // 2 - distance]
        result[start:end] = _attend(scores, values, visible, None).reshape(end - start, -1)
    return result


def capped(x: Float, cap: float) -> Float:
    """Return cap * tanh(x / cap)."""
    result: Float = np.float32(cap) * np.tanh(x / np.float32(cap))
    return result


# -- parts -------------------------------------------------------------------------------------------------------------


def _check_attention(
    query: Float, cache: KVCache, metadata: AttentionMetadata, dealt: DealtTokens = ALL_TOKENS
) -> None:
    num_blocks, _, block_size, head_dim = cache_sizes(cache)
    check_array("query", query, (None, None, head_dim))
    num_rows = metadata.seq_lens.shape[0]
    check_array("seq_lens", metadata.seq_lens, (None,), np.int32)
    check_array("query_start", metadata.query_start, (num_rows + 1,), np.int32)
    check_array("block_table", metadata.block_table, (num_rows, None), np.int32)
    check_range("block_table", metadata.block_table, num_blocks)
    num_keys = dealt.count(metadata.seq_lens)
    check_range("seq_lens", num_keys, metadata.block_table.shape[1] * block_size + 1)
    _check_query_start(metadata.query_start, query.shape[0])
    if (np.diff(metadata.query_start) > metadata.seq_lens).any():
        raise ValueError("seq_lens must count the step's own tokens: a row has more queries than keys")


def _query_heads(query: Float, num_kv_heads: int, heads_of_kv: Sequence[int] | None) -> int | Sequence[int]:
    """Return how many query heads use each key/value head: one number, or one for each."""
    num_heads = int(query.shape[1])
    if heads_of_kv is None:
        if num_kv_heads == 0 or num_heads % num_kv_heads:
            raise ValueError(f"query must have a multiple of {num_kv_heads} heads, got {num_heads}")
        return num_heads // num_kv_heads
    if len(heads_of_kv) != num_kv_heads or sum(heads_of_kv) != num_heads or min(heads_of_kv) < 1:
        raise ValueError(f"heads_of_kv must divide {num_heads} heads among {num_kv_heads}, got {list(heads_of_kv)}")
    return heads_of_kv


def _check_window(sliding_window: int | None) -> None:
    if sliding_window is not None and sliding_window < 1:
        raise ValueError(f"sliding_window must be at least 1, got {sliding_window}")


def _check_query_start(query_start: Int, num_tokens: int) -> None:
    if (
        len(query_start) == 0
        or query_start[0] != 0
        or query_start[-1] != num_tokens
        or (np.diff(query_start) < 0).any()
    ):
        raise ValueError(f"query_start must rise from 0 to {num_tokens}, got {query_start.tolist()}")


def _check_distance_bias(distance_bias: Float, num_heads: int, query_start: Int) -> None:
    check_array("distance_bias", distance_bias, (num_heads, None))
    reach, rest = divmod(distance_bias.shape[1] + 1, 2)
    if rest:
        raise ValueError(f"distance_bias must have an odd number of columns, got {distance_bias.shape[1]}")
    longest = int(np.diff(query_start).max(initial=0))
    if longest > reach:
        raise ValueError(f"query_start must rise by at most {reach}, got {longest}")


def _distances(positions: NDArray[np.int64], num_keys: int) -> NDArray[np.int64]:
    """Return [queries, num_keys]: how far before the query at this position the key is."""
    distances: NDArray[np.int64] = positions[:, None] - np.arange(num_keys)[None, :]
    return distances


def _scores(query: Float, key: Float, scale: float) -> Float:
    """query [n, Q, D], key [Q, L, D]; return scale * q.k as [Q, n, L]."""
    scores: Float = query.transpose(1, 0, 2) @ key.transpose(0, 2, 1) * np.float32(scale)
    return scores


def _attend(scores: Float, value: Float, visible: NDArray[np.bool_], sinks: Float | None) -> Float:
    """Weigh value [Q, L, D] by the softmax of scores [Q, n, L] where visible [n, L]; return [n, Q, D]."""
    scores = np.where(visible, scores, np.float32(-np.inf))
    largest = scores.max(axis=-1, keepdims=True)
    if sinks is not None:
        largest = np.maximum(largest, sinks[:, None, None])
    weights = np.exp(scores - largest)
    total = weights.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total += np.exp(sinks[:, None, None] - largest)
    weights /= total
    # A page that the window has left may hold anything, NaN too: 0 * NaN must not reach the sum.
    seen: NDArray[np.bool_] = np.logical_or.reduce(visible, axis=0)
    attended: Float = weights @ np.where(seen[:, None], value, np.float32(0))
    return attended.transpose(1, 0, 2)
