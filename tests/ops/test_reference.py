"""The reference ops against PyTorch's definitions and by-hand cases, and their border checks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from octavo.ops.interface import AttentionMetadata, Ops
from octavo.ops.kv_layout import keys_of, values_of
from octavo.ops.reference import ReferenceOps

OPS = ReferenceOps()
Array = NDArray[np.float32]


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def close(actual: Array, expected: Any, tolerance: float = 1e-5) -> None:
    assert actual.dtype == np.float32
    np.testing.assert_allclose(actual, np.asarray(expected), rtol=tolerance, atol=tolerance)


def test_it_is_a_whole_backend() -> None:
    methods = [name for name in vars(Ops) if not name.startswith("_") and callable(getattr(Ops, name))]
    assert len(methods) > 15
    assert all(callable(getattr(OPS, name, None)) for name in methods)


# -- weights and rows --------------------------------------------------------------------------------------------------


def test_packed_matrices_are_stacked_by_output() -> None:
    a, b = random(3, 4), random(5, 4, seed=1)
    weight = OPS.pack([a, b])
    assert (weight.out_features, weight.in_features) == (8, 4)
    copy = weight.dequantized()
    np.testing.assert_array_equal(copy, np.concatenate([a, b]))
    copy[:] = 0
    np.testing.assert_array_equal(weight.dequantized()[:3], a)


def test_linear_and_embedding_read_one_weight() -> None:
    weight, x, bias = OPS.pack([random(7, 4)]), random(3, 4, seed=1), random(7, seed=2)
    expected = F.linear(torch.tensor(x), torch.tensor(weight.dequantized()), torch.tensor(bias))
    close(OPS.linear(x, weight, bias), expected)
    close(OPS.linear(x, weight), expected - torch.tensor(bias))
    np.testing.assert_array_equal(OPS.embedding(np.array([6, 0, 6], np.int32), weight), weight.dequantized()[[6, 0, 6]])


def test_take_rows_may_repeat_and_reorder() -> None:
    x = random(4, 3)
    np.testing.assert_array_equal(OPS.take_rows(x, np.array([3, 0, 3], np.int32)), x[[3, 0, 3]])


@pytest.mark.parametrize("shape", [(5, 16), (5, 3, 16)])
def test_rms_norm(shape: tuple[int, ...]) -> None:
    x, weight = random(*shape), random(16, seed=1)
    close(OPS.rms_norm(x, weight, 0.1), F.rms_norm(torch.tensor(x), (16,), torch.tensor(weight), 0.1))


def test_add_rms_norm_returns_the_norm_and_the_sum() -> None:
    x, residual, weight = random(5, 16), random(5, 16, seed=1), random(16, seed=2)
    normed, total = OPS.add_rms_norm(x, residual, weight, 0.1)
    np.testing.assert_array_equal(total, x + residual)
    np.testing.assert_array_equal(normed, OPS.rms_norm(total, weight, 0.1))


def test_layer_norm_with_and_without_bias() -> None:
    x, weight, bias = random(5, 16) + 3, random(16, seed=1), random(16, seed=2)
    close(
        OPS.layer_norm(x, weight, bias, 0.1),
        F.layer_norm(torch.tensor(x), (16,), torch.tensor(weight), torch.tensor(bias), 0.1),
    )
    close(OPS.layer_norm(x, weight, None, 0.1), F.layer_norm(torch.tensor(x), (16,), torch.tensor(weight), None, 0.1))


def test_element_wise_ops() -> None:
    x, y = random(3, 4), random(3, 4, seed=1)
    np.testing.assert_array_equal(OPS.add(x, y), x + y)
    np.testing.assert_array_equal(OPS.scale(x, 0.3), x * np.float32(0.3))
    close(OPS.softcap(100 * x, 30.0), 30 * torch.tanh(torch.tensor(100 * x) / 30))


ACTIVATIONS = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x) ** 2,
}


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activations_up_to_large_arguments(kind: Any) -> None:
    x = np.concatenate([random(4, 8), 100 * random(4, 8, seed=1), np.full((1, 8), -3e38, np.float32)])
    expected = ACTIVATIONS[kind](torch.tensor(x))
    with np.errstate(over="ignore"):  # (-3e38)^3
        close(OPS.activation(x, kind), expected)
        gated = OPS.act_and_mul(np.concatenate([x[:4], x[4:8]], axis=1), kind)
    close(gated, expected[:4] * torch.tensor(x[4:8]))


def test_the_clamped_gate_is_gpt_oss_s() -> None:
    x = np.concatenate([10 * random(6, 8), np.array([[np.inf, -np.inf, 7, -7, np.nan, 0, 1, 1]], np.float32)])
    gate, up = torch.tensor(x)[:, :4].clamp(max=7.0), torch.tensor(x)[:, 4:].clamp(-7.0, 7.0)
    expected = (up + 1) * gate * torch.sigmoid(gate * 1.702)
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(OPS.act_and_mul(x, "clamped_swiglu"), expected, rtol=1e-5, atol=1e-5)


# -- attention ---------------------------------------------------------------------------------------------------------


def test_rope_rotates_pairs_of_the_first_dimensions_and_keeps_the_rest() -> None:
    x, angles = random(3, 2, 10), random(20, 3, seed=1)
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    positions = np.array([19, 0, 7], np.int32)
    rotated = OPS.rope(x, positions, table)
    for token, position in enumerate(positions):
        for head in range(2):
            for pair in range(3):
                turned = complex(x[token, head, pair], x[token, head, pair + 3]) * np.exp(1j * angles[position, pair])
                close(rotated[token, head, [pair, pair + 3]], [turned.real, turned.imag])
    np.testing.assert_array_equal(rotated[..., 6:], x[..., 6:])


def test_store_kv_writes_the_named_slots_and_nothing_else() -> None:
    cache = np.zeros((3, 2, 2, 4, 5), np.float32)
    key, value = random(3, 2, 5), random(3, 2, 5, seed=1)
    OPS.store_kv(key, value, cache, np.array([11, 4, 6], np.int64))
    for token, (block, offset) in enumerate([(2, 3), (1, 0), (1, 2)]):
        np.testing.assert_array_equal(cache[block, 0].reshape(2, 5, 4)[:, :, offset], key[token])
        np.testing.assert_array_equal(cache[block, 1, :, offset], value[token])
    assert np.count_nonzero(cache) == key.size + value.size


class Paged:
    """Rows of random lengths whose keys and values lie in shuffled pages; every other slot is NaN."""

    def __init__(self, query_lens: list[int], seq_lens: list[int], block_size: int = 4, kv_heads: int = 2) -> None:
        rng = np.random.default_rng(3)
        self.query_lens, self.seq_lens = query_lens, seq_lens
        self.query = random(sum(query_lens), 6, 8)
        self.keys = [random(kv_heads, n, 8, seed=10 + i) for i, n in enumerate(seq_lens)]
        self.values = [random(kv_heads, n, 8, seed=50 + i) for i, n in enumerate(seq_lens)]
        blocks = [-(-n // block_size) for n in seq_lens]
        order = (rng.permutation(sum(blocks)) + 1).tolist()
        self.cache = np.full((sum(blocks) + 1, 2, kv_heads, block_size, 8), np.nan, np.float32)
        table = np.zeros((len(seq_lens), max(blocks) + 1), np.int32)
        for row, n in enumerate(seq_lens):
            ids = [order.pop() for _ in range(blocks[row])]
            table[row, : len(ids)] = ids
            for position in range(n):
                block, offset = ids[position // block_size], position % block_size
                keys_of(self.cache)[block, :, offset] = self.keys[row][:, position]
                values_of(self.cache)[block, :, offset] = self.values[row][:, position]
        self.metadata = AttentionMetadata(
            query_start=np.cumsum([0, *query_lens], dtype=np.int32),
            seq_lens=np.array(seq_lens, np.int32),
            block_table=table,
            slot_mapping=np.zeros(sum(query_lens), np.int64),
        )

    def expected(
        self, scale: float, window: int | None, softcap: float | None, slopes: Array | None, sinks: Array | None
    ) -> Array:
        """Attend one query at a time, in float64."""
        rows = []
        for row, (num_queries, seq_len) in enumerate(zip(self.query_lens, self.seq_lens, strict=True)):
            for i in range(num_queries):
                position = seq_len - num_queries + i
                first = 0 if window is None else max(0, position - window + 1)
                token = len(rows)
                heads = []
                for head in range(6):
                    kv = head // (6 // self.keys[row].shape[0])
                    keys = self.keys[row][kv, first : position + 1].astype(np.float64)
                    scores = scale * keys @ self.query[token, head]
                    if softcap is not None:
                        scores = softcap * np.tanh(scores / softcap)
                    if slopes is not None:
                        scores += slopes[head] * (np.arange(first, position + 1) - position)
                    weights = np.exp(scores)
                    total = weights.sum() + (0 if sinks is None else np.exp(float(sinks[head])))
                    heads.append(weights / total @ self.values[row][kv, first : position + 1])
                rows.append(np.concatenate(heads))
        return np.array(rows)


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (1, None), (5, None), (9, 2.0), (None, 0.5)])
@pytest.mark.parametrize("per_head", ["", "slopes", "sinks", "slopes and sinks"])
def test_paged_attention_is_attention_over_the_rows_own_keys(
    kv_heads: int, window: int | None, softcap: float | None, per_head: str
) -> None:
    paged = Paged([3, 1, 0, 11, 4], [3, 14, 0, 20, 13], kv_heads=kv_heads)
    slopes = np.float32(0.5) ** np.arange(6, dtype=np.float32) if "slopes" in per_head else None
    sinks = np.linspace(-3, 6, 6, dtype=np.float32) if "sinks" in per_head else None
    out = OPS.paged_attention(paged.query, paged.cache, paged.metadata, 0.3, window, softcap, slopes, sinks)
    close(out, paged.expected(0.3, window, softcap, slopes, sinks))


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize("window", [None, 1, 4, 100])
def test_encoder_attention_sees_both_sides_of_its_own_sequence(kv_heads: int, window: int | None) -> None:
    lengths = [5, 0, 1, 12]
    query, key, value = random(18, 6, 8), random(18, kv_heads, 8, seed=1), random(18, kv_heads, 8, seed=2)
    starts = np.cumsum([0, *lengths], dtype=np.int32)
    out = OPS.encoder_attention(query, key, value, starts, 0.3, window)
    for start, length in zip(starts, lengths, strict=False):
        part = slice(start, start + length)
        q, k, v = (torch.from_numpy(x[part]).transpose(0, 1)[None] for x in (query, key, value))
        distance = (torch.arange(length)[:, None] - torch.arange(length)[None, :]).abs()
        mask = distance < (window or 10**6)
        expected = F.scaled_dot_product_attention(q, k, v, mask, scale=0.3, enable_gqa=True)
        close(out[part], expected[0].transpose(0, 1).reshape(length, 48))


def test_pages_that_the_window_has_left_are_not_read() -> None:
    paged = Paged([2, 5], [30, 21])
    before = OPS.paged_attention(paged.query, paged.cache, paged.metadata, 0.3, 6)
    for row, (seq_len, num_queries) in enumerate([(30, 2), (21, 5)]):
        freed = (seq_len - num_queries - 6 + 1) // 4
        paged.cache[paged.metadata.block_table[row, :freed]] = np.nan
        paged.metadata.block_table[row, :freed] = 0
        assert freed >= 2
    np.testing.assert_array_equal(OPS.paged_attention(paged.query, paged.cache, paged.metadata, 0.3, 6), before)


def test_strided_views_are_accepted() -> None:
    projected = random(5, 10 * 8).reshape(5, 10, 8)
    query, value = projected[:, :6], projected[:, 8:]
    table = np.concatenate([np.ones((9, 4), np.float32), np.zeros((9, 4), np.float32)], axis=1)
    np.testing.assert_array_equal(OPS.rope(query, np.arange(5, dtype=np.int32), table), query)
    cache = np.zeros((3, 2, 2, 4, 8), np.float32)
    OPS.store_kv(value, value, cache, np.arange(4, 9))
    np.testing.assert_array_equal(keys_of(cache)[1, :, 0], value[0])
    np.testing.assert_array_equal(OPS.rms_norm(query, np.ones(8, np.float32), 1e-6).shape, query.shape)


# -- border checks -----------------------------------------------------------------------------------------------------

F32, I32, I64 = np.float32, np.int32, np.int64
WEIGHT = OPS.pack([random(7, 4)])
CACHE = np.zeros((3, 2, 2, 4, 8), F32)
KV = np.zeros((2, 2, 8), F32)


def meta(**changes: Any) -> AttentionMetadata:
    values = dict(
        query_start=np.array([0, 2], I32),
        seq_lens=np.array([2], I32),
        block_table=np.array([[1, 2]], I32),
        slot_mapping=np.array([4, 5], I64),
    )
    return AttentionMetadata(**{**values, **changes})


def attend(query: Any = None, **changes: Any) -> Array:
    return OPS.paged_attention(np.zeros((2, 4, 8), F32) if query is None else query, CACHE, meta(**changes), 1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: OPS.pack([]), "at least one"),
        (lambda: OPS.pack([random(2, 3), random(2, 4)]), r"\[any, 3\], got \[2, 4\]"),
        (lambda: OPS.pack([random(2, 3).astype(np.float64)]), "float32, got float64"),
        (lambda: OPS.embedding(np.array([0, 7], I32), WEIGHT), r"0\.\.6, got 0\.\.7"),
        (lambda: OPS.embedding(np.array([-1], I32), WEIGHT), r"got -1\.\.-1"),
        (lambda: OPS.embedding(np.array([0], I64), WEIGHT), "int32, got int64"),
        (lambda: OPS.take_rows(random(3, 2), np.array([3], I32)), "rows"),
        (lambda: OPS.linear(random(3, 5), WEIGHT), r"\[any, 4\], got \[3, 5\]"),
        (lambda: OPS.linear(random(4, 3).T, WEIGHT), "contiguous in its last axis"),
        (lambda: OPS.linear(random(3, 4), WEIGHT, random(4)), "bias"),
        (lambda: OPS.rms_norm(random(3, 4), random(3), 1e-6), "weight"),
        (lambda: OPS.add(random(3, 4), random(3, 5)), "y must"),
        (lambda: OPS.act_and_mul(random(3, 5), "silu"), "even number"),
        (lambda: OPS.activation(random(3, 4), "tanh"), "one of silu"),  # type: ignore[arg-type]
        (lambda: OPS.rope(random(2, 1, 4), np.array([0, 5], I32), random(5, 4)), r"positions must be in 0\.\.4"),
        (lambda: OPS.rope(random(2, 1, 4), np.array([0, -1], I32), random(5, 4)), "positions"),
        (lambda: OPS.rope(random(2, 1, 4), np.array([0, 1], I32), random(5, 6)), "even number of columns up to 4"),
        (lambda: OPS.store_kv(KV, KV, CACHE, np.array([0, 12], I64)), r"slot_mapping must be in 0\.\.11"),
        (lambda: OPS.store_kv(KV, KV[:, :1], CACHE, np.array([0, 1], I64)), "value"),
        (lambda: OPS.store_kv(KV, KV, CACHE, np.array([0], I64)), "slot_mapping"),
        (lambda: attend(np.zeros((2, 3, 8), F32)), "multiple of 2 heads"),
        (lambda: attend(block_table=np.array([[1, 3]], I32)), "block_table"),
        (lambda: attend(seq_lens=np.array([9], I32)), r"seq_lens must be in 0\.\.8"),
        (lambda: attend(seq_lens=np.array([1], I32)), "more queries than keys"),
        (lambda: attend(query_start=np.array([0, 3], I32)), "rise from 0 to 2"),
        (lambda: attend(query_start=np.array([1, 2], I32)), "rise from 0 to 2"),
        (lambda: OPS.paged_attention(np.zeros((2, 4, 8), F32), CACHE, meta(), 1.0, 0), "sliding_window"),
        (lambda: OPS.paged_attention(random(2, 4, 8), CACHE, meta(), 1.0, alibi_slopes=random(3)), r"slopes.*\[4\]"),
        (lambda: OPS.paged_attention(random(2, 4, 8), CACHE, meta(), 1.0, sinks=random(5)), r"sinks.*\[4\]"),
        (lambda: OPS.encoder_attention(random(2, 3, 8), KV, KV, np.array([0, 2], I32), 1.0), "multiple of 2 heads"),
        (lambda: OPS.encoder_attention(KV, KV, KV, np.array([0, 3], I32), 1.0), "rise from 0 to 2"),
        (lambda: OPS.encoder_attention(KV, KV, KV, np.array([], I32), 1.0), "rise from 0 to 2"),
        (lambda: OPS.encoder_attention(KV, KV[:1], KV, np.array([0, 2], I32), 1.0), "key"),
        (lambda: OPS.encoder_attention(KV, KV, KV, np.array([0, 2], I32), 1.0, 0), "sliding_window"),
    ],
)
def test_wrong_arguments_are_refused_at_the_border(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
    assert not CACHE.any()
