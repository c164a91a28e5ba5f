"""add_adapters: the native op against the reference on every instruction set, row by row, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.layers.adapted import AdaptedPart, no_adapters
from octavo.ops.interface import AdapterWeights, Ops
from octavo.ops.reference import ReferenceOps

pytestmark = pytest.mark.native_ops


@pytest.fixture(params=["portable", "avx2", "avx512"])
def native(request: pytest.FixtureRequest) -> Ops:
    from octavo import _native
    from octavo.ops.native import NativeOps

    before = _native.isa()
    if request.param not in _native.available_isas():
        pytest.skip("not on this machine")
    _native.set_isa(request.param)
    request.addfinalizer(lambda: _native.set_isa(before))
    return NativeOps()


def random_weights(
    rng: np.random.Generator, out_sizes: tuple[int, ...], in_features: int, num_slots: int, max_rank: int
) -> AdapterWeights:
    weights = no_adapters(out_sizes, in_features, num_slots, max_rank)
    for slot in range(num_slots):
        for part, size in enumerate(out_sizes):
            rank = int(rng.integers(0, max_rank + 1))
            down, up = rng.normal(size=(rank, in_features)), rng.normal(size=(size, rank))
            AdaptedPart(weights, part).put(slot, down.astype(np.float32), up.astype(np.float32))
    return weights


@pytest.mark.parametrize(
    ("out_sizes", "in_features", "max_rank"), [((33, 7, 1), 45, 5), ((64, 64), 32, 16), ((130,), 1, 1), ((5,), 100, 9)]
)
def test_native_equals_reference_whatever_the_neighbours(native, out_sizes, in_features, max_rank):
    rng = np.random.default_rng(sum(out_sizes))
    weights = random_weights(rng, out_sizes, in_features, 3, max_rank)
    slots = np.array([0, 0, 0, 0, 0, -1, 2, 1, 1, -1, -1, 0, 2], np.int32)
    x = rng.normal(size=(len(slots), in_features)).astype(np.float32)
    before = rng.normal(size=(len(slots), sum(out_sizes))).astype(np.float32)
    y, expected = before.copy(), before.copy()
    native.add_adapters(y, x, slots, weights)
    ReferenceOps().add_adapters(expected, x, slots, weights)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
    assert np.array_equal(y[slots < 0], before[slots < 0])
    assert not np.allclose(y[slots >= 0], before[slots >= 0])
    for row in range(len(slots)):
        alone = before[row : row + 1].copy()
        native.add_adapters(alone, x[row : row + 1], slots[row : row + 1], weights)
        assert np.array_equal(alone[0], y[row])


def test_a_slot_that_is_cleared_or_overwritten_leaves_nothing(native):
    rng = np.random.default_rng(0)
    weights = random_weights(rng, (8, 8), 12, 1, 4)
    x, slots = rng.normal(size=(2, 12)).astype(np.float32), np.zeros(2, np.int32)
    for part in range(2):
        AdaptedPart(weights, part).clear(0)
    y = np.zeros((2, 16), np.float32)
    native.add_adapters(y, x, slots, weights)
    assert not y.any()


@pytest.mark.parametrize("ops", ["native", "reference"])
def test_slots_and_shapes_are_checked(native, ops):
    tested = native if ops == "native" else ReferenceOps()
    weights = no_adapters((8,), 4, 2, 3)
    x, y = np.ones((1, 4), np.float32), np.ones((1, 8), np.float32)
    for bad in (2, -2):
        with pytest.raises(ValueError, match="slots must be from -1 to 1"):
            tested.add_adapters(y, x, np.array([bad], np.int32), weights)
    with pytest.raises(ValueError):
        tested.add_adapters(y, np.ones((1, 5), np.float32), np.zeros(1, np.int32), weights)
    with pytest.raises(ValueError):
        tested.add_adapters(np.ones((1, 7), np.float32), x, np.zeros(1, np.int32), weights)
