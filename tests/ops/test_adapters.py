"""Adapted layers: the native ops against the reference on every instruction set, row by row, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from octavo.loader.compact import HalfMatrix, QuantizedMatrix
from octavo.ops.interface import DOWN_GROUP, UP_GROUP, AdapterSlots, LowRank, Ops
from octavo.ops.reference import ReferenceOps

pytestmark = pytest.mark.native_ops

KINDS = ("float32", "float16", "bfloat16")


@pytest.fixture(params=["portable", "avx2", "avx_vnni", "avx512", "avx512_vnni"])
def native(request: pytest.FixtureRequest) -> Ops:
    from octavo import _native
    from octavo.ops.native import NativeOps

    before = _native.isa()
    if request.param not in _native.available_isas():
        pytest.skip("not on this machine")
    _native.set_isa(request.param)
    request.addfinalizer(lambda: _native.set_isa(before))
    return NativeOps()


def random_adapter(rng: np.random.Generator, kind: str, rank: int, out_features: int, in_features: int) -> LowRank:
    down, up = (rng.normal(size=size).astype(np.float32) for size in ((rank, in_features), (out_features, rank)))
    if kind == "float16" or kind == "bfloat16":
        return LowRank(HalfMatrix.rounded(kind, down), HalfMatrix.rounded(kind, up), 0.75)
    if kind == "int8":
        return LowRank(QuantizedMatrix.rounded(down, DOWN_GROUP), QuantizedMatrix.rounded(up, UP_GROUP), 0.75)
    return LowRank(down, up, 0.75)


def fill(slots: Sequence[AdapterSlots], out_sizes: tuple[int, ...], in_features: int, kind: str, max_rank: int) -> None:
    """Put the same random adapters into slots 0 to 2 of each; some parts have none."""
    rng = np.random.default_rng(max_rank)
    for slot in range(3):
        ranks = rng.integers(0, max_rank + 1, len(out_sizes))
        ranks[slot % len(ranks)] = max_rank
        adapters = [
            random_adapter(rng, kind, rank, size, in_features) if rank else None
            for rank, size in zip(ranks.tolist(), out_sizes, strict=True)
        ]
        for one in slots:
            one.put(slot, adapters)


@pytest.mark.parametrize("kind", (*KINDS, "int8"))
@pytest.mark.parametrize(
    ("out_sizes", "in_features", "max_rank"),
    [((33, 7, 1), 45, 5), ((64, 64), 32, 16), ((130,), 1, 1), ((5,), 102, 9), ((72, 200), 67, 40)],
)
def test_native_equals_reference_whatever_the_neighbours(native, out_sizes, in_features, max_rank, kind):
    rng = np.random.default_rng(sum(out_sizes))
    matrix = rng.normal(size=(sum(out_sizes), in_features)).astype(np.float32)
    bias = rng.normal(size=sum(out_sizes)).astype(np.float32)
    slots = np.array([0, 0, 0, 0, 0, -1, 2, 1, 1, -1, -1, 0, 2, 3], np.int32)
    x = rng.normal(size=(len(slots), in_features)).astype(np.float32)
    reference, weight = ReferenceOps(), native.pack([matrix])
    adapters = [ops.adapter_slots(out_sizes, in_features, 4) for ops in (native, reference)]
    fill(adapters, out_sizes, in_features, kind, max_rank)
    y = native.adapted_linear(x, weight, bias, slots, adapters[0])
    expected = reference.adapted_linear(x, reference.pack([matrix]), bias, slots, adapters[1])
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=2e-3)
    plain = native.linear(x, weight, bias)
    without = (slots < 0) | (slots == 3)  # slot 3 is empty
    assert np.array_equal(y[without], plain[without])
    assert all(not np.allclose(y[row], plain[row]) for row in np.flatnonzero(~without))
    for row in range(len(slots)):
        alone = native.adapted_linear(x[row : row + 1], weight, bias, slots[row : row + 1], adapters[0])
        assert np.array_equal(alone[0], y[row])


@pytest.mark.parametrize("kind", KINDS)
def test_adapters_of_embeddings_equal_the_reference(native, kind):
    rng = np.random.default_rng(1)
    table = rng.normal(size=(50, 70)).astype(np.float32)
    reference, packed = ReferenceOps(), native.pack([table])
    adapters = [ops.adapter_slots((70,), 50, 4) for ops in (native, reference)]
    fill(adapters, (70,), 50, kind, 19)
    ids, slots = rng.integers(0, 50, 9).astype(np.int32), np.array([0, -1, 2, 1, 0, 0, 3, 0, 0], np.int32)
    y = native.adapted_embedding(ids, packed, 0, 50, slots, adapters[0])
    expected = reference.adapted_embedding(ids, reference.pack([table]), 0, 50, slots, adapters[1])
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-4)
    assert np.array_equal(y[[1, 6]], table[ids[[1, 6]]]) and not np.allclose(y, table[ids])
    for row in range(len(ids)):
        alone = native.adapted_embedding(ids[row : row + 1], packed, 0, 50, slots[row : row + 1], adapters[0])
        assert np.array_equal(alone[0], y[row])
    with pytest.raises(ValueError, match="layer"):
        native.adapted_embedding(ids, native.pack([table[:, :69]]), 0, 50, slots, adapters[0])


@pytest.mark.parametrize("rank", [1, 4, 16, 64])
def test_8_bits_change_an_adapter_by_less_than_two_percent(native, rank):
    rng = np.random.default_rng(rank)
    weight, slots = native.pack([np.zeros((300, 500), np.float32)]), np.zeros(20, np.int32)
    x = rng.normal(size=(20, 500)).astype(np.float32)
    exact = random_adapter(rng, "float32", rank, 300, 500)
    coded = LowRank(QuantizedMatrix.rounded(exact.down, DOWN_GROUP), QuantizedMatrix.rounded(exact.up, UP_GROUP), 0.75)
    results = []
    for adapter in (exact, coded):
        adapters = native.adapter_slots((300,), 500, 1)
        adapters.put(0, [adapter])
        results.append(native.adapted_linear(x, weight, None, slots, adapters))
    error = np.linalg.norm(results[1] - results[0]) / np.linalg.norm(results[0])
    assert 1e-4 < error < 0.02


def test_what_is_no_number_stays_none_and_embeddings_take_no_8_bits(native):
    rng = np.random.default_rng(0)
    adapters, slots = native.adapter_slots((20,), 40, 1), np.zeros(2, np.int32)
    adapters.put(0, [random_adapter(rng, "int8", 5, 20, 40)])
    x = np.ones((2, 40), np.float32)
    x[1, 3] = np.nan
    y = native.adapted_linear(x, native.pack([np.zeros((20, 40), np.float32)]), None, slots, adapters)
    assert np.isfinite(y[0]).all() and np.isnan(y[1]).all()
    with pytest.raises(ValueError, match="int8"):
        native.adapted_embedding(slots, native.pack([np.zeros((40, 20), np.float32)]), 0, 40, slots, adapters)


def test_an_adapter_leaves_nothing_to_the_next_in_its_slot(native):
    rng = np.random.default_rng(0)
    weight, x = native.pack([np.ones((150, 12), np.float32)]), rng.normal(size=(2, 12)).astype(np.float32)
    used, fresh = (native.adapter_slots((80, 70), 12, 1) for _ in range(2))
    used.put(0, [random_adapter(rng, "float32", 20, size, 12) for size in (80, 70)])
    used.put(0, [random_adapter(rng, "int8", 9, size, 12) for size in (80, 70)])
    small = [None, random_adapter(rng, "bfloat16", 3, 70, 12)]
    for slots in (used, fresh):
        slots.put(0, small)
    rows = np.zeros(2, np.int32)
    expected = native.adapted_linear(x, weight, None, rows, fresh)
    assert np.array_equal(native.adapted_linear(x, weight, None, rows, used), expected)
    used.put(0, [None, None])
    assert np.array_equal(native.adapted_linear(x, weight, None, rows, used), native.linear(x, weight, None))


@pytest.mark.parametrize("ops", ["native", "reference"])
def test_slots_and_shapes_are_checked(native, ops):
    tested = native if ops == "native" else ReferenceOps()
    adapters = tested.adapter_slots((8,), 4, 2)
    weight, x = tested.pack([np.ones((8, 4), np.float32)]), np.ones((1, 4), np.float32)
    for bad in (2, -2):
        with pytest.raises(ValueError, match="slots must be from -1 to 1"):
            tested.adapted_linear(x, weight, None, np.array([bad], np.int32), adapters)
    for shape in ((7, 4), (8, 5)):
        other = tested.pack([np.ones(shape, np.float32)])
        with pytest.raises(ValueError, match="layer"):
            tested.adapted_linear(np.ones((1, shape[1]), np.float32), other, None, np.zeros(1, np.int32), adapters)


def test_adapters_that_do_not_fit_their_slot_are_refused(native):
    adapters, rng = native.adapter_slots((8,), 4, 2), np.random.default_rng(0)
    mixed = [random_adapter(rng, kind, 2, 8, 4) for kind in ("float16", "bfloat16")]
    with pytest.raises(ValueError, match="one type"):
        native.adapter_slots((8, 8), 4, 2).put(0, mixed)
    for slot, given, text in (
        (2, [mixed[0]], "slot must be from 0 to 1"),
        (0, mixed[:1] * 2, "1 parts"),
        (0, [random_adapter(rng, "float32", 2, 9, 4)], "up"),
        (0, [random_adapter(rng, "float32", 2, 8, 5)], "down"),
    ):
        with pytest.raises(ValueError, match=text):
            adapters.put(slot, given)
