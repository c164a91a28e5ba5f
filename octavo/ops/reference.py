"""The ops in plain NumPy, float32, as close to their definitions as code can be: the oracle for every other backend.

It also serves where no compiler was there at install time. NumPy's matrix product (BLAS) picks its order of summation
by the shape of the whole product, so this backend alone does not promise batch invariance to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from octavo.distributed.group import Group
from octavo.loader.compact import CompactMatrix
from octavo.ops import kv_layout, reference_adapters, reference_sampling
from octavo.ops.checks import check_array, check_range
from octavo.ops.interface import Activation, AdapterWeights, AttentionMetadata, Float, Int, Weight
from octavo.ops.kv_layout import KVCache, cache_sizes
from octavo.ops.ranks import summed
from octavo.ops.reference_quantized import ReferencePart, reference_part, round_activations
from octavo.ops.tape import ModelFunctions, TapeLimits


@dataclass(frozen=True, slots=True)
class ReferenceWeight:
    """A matrix [out_features, in_features] as parts in float32, stacked along the output axis."""

    parts: tuple[ReferencePart, ...]

    @property
    def out_features(self) -> int:
        return sum(int(part.matrix.shape[0]) for part in self.parts)

    @property
    def in_features(self) -> int:
        return int(self.parts[0].matrix.shape[1])

    def dequantized(self) -> Float:
        return np.concatenate([part.matrix for part in self.parts], axis=0)


class ReferenceOps:
    """See `octavo.ops.interface.Ops` for the contract of each method."""

    name = "reference"

    def capture(self, functions: ModelFunctions, limits: TapeLimits) -> None:
        return None

    # -- weights ---------------------------------------------------------------------------------------------------

    def pack(self, matrices: Sequence[Float | CompactMatrix]) -> Weight:
        if not matrices:
            raise ValueError("pack needs at least one matrix, got none")
        parts = [reference_part(matrix) for matrix in matrices]
        for part in parts:
            check_array("matrix", part.matrix, (None, parts[0].matrix.shape[-1]))
        if all(part.group_size is None for part in parts) and len(parts) > 1:
            # one product rather than several: the same sums as for an unstacked weight
            parts = [ReferencePart(np.concatenate([part.matrix for part in parts], axis=0), None)]
        return ReferenceWeight(tuple(parts))

    # -- rows ------------------------------------------------------------------------------------------------------

    def embedding(self, token_ids: Int, table: Weight) -> Float:
        check_array("token_ids", token_ids, (None,), np.int32)
        check_range("token_ids", token_ids, table.out_features)
        parts = _parts(table)
        return (parts[0].matrix if len(parts) == 1 else table.dequantized())[token_ids]

    def embedding_share(self, token_ids: Int, table: Weight, first_id: int, num_ids: int) -> Float:
        check_array("token_ids", token_ids, (None,), np.int32)
        check_range("token_ids", token_ids, num_ids)
        rows = token_ids - first_id
        own = (rows >= 0) & (rows < table.out_features)
        looked_up = self.embedding(np.where(own, rows, 0).astype(np.int32), table)
        return np.where(own[:, None], looked_up, np.float32(0))

    def take_rows(self, x: Float, rows: Int) -> Float:
        check_array("x", x, (None, None))
        check_array("rows", rows, (None,), np.int32)
        check_range("rows", rows, x.shape[0])
        return x[rows]

    def linear(self, x: Float, weight: Weight, bias: Float | None = None) -> Float:
        check_array("x", x, (None, weight.in_features))
        products: list[Float] = [
            (x if part.group_size is None else round_activations(x, part.group_size)) @ part.matrix.T
            for part in _parts(weight)
        ]
        product = products[0] if len(products) == 1 else np.concatenate(products, axis=1)
        if bias is None:
            return product
        check_array("bias", bias, (weight.out_features,))
        return product + bias

    def add_adapters(self, y: Float, x: Float, slots: Int, weights: AdapterWeights) -> None:
        reference_adapters.add_adapters(y, x, slots, weights)

    def rms_norm(self, x: Float, weight: Float, eps: float) -> Float:
        check_array("x", x, (None,) * (x.ndim if x.ndim in (2, 3) else 2))
        check_array("weight", weight, (x.shape[-1],))
        mean_square = np.mean(x * x, axis=-1, keepdims=True)
        normed: Float = x / np.sqrt(mean_square + np.float32(eps)) * weight
        return normed

    def add_rms_norm(self, x: Float, residual: Float, weight: Float, eps: float) -> tuple[Float, Float]:
        total = self.add(x, residual)
        return self.rms_norm(total, weight, eps), total

    def layer_norm(self, x: Float, weight: Float, bias: Float | None, eps: float) -> Float:
        check_array("x", x, (None, None))
        check_array("weight", weight, (x.shape[-1],))
        centred = x - np.mean(x, axis=-1, keepdims=True)
        variance = np.mean(centred * centred, axis=-1, keepdims=True)
        normed: Float = centred / np.sqrt(variance + np.float32(eps)) * weight
        if bias is None:
            return normed
        check_array("bias", bias, (x.shape[-1],))
        return normed + bias

    def add(self, x: Float, y: Float) -> Float:
        check_array("x", x, (None, None))
        check_array("y", y, x.shape)
        return x + y

    def scale(self, x: Float, factor: float) -> Float:
        check_array("x", x, (None,) * x.ndim)
        return x * np.float32(factor)

    def softcap(self, x: Float, cap: float) -> Float:
        check_array("x", x, (None,) * x.ndim)
        return _softcap(x, cap)

    def activation(self, x: Float, kind: Activation) -> Float:
        check_array("x", x, (None, None))
        return _activate(x, kind)

    def act_and_mul(self, x: Float, kind: Activation) -> Float:
        check_array("x", x, (None, None))
        if x.shape[1] % 2:
            raise ValueError(f"x must have an even number of columns (gate and up), got {x.shape[1]}")
        half = x.shape[1] // 2
        return _activate(x[:, :half], kind) * x[:, half:]

    # -- attention -------------------------------------------------------------------------------------------------

    def rope(self, x: Float, positions: Int, cos_sin: Float) -> Float:
        check_array("x", x, (None, None, None))
        check_array("positions", positions, (x.shape[0],), np.int32)
        check_array("cos_sin", cos_sin, (None, None))
        check_range("positions", positions, cos_sin.shape[0])
        rotary_dim = cos_sin.shape[1]
        if rotary_dim % 2 or rotary_dim > x.shape[2]:
            raise ValueError(f"cos_sin must have an even number of columns up to {x.shape[2]}, got {rotary_dim}")
        half = rotary_dim // 2
        cos, sin = cos_sin[positions, None, :half], cos_sin[positions, None, half:]  # [T, 1, half]
        first, second, rest = x[..., :half], x[..., half:rotary_dim], x[..., rotary_dim:]
        return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)

    def store_kv(self, key: Float, value: Float, cache: KVCache, slot_mapping: NDArray[np.int64]) -> None:
        num_blocks, num_kv_heads, block_size, head_dim = cache_sizes(cache)
        check_array("key", key, (None, num_kv_heads, head_dim))
        check_array("value", value, key.shape)
        check_array("slot_mapping", slot_mapping, (key.shape[0],), np.int64)
        check_range("slot_mapping", slot_mapping, num_blocks * block_size)
        blocks, offsets = np.divmod(slot_mapping, block_size)
        real = blocks > 0
        kv_layout.store(cache, blocks[real], offsets[real], key[real], value[real])

    def rope_and_store(
        self,
        query: Float,
        key: Float,
        value: Float,
        positions: Int,
        cos_sin: Float,
        cache: KVCache,
        slot_mapping: NDArray[np.int64],
    ) -> Float:
        check_array("query", query, (None, None, cache_sizes(cache).head_dim))
        rotated_key = self.rope(key, positions, cos_sin)
        rotated_query = self.rope(query, positions, cos_sin)
        self.store_kv(rotated_key, value, cache, slot_mapping)
        return rotated_query

    def paged_attention(
        self,
        query: Float,
        cache: KVCache,
        metadata: AttentionMetadata,
        scale: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
        alibi_slopes: Float | None = None,
        sinks: Float | None = None,
    ) -> Float:
        _check_attention(query, cache, metadata, sliding_window)
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
            num_blocks = -(-seq_len // cache_sizes(cache).block_size)
            keys, values = kv_layout.gather(cache, metadata.block_table[row, :num_blocks])
            key, value = keys[:, :seq_len], values[:, :seq_len]
            distance = _distances(np.arange(seq_len - (end - start), seq_len), seq_len)
            visible = distance >= 0
            if sliding_window is not None:
                visible &= distance < sliding_window
            scores = _scores(query[start:end], key, scale)
            if softcap is not None:
                scores = _softcap(scores, softcap)
            if alibi_slopes is not None:
                scores -= alibi_slopes[:, None, None] * distance.astype(np.float32)
            result[start:end] = _attend(scores, value, visible, sinks).reshape(end - start, -1)
        return result

    def encoder_attention(
        self,
        query: Float,
        key: Float,
        value: Float,
        query_start: Int,
        scale: float,
        sliding_window: int | None = None,
    ) -> Float:
        num_tokens, num_heads, head_dim = query.shape
        check_array("query", query, (None, None, None))
        check_array("key", key, (num_tokens, None, head_dim))
        check_array("value", value, key.shape)
        check_array("query_start", query_start, (None,), np.int32)
        _check_heads(num_heads, key.shape[1], sliding_window)
        _check_query_start(query_start, num_tokens)
        result = np.empty((num_tokens, num_heads * head_dim), dtype=np.float32)
        for start, end in pairwise(query_start.tolist()):
            if start == end:
                continue
            distance = np.abs(_distances(np.arange(end - start), end - start))
            visible = distance < (end - start if sliding_window is None else sliding_window)
            keys, values = key[start:end].swapaxes(0, 1), value[start:end].swapaxes(0, 1)
            scores = _scores(query[start:end], keys, scale)
            result[start:end] = _attend(scores, values, visible, None).reshape(end - start, -1)
        return result

    # -- ranks -----------------------------------------------------------------------------------------------------

    def all_reduce(self, x: Float, group: Group) -> Float:
        return summed(x, group)

    def all_gather(self, x: Float, group: Group, widths: Sequence[int]) -> Float:
        return group.all_gather(x, widths)

    # -- sampling --------------------------------------------------------------------------------------------------

    has_nan = staticmethod(reference_sampling.has_nan)
    argmax = staticmethod(reference_sampling.argmax)
    top_logprobs = staticmethod(reference_sampling.top_logprobs)
    log_softmax = staticmethod(reference_sampling.log_softmax)
    apply_penalties = staticmethod(reference_sampling.apply_penalties)
    apply_bitmask = staticmethod(reference_sampling.apply_bitmask)
    sample = staticmethod(reference_sampling.sample)


def _parts(weight: Weight) -> tuple[ReferencePart, ...]:
    if not isinstance(weight, ReferenceWeight):
        raise ValueError(f"weight must be packed by the reference ops, got {type(weight).__name__}")
    return weight.parts


def _softcap(x: Float, cap: float) -> Float:
    capped: Float = np.float32(cap) * np.tanh(x / np.float32(cap))
    return capped


# -- activations -------------------------------------------------------------------------------------------------------


def _activate(x: Float, kind: Activation) -> Float:
    function = _ACTIVATIONS.get(kind)
    if function is None:
        raise ValueError(f"activation must be one of {', '.join(_ACTIVATIONS)}, got {kind!r}")
    return function(x)


_erf = np.vectorize(math.erf, otypes=[np.float32])


def _silu(x: Float) -> Float:
    decay: Float = np.exp(-np.abs(x))  # never overflows
    sigmoid: Float = np.where(x >= 0, np.float32(1), decay) / (np.float32(1) + decay)
    return x * sigmoid


def _gelu(x: Float) -> Float:
    cdf: Float = np.float32(0.5) * (np.float32(1) + _erf(x * np.float32(math.sqrt(0.5))))
    return x * cdf


def _gelu_tanh(x: Float) -> Float:
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
    gate: Float = np.float32(0.5) * (np.float32(1) + np.tanh(inner))
    return x * gate


def _relu(x: Float) -> Float:
    return np.maximum(x, np.float32(0))


def _relu2(x: Float) -> Float:
    return _relu(x) * _relu(x)


_ACTIVATIONS: Mapping[Activation, Callable[[Float], Float]] = {
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": _relu,
    "relu2": _relu2,
}


# -- attention's parts -------------------------------------------------------------------------------------------------


def _check_attention(query: Float, cache: KVCache, metadata: AttentionMetadata, sliding_window: int | None) -> None:
    num_blocks, num_kv_heads, block_size, head_dim = cache_sizes(cache)
    check_array("query", query, (None, None, head_dim))
    _check_heads(query.shape[1], num_kv_heads, sliding_window)
    num_rows = metadata.seq_lens.shape[0]
    check_array("seq_lens", metadata.seq_lens, (None,), np.int32)
    check_array("query_start", metadata.query_start, (num_rows + 1,), np.int32)
    check_array("block_table", metadata.block_table, (num_rows, None), np.int32)
    check_range("block_table", metadata.block_table, num_blocks)
    check_range("seq_lens", metadata.seq_lens, metadata.block_table.shape[1] * block_size + 1)
    _check_query_start(metadata.query_start, query.shape[0])
    if (np.diff(metadata.query_start) > metadata.seq_lens).any():
        raise ValueError("seq_lens must count the step's own tokens: a row has more queries than keys")


def _check_heads(num_heads: int, num_kv_heads: int, sliding_window: int | None) -> None:
    if num_kv_heads == 0 or num_heads % num_kv_heads:
        raise ValueError(f"query must have a multiple of {num_kv_heads} heads, got {num_heads}")
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


def _distances(positions: NDArray[np.int64], num_keys: int) -> NDArray[np.int64]:
    """Return [queries, num_keys]: how far before the query at this position the key is."""
    distances: NDArray[np.int64] = positions[:, None] - np.arange(num_keys)[None, :]
    return distances


def _scores(query: Float, key: Float, scale: float) -> Float:
    """query [n, Q, D], key [K, L, D]; return scale * q.k as [Q, n, L]."""
    key = np.repeat(key, query.shape[1] // key.shape[0], axis=0)
    scores: Float = query.transpose(1, 0, 2) @ key.transpose(0, 2, 1) * np.float32(scale)
    return scores


def _attend(scores: Float, value: Float, visible: NDArray[np.bool_], sinks: Float | None) -> Float:
    """Weigh value [K, L, D] by the softmax of scores [Q, n, L] where visible [n, L]; return [n, Q, D]."""
    value = np.repeat(value, scores.shape[0] // value.shape[0], axis=0)  # [Q, L, D]
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
