"""The closed set of array operations that models, layers and the sampler are written in.

Dimension names: T tokens of the step, R rows (requests), V vocabulary, H hidden, I/O features in/out, Q query heads,
K key/value heads, D head dim, B blocks, S block size. Caches are arrays laid out as `octavo.ops.kv_layout` says.

Contract of every op: results depend on nothing but the row's own inputs (batch invariance): tile over rows, never
change the order of a row's own sums. Arguments are checked here at the border (shape, dtype, index range) and a
violation raises ValueError before any memory is touched. Outputs are new arrays unless the docstring says in place.
Inputs may be strided views as long as the last axis is contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.distributed.group import Group
from octavo.loader.compact import CompactMatrix, HalfMatrix, QuantizedMatrix
from octavo.ops.kv_layout import DealtTokens, KVCache

if TYPE_CHECKING:
    from octavo.ops.tape import ModelFunctions, Tape, TapeLimits

Float = NDArray[np.float32]
Int = NDArray[np.int32]
# "clamped_swiglu" has no value without an `up`, see `Ops.act_and_mul`
Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "clamped_swiglu"]


class Weight(Protocol):
    """A matrix [out_features, in_features] packed for one backend; opaque to layers."""

    @property
    def out_features(self) -> int: ...

    @property
    def in_features(self) -> int: ...

    @property
    def rounds_inputs(self) -> bool:
        """Say whether `linear` rounds its input for this, or for a part of it."""

    def dequantized(self) -> Float:
        """Return the matrix as float32 [out_features, in_features], a copy."""


@dataclass(slots=True)
class AttentionMetadata:
    """Where the step's tokens sit, for one KV cache group. Row r's tokens are query_start[r] .. query_start[r+1] - 1.

    query_start: [R+1] int32
    seq_lens: [R] int32, keys that exist for the row once this step's are stored (computed + scheduled)
    block_table: [R, max_blocks] int32, physical block of each logical block; freed or unused entries are 0 (null block)
    slot_mapping: [T] int64, physical slot block_id * block_size + offset where each token's key and value go

    Query i of row r has position seq_lens[r] - (query_start[r+1] - query_start[r]) + i and sees keys 0 .. position.
    """

    query_start: Int
    seq_lens: Int
    block_table: Int
    slot_mapping: NDArray[np.int64]


class SamplingOps(Protocol):
    """Logits [R, V] float32 throughout; -inf means forbidden."""

    def has_nan(self, logits: Float) -> NDArray[np.bool_]:
        """Return [R] bool: does the row hold a NaN or +inf, or no finite entry?"""

    def argmax(self, logits: Float) -> Int:
        """Return [R] int32, the lowest index of each row's maximum; -1 in rows of which `has_nan` is true."""

    def top_logprobs(self, logits: Float, token_ids: Int, k: int) -> tuple[Int, Float, Int]:
        """Return (ids [R, k+1] int32, logprobs [R, k+1], ranks [R] int32).

        Column 0 is token_ids[r]; columns 1..k the k most likely ids, ties to the lower id. logprob = log-softmax.
        rank = 1 + number of ids with a strictly greater logit + number of lower ids with an equal logit.
        """

    def log_softmax(self, logits: Float) -> Float:
        """Return the log-softmax over the last axis, [R, V]."""

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
        """Penalise logits [R, V] in place. Row r's distinct seen ids are token_ids[row_start[r]:row_start[r+1]].

        output_counts: how often each was generated (0: in the prompt only). For each: l = l / repetition if l > 0 else
        l * repetition; then l -= frequency * count + presence * (count > 0). repetition, frequency, presence: [R].
        """

    def apply_bitmask(self, logits: Float, bitmask: Int) -> None:
        """Set logits [R, V] to -inf where a bit is 0, in place; bit i of bitmask[r, w] is for id 32 w + i of row r.

        bitmask: [R, W] int32 with W >= ceil(V / 32); what is beyond V is not read.
        """

    def sample(
        self, logits: Float, temperature: Float, top_k: Int, top_p: Float, min_p: Float, uniform: NDArray[np.float64]
    ) -> Int:
        """Draw one id per row; temperature [R] > 0, top_k [R] (0 = off), top_p [R], min_p [R], uniform [R] in [0, 1).

        Order: divide by temperature, min_p (keep p >= min_p * max p), top_k (ties at the border kept), top_p (smallest
        set in descending order, ties to the lower id, whose mass reaches top_p; at least one id); then the first id, in
        id order, whose cumulative kept mass exceeds uniform * total kept mass.
        """


