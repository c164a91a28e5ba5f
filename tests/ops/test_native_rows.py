"""Norms, element-wise functions, gathering and rotary embedding in C++ against the reference, and their bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo import _native
from octavo.ops.interface import Activation, Ops
from octavo.ops.reference import ReferenceOps

Array = NDArray[np.float32]
REFERENCE = ReferenceOps()
KINDS: list[Activation] = ["silu", "gelu", "gelu_tanh", "relu", "relu2"]
WIDTHS = [1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 576]


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def close(actual: Array, expected: Array, tolerance: float = 3e-6) -> None:
    assert actual.dtype == np.float32 and actual.flags.c_contiguous
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("width", WIDTHS)
def test_ops_agree_with_the_reference(native: Ops, width: int) -> None:
    x, y, weight, bias = random(5, width), random(5, width, seed=1), random(width, seed=2), random(width, seed=3)
    close(native.rms_norm(x, weight, 1e-5), REFERENCE.rms_norm(x, weight, 1e-5))
    close(native.layer_norm(x, weight, bias, 1e-2), REFERENCE.layer_norm(x, weight, bias, 1e-2))
    close(native.layer_norm(x, weight, None, 1e-2), REFERENCE.layer_norm(x, weight, None, 1e-2))
    normed, total = native.add_rms_norm(x, y, weight, 1e-6)
    expected_normed, expected_total = REFERENCE.add_rms_norm(x, y, weight, 1e-6)
    close(normed, expected_normed)
    assert np.array_equal(total, expected_total)
    assert np.array_equal(native.add(x, y), x + y)
    assert np.array_equal(native.scale(x, 1.7), x * np.float32(1.7))
    close(native.softcap(x * 10, 3.0), REFERENCE.softcap(x * 10, 3.0))
    for kind in KINDS:
        close(native.activation(x * 4, kind), REFERENCE.activation(x * 4, kind))
        gate_up = random(5, 2 * width, seed=4) * 4
        close(native.act_and_mul(gate_up, kind), REFERENCE.act_and_mul(gate_up, kind), 1e-5)
    close(native.act_and_mul(gate_up * 4, "clamped_swiglu"), REFERENCE.act_and_mul(gate_up * 4, "clamped_swiglu"), 1e-5)


def test_norms_and_maps_take_heads_as_rows(native: Ops) -> None:
    """Query and key norms see [T, heads, D] views into a larger buffer."""
    fused = random(6, 5 * 24)
    heads = fused[:, 24:96].reshape(6, 3, 24)
    view = fused.reshape(6, 5, 24)[:, 1:4]
    weight = random(24, seed=1)
    assert np.array_equal(native.rms_norm(view, weight, 1e-5), native.rms_norm(heads.copy(), weight, 1e-5))
    close(native.rms_norm(view, weight, 1e-5), REFERENCE.rms_norm(view, weight, 1e-5))
    assert np.array_equal(native.scale(view, 2.0), view * 2)
    assert np.array_equal(native.scale(fused[0], 2.0), fused[0] * 2)


@pytest.mark.parametrize(
    ("heads", "head_dim", "rotary_dim"), [(1, 2, 2), (3, 64, 64), (2, 80, 20), (4, 10, 6), (2, 5, 0)]
)
def test_rope_agrees_with_the_reference(native: Ops, heads: int, head_dim: int, rotary_dim: int) -> None:
    angles = random(50, rotary_dim // 2)
    cos_sin = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    positions = np.array([0, 49, 7, 7], np.int32)
    x = random(4, heads + 2, head_dim, seed=1)[:, 1:-1]
    close(native.rope(x, positions, cos_sin), REFERENCE.rope(x, positions, cos_sin))


def test_take_rows(native: Ops) -> None:
    x = random(9, 3, 33)[:, 1]
    rows = np.array([8, 0, 0, 3], np.int32)
    assert np.array_equal(native.take_rows(x, rows), x[rows])
    assert native.take_rows(x, rows[:0]).shape == (0, 33)


def test_a_rows_bits_do_not_depend_on_other_rows_or_threads(native: Ops) -> None:
    x, y, weight = random(400, 577), random(400, 577, seed=1), random(577, seed=2)
    gate_up = random(400, 2 * 577, seed=3)
    calls: list[Callable[[slice], Array]] = [
        lambda rows: native.rms_norm(x[rows], weight, 1e-5),
        lambda rows: native.add_rms_norm(x[rows], y[rows], weight, 1e-5)[0],
        lambda rows: native.layer_norm(x[rows], weight, weight, 1e-5),
        lambda rows: native.softcap(x[rows], 5.0),
        *(lambda rows, kind=kind: native.act_and_mul(gate_up[rows], kind) for kind in KINDS),  # type: ignore[misc]
    ]
    for call in calls:
        _native.set_num_threads(2)
        whole = call(slice(None))
        for rows in (slice(0, 1), slice(5, 8), slice(399, 400), slice(100, 390), slice(1, 400, 7)):
            assert np.array_equal(call(rows), whole[rows])
        _native.set_num_threads(1)
        assert np.array_equal(call(slice(None)), whole)


def test_an_elements_bits_do_not_depend_on_its_column(native: Ops) -> None:
    """The padded tail runs the same instructions as the body."""
    value = np.float32(-1.2345)
    for kind in KINDS:
        results = native.activation(np.full((1, 37), value), kind)
        assert (results == results[0, 0]).all()


def test_no_rows(native: Ops) -> None:
    x, weight = np.zeros((0, 12), np.float32), random(12)
    assert native.rms_norm(x, weight, 1e-5).shape == (0, 12)
    assert native.add_rms_norm(x, x, weight, 1e-5)[1].shape == (0, 12)
    assert native.layer_norm(x, weight, weight, 1e-5).shape == (0, 12)
    assert native.act_and_mul(x, "silu").shape == (0, 6)
    empty = np.zeros((0, 2, 8), np.float32)
    assert native.rope(empty, np.zeros(0, np.int32), random(3, 8)).shape == (0, 2, 8)


def test_nan_comes_out_where_it_went_in(native: Ops) -> None:
    x = random(3, 40)
    x[1, 5] = np.nan
    for kind in KINDS:
        assert np.array_equal(np.isnan(native.activation(x, kind)), np.isnan(x))
    assert np.array_equal(np.isnan(native.softcap(x, 2.0)), np.isnan(x))
    assert np.isnan(native.rms_norm(x, random(40), 1e-5)).any(axis=1).tolist() == [False, True, False]


def test_bad_arguments_are_refused(native: Ops) -> None:
    x, weight = random(4, 8), random(8)
    refused: list[tuple[str, Callable[[], object]]] = [
        (r"weight must be a float32 array \[8\]", lambda: native.rms_norm(x, random(9), 1e-5)),
        ("1 to 3 axes", lambda: native.rms_norm(random(1, 1, 1, 8), weight, 1e-5)),
        ("got float64", lambda: native.rms_norm(x.astype(np.float64), weight, 1e-5)),
        (r"residual must be a float32 array \[4, 8\]", lambda: native.add_rms_norm(x, random(3, 8), weight, 1e-5)),
        ("bias", lambda: native.layer_norm(x, weight, random(7), 1e-5)),
        ("y must be", lambda: native.add(x, random(4, 9))),
        ("cap must be positive", lambda: native.softcap(x, 0.0)),
        ("activation must be one of silu, .*'swish'", lambda: native.activation(x, "swish")),  # type: ignore[arg-type]
        ("activation must be one of", lambda: native.activation(random(4, 8), "clamped_swiglu")),
        ("even number of columns", lambda: native.act_and_mul(random(4, 9), "silu")),
        ("rows must lie in 0..3, got 4", lambda: native.take_rows(x, np.array([4], np.int32))),
        ("rows must lie in 0..3, got -1", lambda: native.take_rows(x, np.array([-1], np.int32))),
    ]
    for message, call in refused:
        with pytest.raises(ValueError, match=message):
            call()


def test_bad_rope_arguments_are_refused(native: Ops) -> None:
    x, positions = random(2, 3, 8), np.array([0, 1], np.int32)
    for bad in (-1, 10):
        with pytest.raises(ValueError, match=r"positions must lie in 0\.\.9"):
            native.rope(x, np.array([0, bad], np.int32), random(10, 8))
    for columns in (7, 10):
        with pytest.raises(ValueError, match=f"even number of columns up to 8, got {columns}"):
            native.rope(x, positions, random(10, columns))
    with pytest.raises(ValueError, match=r"positions must be a int32 array \[2\]"):
        native.rope(x, positions[:1], random(10, 8))
