"""Packing, linear and embedding in C++ against float64 products, and their bits under every tiling."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo import _native
from octavo.ops.interface import Ops
from octavo.ops.reference import ReferenceOps

Array = NDArray[np.float32]

# (tokens, in, out): one element; odd everything; whole panels; several depth blocks; more rows than one row block.
SHAPES = [
    (1, 1, 1),
    (1, 7, 3),
    (2, 33, 65),
    (3, 64, 32),
    (5, 576, 100),
    (7, 100, 31),
    (13, 1030, 97),
    (33, 257, 64),
    (97, 300, 45),
    (200, 513, 130),
]


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def product(x: Array, weight: Array, bias: Array | None = None) -> NDArray[np.float64]:
    result = x.astype(np.float64) @ weight.astype(np.float64).T
    return result if bias is None else result + bias


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear_is_the_product(native: Ops, shape: tuple[int, int, int], with_bias: bool) -> None:
    num_tokens, num_in, num_out = shape
    x, weight, bias = random(num_tokens, num_in), random(num_out, num_in, seed=1), random(num_out, seed=2)
    result = native.linear(x, native.pack([weight]), bias if with_bias else None)
    assert result.shape == (num_tokens, num_out) and result.dtype == np.float32
    error = np.abs(result - product(x, weight, bias if with_bias else None)).max()
    assert error < 4e-7 * num_in + 1e-6


def test_each_output_sums_over_the_inputs_in_index_order(native: Ops) -> None:
    """Every other order of summation gives another result: 1e8 swallows each 1 that comes after it."""
    num_in = 300
    x = np.ones((1, num_in), np.float32)
    weight = np.zeros((40, num_in), np.float32)
    weight[:, :10] = 1
    weight[:, 10], weight[:, 290] = 1e8, -1e8
    weight[:, 11:290] = 1
    expected = np.float32(0)
    for value in weight[0]:
        expected = np.float32(expected + value)
    for rows in (1, 5, 30):
        assert (native.linear(np.repeat(x, rows, 0), native.pack([weight])) == expected).all()


@pytest.mark.parametrize(("num_in", "num_out"), [(300, 130), (576, 96), (1025, 33)])
def test_a_rows_bits_do_not_depend_on_other_rows_or_threads(native: Ops, num_in: int, num_out: int) -> None:
    x, packed = random(230, num_in), native.pack([random(num_out, num_in, seed=1)])
    bias = random(num_out, seed=2)
    whole = native.linear(x, packed, bias)
    for begin, end in [(0, 1), (229, 230), (3, 5), (10, 13), (7, 20), (0, 96), (1, 98), (50, 230)]:
        assert np.array_equal(native.linear(x[begin:end], packed, bias), whole[begin:end])
    assert np.array_equal(native.linear(x[::3], packed, bias), whole[::3])
    for num_threads in (1, 3):
        _native.set_num_threads(num_threads)
        assert np.array_equal(native.linear(x, packed, bias), whole)
        assert np.array_equal(native.linear(x[:4], packed, bias), whole[:4])


def test_matrices_are_stacked_and_come_back_unchanged(native: Ops) -> None:
    parts = [random(50, 37), random(7, 37, seed=1), random(1, 37, seed=2), random(64, 74, seed=3)[:, ::2].copy()]
    packed = native.pack(parts)
    assert (packed.out_features, packed.in_features) == (122, 37)
    assert np.array_equal(packed.dequantized(), np.concatenate(parts))


def test_a_weight_keeps_working_when_the_instruction_set_changes() -> None:
    from octavo.ops.native import NativeOps

    ops, before = NativeOps(), _native.isa()
    x, weight = random(3, 50), random(70, 50, seed=1)
    try:
        _native.set_isa("portable")
        packed = ops.pack([weight])
        result = ops.linear(x, packed)
        _native.set_isa(_native.available_isas()[-1])
        assert np.array_equal(ops.linear(x, packed), result)
        assert np.array_equal(packed.dequantized(), weight)
    finally:
        _native.set_isa(before)


def test_embedding_reads_rows_of_the_packed_table(native: Ops) -> None:
    table = random(201, 65)
    packed = native.pack([table])
    ids = np.array([0, 200, 31, 32, 31, 199], np.int32)
    assert np.array_equal(native.embedding(ids, packed), table[ids])
    assert native.embedding(np.zeros(0, np.int32), packed).shape == (0, 65)


def test_strided_inputs(native: Ops) -> None:
    base, weight = random(20, 3, 64), random(48, 64, seed=1)
    packed = native.pack([weight])
    view = base[::2, 1]
    assert np.array_equal(native.linear(view, packed), native.linear(view.copy(), packed))
    assert np.array_equal(native.linear(base[::-1, 0], packed), native.linear(base[::-1, 0].copy(), packed))
    row = np.broadcast_to(base[0, 0], (15, 64))
    assert np.array_equal(native.linear(row, packed), native.linear(row.copy(), packed))


def test_no_tokens(native: Ops) -> None:
    assert native.linear(np.zeros((0, 8), np.float32), native.pack([random(5, 8)])).shape == (0, 5)


def test_nan_and_infinity_stay_in_their_row(native: Ops) -> None:
    x, packed = random(30, 40), native.pack([random(50, 40, seed=1)])
    clean = native.linear(x, packed)
    x[4, 7], x[5, 0] = np.nan, np.inf
    result = native.linear(x, packed)
    assert np.isnan(result[4]).all() and not np.isfinite(result[5]).any()
    assert np.array_equal(np.delete(result, [4, 5], 0), np.delete(clean, [4, 5], 0))


def test_bad_arguments_are_refused(native: Ops) -> None:
    packed, x = native.pack([random(5, 8)]), random(2, 8)
    with pytest.raises(ValueError, match=r"x must be a float32 array \[\*, 8\].*got float32 \[2, 9\]"):
        native.linear(random(2, 9), packed)
    with pytest.raises(ValueError, match="got float64"):
        native.linear(x.astype(np.float64), packed)
    with pytest.raises(ValueError, match="contiguous"):
        native.linear(random(2, 16)[:, ::2], packed)
    with pytest.raises(ValueError, match=r"got float32 \[8\]"):
        native.linear(x[0], packed)
    with pytest.raises(ValueError, match="got list"):
        native.linear([[1.0] * 8], packed)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"bias must be a float32 array \[5\]"):
        native.linear(x, packed, random(4))
    with pytest.raises(ValueError, match="packed by the native ops, got ReferenceWeight"):
        native.linear(x, ReferenceOps().pack([random(5, 8)]))
    with pytest.raises(ValueError, match="at least one matrix"):
        native.pack([])
    with pytest.raises(ValueError, match="8 input features"):
        native.pack([random(5, 8), random(5, 9)])
    with pytest.raises(ValueError, match="empty"):
        native.pack([random(0, 8)])
    for bad in (-1, 5, 2**31 - 1):
        with pytest.raises(ValueError, match=rf"token_ids must lie in 0..4, got {bad} at index 1"):
            native.embedding(np.array([0, bad], np.int32), packed)
    with pytest.raises(ValueError, match="token_ids must be a int32"):
        native.embedding(np.array([0], np.int64), packed)  # type: ignore[arg-type]


def test_unaligned_and_swapped_arrays_are_refused(native: Ops) -> None:
    packed = native.pack([random(5, 8)])
    unaligned = np.frombuffer(bytes(1 + 2 * 8 * 4), np.uint8)[1:].view(np.float32).reshape(2, 8)
    for bad in (unaligned, random(2, 8).astype(">f4")):
        with pytest.raises(ValueError, match="x must be"):
            native.linear(bad, packed)
