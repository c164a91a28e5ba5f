"""The ops in plain NumPy, float32, as close to their definitions as code can be: the oracle for every other backend.

It also serves where no compiler was there at install time. NumPy's matrix product (BLAS) picks its order of summation
by the shape of the whole product, so this backend alone does not promise batch invariance to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.distributed.group import Group
from octavo.loader.compact import CompactMatrix
from octavo.ops import kv_layout, reference_adapters, reference_attention, reference_experts, reference_sampling
from octavo.ops.checks import check_array, check_range
from octavo.ops.interface import Activation, AdapterSlots, ExpertWeights, Float, Int, Routing, Weight
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

    @property
    def rounds_inputs(self) -> bool:
        return any(part.group_size is not None for part in self.parts)

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

    def adapter_slots(self, out_sizes: Sequence[int], in_features: int, num_slots: int) -> AdapterSlots:
        return reference_adapters.ReferenceSlots(out_sizes, in_features, num_slots)

    def adapted_embedding(
        self, token_ids: Int, table: Weight, first_id: int, num_ids: int, slots: Int, adapters: AdapterSlots
    ) -> Float:
        looked_up = self.embedding_share(token_ids, table, first_id, num_ids)
        one_hot = (token_ids[:, None] - first_id == np.arange(table.out_features)).astype(np.float32)
        return reference_adapters.add(looked_up, one_hot, slots, adapters)

    def adapted_linear(self, x: Float, weight: Weight, bias: Float | None, slots: Int, adapters: AdapterSlots) -> Float:
        return reference_adapters.add(self.linear(x, weight, bias), x, slots, adapters)

    def expert_inputs(
        self, x: Float, logits: Float, routing: Routing, experts: ExpertWeights, kind: Activation
    ) -> Float:
        check_array("x", x, (None, experts.in_features))
        check_array("logits", logits, (len(x), len(experts.weights)))
        choices, _ = reference_experts.route(logits, routing)
        rows = np.repeat(x, routing.top_k, axis=0)
        gate_up = reference_experts.chosen(self.linear, rows, choices.reshape(-1), experts)
        return self.act_and_mul(gate_up, kind).reshape(len(x), routing.top_k * experts.out_features // 2)

    def expert_outputs(
        self, h: Float, logits: Float, routing: Routing, experts: ExpertWeights, widths: Sequence[int]
    ) -> Float:
        check_array("logits", logits, (len(h), len(experts.weights)))
        choices, weights = reference_experts.route(logits, routing)
        rows = reference_experts.in_order_of_choice(h, routing.top_k, widths)
        products = reference_experts.chosen(self.linear, rows, choices.reshape(-1), experts)
        weighed = products.reshape(*choices.shape, experts.out_features) * weights[..., None]
        total: Float = weighed.sum(axis=1)
        return total

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
        return reference_attention.capped(x, cap)

    def activation(self, x: Float, kind: Activation) -> Float:
        check_array("x", x, (None, None))
        return _activate(x, kind)

    def act_and_mul(self, x: Float, kind: Activation) -> Float:
        check_array("x", x, (None, None))
        if x.shape[1] % 2:
            raise ValueError(f"x must have an even number of columns (gate and up), got {x.shape[1]}")
        gate, up = np.split(x, 2, axis=1)
        if kind != "clamped_swiglu":
            return _activate(gate, kind) * up
        gate, up = np.minimum(gate, np.float32(7)), np.clip(up, np.float32(-7), np.float32(7))
        slope = np.float32(1.702)
        return _silu(gate * slope) / slope * (up + np.float32(1))

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

    paged_attention = staticmethod(reference_attention.paged_attention)
    partial_attention = staticmethod(reference_attention.partial_attention)
    merge_attention = staticmethod(reference_attention.merge_attention)
    encoder_attention = staticmethod(reference_attention.encoder_attention)

    # -- ranks -----------------------------------------------------------------------------------------------------

    all_reduce = staticmethod(summed)

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
