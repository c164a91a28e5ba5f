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
from octavo.ops.interface import (
    Activation,
    AdapterSlots,
    AttentionMetadata,
    ExpertWeights,
    Float,
    Int,
    Routing,
    Weight,
)
from octavo.ops.kv_layout import DealtTokens, KVCache
from octavo.ops.native_adapters import NativeSlots, packed_slots
from octavo.ops.native_experts import expert_arguments
from octavo.ops.native_tape import NativeTape
from octavo.ops.ranks import summed
from octavo.ops.tape import ModelFunctions, TapeLimits


class NativeOps:
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

    take_rows = staticmethod(_native.take_rows)

    def linear(self, x: Float, weight: Weight, bias: Float | None = None) -> Float:
        return _native.linear(x, _packed(weight), bias)

    def adapter_slots(self, out_sizes: Sequence[int], in_features: int, num_slots: int) -> AdapterSlots:
        return NativeSlots(out_sizes, in_features, num_slots)

    def adapted_embedding(
        self, token_ids: Int, table: Weight, first_id: int, num_ids: int, slots: Int, adapters: AdapterSlots
    ) -> Float:
        return _native.adapted_embedding(token_ids, _packed(table), first_id, num_ids, slots, packed_slots(adapters))

    def adapted_linear(self, x: Float, weight: Weight, bias: Float | None, slots: Int, adapters: AdapterSlots) -> Float:
        return _native.adapted_linear(x, _packed(weight), bias, slots, packed_slots(adapters))

    def expert_inputs(
        self, x: Float, logits: Float, routing: Routing, experts: ExpertWeights, kind: Activation
    ) -> Float:
        return _native.expert_inputs(x, logits, *expert_arguments(routing, experts), kind)

    def expert_outputs(
        self, h: Float, logits: Float, routing: Routing, experts: ExpertWeights, widths: Sequence[int]
    ) -> Float:
        return _native.expert_outputs(h, logits, *expert_arguments(routing, experts), list(widths))

    rms_norm = staticmethod(_native.rms_norm)
    add_rms_norm = staticmethod(_native.add_rms_norm)
    layer_norm = staticmethod(_native.layer_norm)
    add = staticmethod(_native.add)
    scale = staticmethod(_native.scale)
    softcap = staticmethod(_native.softcap)
    activation = staticmethod(_native.activation)
    act_and_mul = staticmethod(_native.act_and_mul)

    # -- attention -------------------------------------------------------------------------------------------------

    rope = staticmethod(_native.rope)
    store_kv = staticmethod(_native.store_kv)
    rope_and_store = staticmethod(_native.rope_and_store)

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
        distance_bias: Float | None = None,
    ) -> Float:
        return _native.encoder_attention(query, key, value, query_start, scale, sliding_window, distance_bias)

    # -- ranks -----------------------------------------------------------------------------------------------------

    all_reduce = staticmethod(summed)

    def all_gather(self, x: Float, group: Group, widths: Sequence[int]) -> Float:
        return group.all_gather(x, widths)

    # -- sampling --------------------------------------------------------------------------------------------------

    has_nan = staticmethod(_native.has_nan)
    argmax = staticmethod(_native.argmax)
    top_logprobs = staticmethod(_native.top_logprobs)
    log_softmax = staticmethod(_native.log_softmax)
    apply_penalties = staticmethod(_native.apply_penalties)
    apply_bitmask = staticmethod(_native.apply_bitmask)
    sample = staticmethod(_native.sample)


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