@dataclass(frozen=True, slots=True)
class LowRank:
    """A LoRA adapter of one projection: y += scale * up (down x).

    down: [r, I]; up: [O, r]; both of float32, both of the same 16-bit type, or (but for embeddings) both of 8 bits with
        float16 scales and without minimums, down in groups of DOWN_GROUP and up in groups of UP_GROUP
    """

    down: AdapterMatrix
    up: AdapterMatrix
    scale: float

    @property
    def shape(self) -> tuple[int, int]:
        """(O, I)"""
        return matrix_shape(self.up)[0], matrix_shape(self.down)[1]


AdapterMatrix = Float | HalfMatrix | QuantizedMatrix
DOWN_GROUP, UP_GROUP = 32, 16


def matrix_shape(matrix: AdapterMatrix) -> tuple[int, int]:
    """Return (out_features, in_features)."""
    rows, columns = matrix.shape if isinstance(matrix, np.ndarray) else (matrix.out_features, matrix.in_features)
    return rows, columns


@dataclass(frozen=True, slots=True)
class Routing:
    """How a token chooses top_k of E experts, from a logit of each.

    scores: softmax of the logits over all experts, or the sigmoid of each
    bias: [E], added to the scores for the choice alone
    renormalize: the chosen ones' scores are divided by their sum
    scale: what the result is multiplied by

    The best score is chosen first, among equals the lower number.
    """

    top_k: int
    scores: Literal["softmax", "sigmoid"] = "softmax"
    renormalize: bool = False
    scale: float = 1.0
    bias: Float | None = None


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """One projection of every expert, all of one shape. bias: [E, O] or None"""

    weights: tuple[Weight, ...]
    bias: Float | None = None

    @property
    def out_features(self) -> int:
        return self.weights[0].out_features

    @property
    def in_features(self) -> int:
        return self.weights[0].in_features


class ExpertOps(Protocol):
    """Both halves of a mixture of experts. logits: [T, E], from which every token's experts follow (see `Routing`).

    A row's products are those of `linear`, whichever rows go to the same expert.
    """

    def expert_inputs(
        self, x: Float, logits: Float, routing: Routing, experts: ExpertWeights, kind: Activation
    ) -> Float:
        """Return act_and_mul(linear(x, gate and up)) of each chosen expert, best first: x [T, H] -> [T, top_k * I].

        experts: gate and up stacked, [2I, H] each
        """

    def expert_outputs(
        self, h: Float, logits: Float, routing: Routing, experts: ExpertWeights, widths: Sequence[int]
    ) -> Float:
        """Return the sum, in the order of choice, of the chosen experts' outputs times their weights: [T, O].

        h: [T, top_k * I], for each rank what it has of all choices; widths: how many of the I features each rank has
        """


class AdapterSlots(Protocol):
    """The LoRA adapters of one linear layer, by slot; each part of its outputs has its own. Opaque to layers."""

    def put(self, slot: int, adapters: Sequence[LowRank | None]) -> None:
        """Fill a slot: for each part its adapter, all of one type, or None. What is recorded uses it from now on."""


