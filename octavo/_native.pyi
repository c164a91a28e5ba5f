"""The extension module built from csrc/ (see csrc/README.md); octavo/ops is its only user.

Arrays are checked by the functions themselves: a wrong dtype, shape, layout or index raises ValueError.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_Float = NDArray[np.float32]
_Int = NDArray[np.int32]
_Cache = NDArray[Any]  # see octavo/ops/kv_layout.py
_Routing = tuple[int, bool, bool, float, _Float | None]  # see octavo/ops/native_experts.py
_Scales = NDArray[np.float32] | NDArray[np.uint16]

class Weight:
    """A matrix [out_features, in_features] packed for `linear` and `embedding`."""

    @property
    def out_features(self) -> int: ...
    @property
    def in_features(self) -> int: ...
    @property
    def rounds_inputs(self) -> bool: ...
    def dequantized(self) -> _Float: ...

class PackedWeight(Weight):
    """Parts stacked along the output axis, each in its own format."""

    @property
    def size_bytes(self) -> int: ...

AdapterMatrix = _Float | NDArray[np.uint16] | tuple[NDArray[np.uint8], NDArray[np.uint16]]
LowRank = tuple[AdapterMatrix, AdapterMatrix, float]

class AdapterSlots:
    """The low-rank adapters of one linear layer, by slot.

    put: 16-bit numbers as their bits; int8 as codes plus 128 and scales, float16 as their bits
    """

    def __init__(self, out_sizes: list[int], in_features: int, num_slots: int) -> None: ...
    def put(self, slot: int, type_name: str, adapters: list[LowRank | None]) -> None: ...

class WeightBuilder:
    """Matrices of any format, stacked along the output axis, for one PackedWeight.

    add_groups: codes uint8 with the bias added (128 for 8 bits; 8 for 4 bits without minimums); scales and minimums
        float32, or float16 viewed as uint16
    """

    def __init__(self) -> None: ...
    def add_floats(self, matrix: _Float) -> None: ...
    def add_halves(self, bits: NDArray[np.uint16], is_bfloat: bool) -> None: ...
    def add_blocks(self, type: str, blocks: NDArray[np.uint8]) -> None: ...
    def add_groups(
        self, bits: int, group: int, codes: NDArray[np.uint8], scales: _Scales, minimums: _Scales | None
    ) -> None: ...
    def pack(self) -> PackedWeight: ...

_View = tuple[int, int, int, int, int]  # slot, row stride, offset in the row, heads, columns

class Tape:
    """A list of op calls on one arena; has a method for each op that can be recorded, of which `linear` is an example.

    Arguments: the views that the op reads, those that it makes, and its constants; ids and attention metadata are the
    numbers of replay's arguments.
    """

    def __init__(
        self,
        arena: _Float,
        slots: list[tuple[int, int]],
        num_arguments: int,
        id_dimensions: list[int],
        num_groups: int,
    ) -> None: ...
    def linear(self, x: _View, out: _View, weight: Weight, bias: _Float | None) -> None: ...
    def expert_inputs(
        self,
        x: _View,
        logits: _View,
        out: _View,
        routing: _Routing,
        weights: Sequence[object],
        bias: _Float | None,
        kind: str,
    ) -> None: ...
    def expert_outputs(
        self,
        h: _View,
        logits: _View,
        out: _View,
        routing: _Routing,
        weights: Sequence[object],
        bias: _Float | None,
        widths: list[int],
    ) -> None: ...
    def replay(
        self, num_rows: list[int], ids: list[_Int], arguments: list[_Float], groups: list[list[NDArray[np.integer]]]
    ) -> list[int]: ...
    def set_timing(self, on: bool) -> None: ...
    def times(self) -> list[tuple[str, int]]: ...

class SharedGroup:
    """One rank's end of the shared memory of a group; see octavo/distributed/group.py. Arrays: flat float32."""

    def __init__(
        self, path: str, name: str, rank: int, size: int, slot_floats: int, ring_floats: int, timeout_s: float
    ) -> None: ...
    def all_reduce(self, array: _Float) -> None: ...
    def all_gather(self, x: _Float, widths: list[int]) -> _Float: ...
    def broadcast(self, array: _Float, root: int) -> None: ...
    def send(self, array: _Float) -> None: ...
    def receive(self, array: _Float) -> None: ...
    def barrier(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...

def isa() -> str: ...
def available_isas() -> list[str]: ...
def set_isa(name: str) -> None: ...
def num_threads() -> int: ...
def set_num_threads(count: int) -> None: ...
def linear(x: _Float, weight: Weight, bias: _Float | None) -> _Float: ...
def expert_inputs(
    x: _Float, logits: _Float, routing: _Routing, weights: Sequence[object], bias: _Float | None, kind: str
) -> _Float: ...
def expert_outputs(
    h: _Float, logits: _Float, routing: _Routing, weights: Sequence[object], bias: _Float | None, widths: list[int]
) -> _Float: ...
def embedding(token_ids: _Int, table: Weight) -> _Float: ...
def embedding_share(token_ids: _Int, table: Weight, first_id: int, num_ids: int) -> _Float: ...
def take_rows(x: _Float, rows: _Int) -> _Float: ...
def rms_norm(x: _Float, weight: _Float, eps: float) -> _Float: ...
def add_rms_norm(x: _Float, residual: _Float, weight: _Float, eps: float) -> tuple[_Float, _Float]: ...
def layer_norm(x: _Float, weight: _Float, bias: _Float | None, eps: float) -> _Float: ...
def add(x: _Float, y: _Float) -> _Float: ...
def adapted_embedding(
    token_ids: _Int, table: Weight, first_id: int, num_ids: int, slots: _Int, adapters: AdapterSlots
) -> _Float: ...
def adapted_linear(x: _Float, weight: Weight, bias: _Float | None, slots: _Int, adapters: AdapterSlots) -> _Float: ...
def scale(x: _Float, factor: float) -> _Float: ...
def softcap(x: _Float, cap: float) -> _Float: ...
def activation(x: _Float, kind: str) -> _Float: ...
def act_and_mul(x: _Float, kind: str) -> _Float: ...
def rope(x: _Float, positions: _Int, cos_sin: _Float) -> _Float: ...
def store_kv(key: _Float, value: _Float, cache: _Cache, slot_mapping: NDArray[np.int64]) -> None: ...
def rope_and_store(
    query: _Float,
    key: _Float,
    value: _Float,
    positions: _Int,
    cos_sin: _Float,
    cache: _Cache,
    slot_mapping: NDArray[np.int64],
) -> _Float: ...
def paged_attention(
    query: _Float,
    cache: _Cache,
    query_start: _Int,
    seq_lens: _Int,
    block_table: _Int,
    scale: float,
    sliding_window: int | None,
    softcap: float | None,
    alibi_slopes: _Float | None,
    sinks: _Float | None,
    heads_of_kv: list[int] | None,
) -> _Float: ...
def partial_attention(
    query: _Float,
    cache: _Cache,
    query_start: _Int,
    seq_lens: _Int,
    block_table: _Int,
    scale: float,
    part: int,
    num_parts: int,
    run: int,
) -> _Float: ...
def merge_attention(
    x: _Float, num_parts: int, num_heads: int, first_head: int, end_head: int, head_dim: int
) -> _Float: ...
def encoder_attention(
    query: _Float,
    key: _Float,
    value: _Float,
    query_start: _Int,
    scale: float,
    sliding_window: int | None,
    distance_bias: _Float | None,
) -> _Float: ...
def has_nan(logits: _Float) -> NDArray[np.bool_]: ...
def argmax(logits: _Float) -> _Int: ...
def top_logprobs(logits: _Float, token_ids: _Int, k: int) -> tuple[_Int, _Float, _Int]: ...
def log_softmax(logits: _Float) -> _Float: ...
def apply_penalties(
    logits: _Float,
    row_start: _Int,
    token_ids: _Int,
    output_counts: _Int,
    repetition: _Float,
    frequency: _Float,
    presence: _Float,
) -> None: ...
def apply_bitmask(logits: _Float, bitmask: _Int) -> None: ...
def sample(
    logits: _Float,
    temperature: _Float,
    top_k: _Int,
    top_p: _Float,
    min_p: _Float,
    uniform: NDArray[np.float64],
) -> _Int: ...
