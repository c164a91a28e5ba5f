"""The ops in C++ (`octavo._native`, built from csrc/): SIMD kernels on the process's own thread pool.

Every method is one call that releases the GIL; arguments are checked there, at the border, and raise ValueError.
Batch invariance holds to the last bit within one instruction set: a row's result does not depend on the number of rows,
its place among them, or the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from octavo import _native
from octavo.distributed.group import Group
from octavo.loader.compact import BlockMatrix, CompactMatrix, HalfMatrix, QuantizedMatrix
from octavo.ops.interface import Activation, AdapterSlots, AttentionMetadata, Float, Int, Weight
from octavo.ops.kv_layout import DealtTokens, KVCache
from octavo.ops.native_adapters import NativeSlots, packed_slots
from octavo.ops.native_tape import NativeTape
from octavo.ops.ranks import summed
from octavo.ops.tape import ModelFunctions, TapeLimits


class _NativeSampling:
    """See `octavo.ops.interface.SamplingOps`."""

    def has_nan(self, logits: Float) -> NDArray[np.bool_]:
        return _native.has_nan(logits)

    def argmax(self, logits: Float) -> Int:
        return _native.argmax(logits)

    def top_logprobs(self, logits: Float, token_ids: Int, k: int) -> tuple[Int, Float, Int]:
        return _native.top_logprobs(logits, token_ids, k)

    def log_softmax(self, logits: Float) -> Float:
        return _native.log_softmax(logits)

    def apply_penalties(
        self,
        logits: Float,
        row_start: Int,
        token_ids: Int,
        output_counts: Int,
        repetition: Float,
        frequency: Float,
        presence: Float,
    ) -> None:
        _native.apply_penalties(logits, row_start, token_ids, output_counts, repetition, frequency, presence)

    def apply_bitmask(self, logits: Float, bitmask: Int) -> None:
        _native.apply_bitmask(logits, bitmask)

    def sample(
        self, logits: Float, temperature: Float, top_k: Int, top_p: Float, min_p: Float, uniform: NDArray[np.float64]
    ) -> Int:
        return _native.sample(logits, temperature, top_k, top_p, min_p, uniform)


class _NativeAdapters:
    """See `octavo.ops.interface.AdapterOps`."""

    def adapter_slots(self, out_sizes: Sequence[int], in_features: int, num_slots: int) -> AdapterSlots:
        return NativeSlots(out_sizes, in_features, num_slots)

    def adapted_embedding(self, token_ids: Int, table: Weight, slots: Int, adapters: AdapterSlots) -> Float:
        return _native.adapted_embedding(token_ids, _packed(table), slots, packed_slots(adapters))

    def adapted_linear(self, x: Float, weight: Weight, bias: Float | None, slots: Int, adapters: AdapterSlots) -> Float:
        return _native.adapted_linear(x, _packed(weight), bias, slots, packed_slots(adapters))


class NativeOps(_NativeSampling, _NativeAdapters):
    """See `octavo.ops.interface.Ops` for the contract of each method."""

    name = "native"

    def capture(self, functions: ModelFunctions, limits: TapeLimits) -> NativeTape:
        return NativeTape(functions, limits)

    # -- weights ---------------------------------------------------------------------------------------------------

    def pack(self, matrices: Sequence[Float | CompactMatrix]) -> Weight:
        builder = _native.WeightBuilder()
        for matrix in matrices:
            _add_matrix(builder, matrix)
        return builder.pack()

    # -- rows ------------------------------------------------------------------------------------------------------

    def embedding(self, token_ids: Int, table: Weight) -> Float:
        return _native.embedding(token_ids, _packed(table))

    def embedding_share(self, token_ids: Int, table: Weight, first_id: int, num_ids: int) -> Float:
        return _native.embedding_share(token_ids, _packed(table), first_id, num_ids)

    def take_rows(self, x: Float, rows: Int) -> Float:
        return _native.take_rows(x, rows)

    def linear(self, x: Float, weight: Weight, bias: Float | None = None) -> Float:
        return _native.linear(x, _packed(weight), bias)

    def rms_norm(self, x: Float, weight: Float, eps: float) -> Float:
        return _native.rms_norm(x, weight, eps)

    def add_rms_norm(self, x: Float, residual: Float, weight: Float, eps: float) -> tuple[Float, Float]:
        return _native.add_rms_norm(x, residual, weight, eps)

    def layer_norm(self, x: Float, weight: Float, bias: Float | None, eps: float) -> Float:
        return _native.layer_norm(x, weight, bias, eps)

    def add(self, x: Float, y: Float) -> Float:
        return _native.add(x, y)

    def scale(self, x: Float, factor: float) -> Float:
        return _native.scale(x, factor)

    def softcap(self, x: Float, cap: float) -> Float:
        return _native.softcap(x, cap)

    def activation(self, x: Float, kind: Activation) -> Float:
        return _native.activation(x, kind)

    def act_and_mul(self, x: Float, kind: Activation) -> Float:
        return _native.act_and_mul(x, kind)

    # -- attention -------------------------------------------------------------------------------------------------

    def rope(self, x: Float, positions: Int, cos_sin: Float) -> Float:
        return _native.rope(x, positions, cos_sin)

    def store_kv(self, key: Float, value: Float, cache: KVCache, slot_mapping: NDArray[np.int64]) -> None:
        _native.store_kv(key, value, cache, slot_mapping)

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
        return _native.rope_and_store(query, key, value, positions, cos_sin, cache, slot_mapping)

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
        heads_of_kv: Sequence[int] | None = None,
    ) -> Float:
        return _native.paged_attention(
            query,
            cache,
            metadata.query_start,
            metadata.seq_lens,
            metadata.block_table,
            scale,
            sliding_window,
            softcap,
            alibi_slopes,
            sinks,
            None if heads_of_kv is None else list(heads_of_kv),
        )

    def partial_attention(
        self, query: Float, cache: KVCache, metadata: AttentionMetadata, scale: float, dealt: DealtTokens
    ) -> Float:
        rows = (metadata.query_start, metadata.seq_lens, metadata.block_table)
        return _native.partial_attention(query, cache, *rows, scale, dealt.part, dealt.num_parts, dealt.run)

    def merge_attention(self, parts: Float, num_parts: int, num_heads: int, heads: range) -> Float:
        head_dim = parts.shape[1] // (num_parts * num_heads) - 2
        return _native.merge_attention(parts, num_parts, num_heads, heads.start, heads.stop, head_dim)

    def encoder_attention(
        self,
        query: Float,
        key: Float,
        value: Float,
        query_start: Int,
        scale: float,
        sliding_window: int | None = None,
    ) -> Float:
        return _native.encoder_attention(query, key, value, query_start, scale, sliding_window)

    # -- ranks -----------------------------------------------------------------------------------------------------

    def all_reduce(self, x: Float, group: Group) -> Float:
        return summed(x, group)

    def all_gather(self, x: Float, group: Group, widths: Sequence[int]) -> Float:
        return group.all_gather(x, widths)


def _add_matrix(builder: _native.WeightBuilder, matrix: Float | CompactMatrix) -> None:
    if isinstance(matrix, BlockMatrix):
        builder.add_blocks(matrix.type_name, matrix.blocks)
    elif isinstance(matrix, QuantizedMatrix):
        bias = 0 if matrix.codes.dtype == np.uint8 else 128 if matrix.bits == 8 else 8
        codes = matrix.codes.view(np.uint8) + np.uint8(bias) if bias else matrix.codes.view(np.uint8)
        minimums = None if matrix.minimums is None else _as_stored(matrix.minimums)
        builder.add_groups(matrix.bits, matrix.group_size, codes, _as_stored(matrix.scales), minimums)
    elif isinstance(matrix, HalfMatrix):
        builder.add_halves(matrix.bits, matrix.kind == "bfloat16")
    else:
        builder.add_floats(matrix)


def _as_stored(scales: NDArray[np.float32] | NDArray[np.float16]) -> NDArray[np.float32] | NDArray[np.uint16]:
    """Return float16 as its bits, which the extension takes."""
    if scales.dtype == np.float16:
        return scales.view(np.uint16)
    return scales.astype(np.float32, copy=False)


def _packed(weight: Weight) -> _native.Weight:
    if not isinstance(weight, _native.Weight):
        raise ValueError(f"weight must be packed by the native ops, got {type(weight).__name__}")
    return weight