class AdapterOps(Protocol):
    """Layers to which LoRA adapters add. slots: [T], of each row; -1: the row has the bits of the layer itself."""

    def adapter_slots(self, out_sizes: Sequence[int], in_features: int, num_slots: int) -> AdapterSlots:
        """Return empty slots for a layer whose outputs are parts of these sizes."""

    def adapted_embedding(
        self, token_ids: Int, table: Weight, first_id: int, num_ids: int, slots: Int, adapters: AdapterSlots
    ) -> Float:
        """Return embedding_share(token_ids, table, first_id, num_ids) plus each row's adapter of a layer [H, V].

        V: as the table has; to a row whose id it has, its adapter adds column id - first_id.
        """

    def adapted_linear(self, x: Float, weight: Weight, bias: Float | None, slots: Int, adapters: AdapterSlots) -> Float:
        """Return linear(x, weight, bias) plus each row's adapter: x [T, I].

        down sums over I like `linear`, up over ranks in order, both in float32. 8-bit adapters are two quantised
        linear layers: x is rounded in groups of DOWN_GROUP, down x in groups of UP_GROUP. Other slots raise ValueError.
        """


class Ops(SamplingOps, AdapterOps, ExpertOps, Protocol):
    """One backend. See the module docstring for the contract common to all methods."""

    name: str

    def capture(self, functions: ModelFunctions, limits: TapeLimits) -> Tape | None:
        """Record the model's functions for replay; None where this backend only runs op by op.

        Raises UnsupportedError when a function does what cannot be recorded.
        """

    # -- weights ---------------------------------------------------------------------------------------------------

    def pack(self, matrices: Sequence[Float | CompactMatrix]) -> Weight:
        """Pack matrices [O_i, I], stacked along the output axis, for `linear` and `embedding`.

        Each may come in a format of its own and keeps it: no weight is rounded again, and `embedding` and `dequantized`
        give exactly the weights that the format defines.
        """

    # -- rows ------------------------------------------------------------------------------------------------------

    def embedding(self, token_ids: Int, table: Weight) -> Float:
        """Look up token_ids [T] in table [V, H]; return [T, H]. Ids outside 0..V-1 raise ValueError."""

    def embedding_share(self, token_ids: Int, table: Weight, first_id: int, num_ids: int) -> Float:
        """Do the same with a table of some rows only: ids first_id and up. Other ids below num_ids give zeros."""

    def take_rows(self, x: Float, rows: Int) -> Float:
        """Return x[rows]: x [T, H], rows [R]."""

    def linear(self, x: Float, weight: Weight, bias: Float | None = None) -> Float:
        """Return x @ weight.T + bias: x [T, I], bias [O]; result [T, O]. Each output sums over I in index order.

        Where the weight is quantised, each row of x is first rounded per group of the weight's group size (16 or 32;
        the last group filled with zeros): scale = (max - min) / 254, zero = (max + min) / 2,
        code = rint((x - zero) / scale) in -127 .. 127, x = scale * code + zero. A group that holds a NaN or an infinity
        makes every output NaN. Float32 and 16-bit matrices take x as it is.
        """

    def rms_norm(self, x: Float, weight: Float, eps: float) -> Float:
        """Return x / sqrt(mean(x^2) + eps) * weight over the last axis: x [..., H] (2-D or 3-D), weight [H]."""

    def add_rms_norm(self, x: Float, residual: Float, weight: Float, eps: float) -> tuple[Float, Float]:
        """Return (rms_norm(x + residual), x + residual): both [T, H]."""

    def layer_norm(self, x: Float, weight: Float, bias: Float | None, eps: float) -> Float:
        """Return (x - mean) / sqrt(var + eps) * weight + bias over the last axis: x [T, H]."""

    def add(self, x: Float, y: Float) -> Float:
        """Return x + y, same shape."""

    def scale(self, x: Float, factor: float) -> Float:
        """Return x * factor."""

    def softcap(self, x: Float, cap: float) -> Float:
        """Return cap * tanh(x / cap)."""

    def activation(self, x: Float, kind: Activation) -> Float:
        """Return the activation of x [T, I], element by element."""

    def act_and_mul(self, x: Float, kind: Activation) -> Float:
        """Return act(x[:, :I]) * x[:, I:]: x [T, 2I]; result [T, I].

        clamped_swiglu (gpt-oss): with g = min(x[:, :I], 7) and u = x[:, I:] within -7 .. 7, g sigmoid(1.702 g) (u + 1).
        """

    # -- attention -------------------------------------------------------------------------------------------------

    def rope(self, x: Float, positions: Int, cos_sin: Float) -> Float:
        """Rotate the first `rotary_dim` of each head, half-split ("neox") pairing: (x1, x2) = first and second half.

        x [T, heads, D], positions [T], cos_sin [P, rotary_dim]: cosines in the first half of the columns, then sines.
        Result [T, heads, D]. Positions outside 0..P-1 raise ValueError.
        """

    def store_kv(self, key: Float, value: Float, cache: KVCache, slot_mapping: NDArray[np.int64]) -> None:
        """Write key and value [T, K, D] into the cache, in place; slot = block * S + offset.

        The cache's element type rounds them: float16 to the nearest, limited to +-65504; int8 to multiples of a scale
        for each token and head, its largest magnitude / 127. Slots outside 0..B*S-1 raise ValueError. Slots of block 0
        (the null block) are left as they are; the others must be distinct.
        """

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
        """Return rope(query) [T, Q, D], and store rope(key) and value, both [T, K, D]: `rope` and `store_kv` in one."""

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
        """Causal attention of query [T, Q, D] over the cache; result [T, Q * D].

        heads_of_kv [K]: how many query heads, in order, use each key/value head; None: equally many.
        score = scale * q.k; with softcap c: c * tanh(score / c); with alibi_slopes [Q]: score - slope * (p - key), for
        a query at position p, which sees keys max(0, p - sliding_window + 1) .. p. sinks [Q]: a head's sink takes part
        in the softmax as one more score, whose value is zero. Keys are walked in fixed partitions counted from position
        0, so that neither chunk borders nor other rows change a bit of the result.
        """

    def partial_attention(
        self, query: Float, cache: KVCache, metadata: AttentionMetadata, scale: float, dealt: DealtTokens
    ) -> Float:
        """Causal attention over the tokens that the cache has; result [T, Q * (D + 2)], for `merge_attention`.

        Of every head the unnormalised values, the largest score m, and the sum of e^(score - m), which is 0 (and m is
        minus infinity) where a query sees no key. metadata: seq_lens count all tokens of a row, those elsewhere too.
        """

    def merge_attention(self, parts: Float, num_parts: int, num_heads: int, heads: range) -> Float:
        """Join what ranks with parts of the tokens have attended to; result [T, len(heads) * D].

        parts: [T, num_parts * num_heads * (D + 2)], what `partial_attention` gave at each rank; heads: the wanted ones.
        Parts are added in their order.
        """

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
        """Attention in both directions within packed sequences, without a cache; result [T, Q * D].

        query [T, Q, D]; key, value [T, K, D]; Q is a multiple of K. query_start [R+1] int32: sequence r is the tokens
        query_start[r] .. query_start[r+1] - 1. A token sees all tokens of its sequence, or with sliding_window those
        whose distance from it is less than that (itself and sliding_window - 1 on either side). score = scale * q.k,
        plus distance_bias[head, reach - 1 + key - query] if there is distance_bias [Q, 2 * reach - 1], for positions
        key and query in sequences of up to `reach` tokens. Partitions as in paged_attention.
        """

    # -- ranks -----------------------------------------------------------------------------------------------------

    def all_reduce(self, x: Float, group: Group) -> Float:
        """Return the sum of x [T, H] over the group's ranks, added in their order."""

    def all_gather(self, x: Float, group: Group, widths: Sequence[int]) -> Float:
        """Return the ranks' x [T, widths[rank]] side by side, [T, sum of widths]."""
