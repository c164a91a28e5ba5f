"""The sampling ops: the reference against plain formulas, and every native instruction set against the reference.

Both columns compute weights to about 1e-6; on these seeds no draw lies that close to a border, so ids are equal.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from octavo.ops import reference_sampling

try:
    from octavo import _native  # type: ignore[attr-defined]
except ImportError:
    _native = None

ISAS = [] if _native is None else _native.available_isas()
BACKENDS = ["reference", *ISAS]
WIDTHS = [1, 2, 63, 64, 65, 1000, 49152]


@pytest.fixture(params=BACKENDS)
def ops(request: pytest.FixtureRequest) -> Any:
    """One column: the reference, or the native ops under one instruction set with two threads."""
    if request.param == "reference":
        yield reference_sampling
        return
    isa, num_threads = _native.isa(), _native.num_threads()
    _native.set_isa(request.param)
    _native.set_num_threads(2)
    yield _native
    _native.set_isa(isa)
    _native.set_num_threads(num_threads)


def logits_of(num_rows: int, width: int, scale: float = 3.0, seed: int = 0) -> np.ndarray:
    """Return random logits; row 1 has many ties, row 2 forbidden ids, row 3 is constant."""
    logits = np.random.default_rng(seed).normal(0, scale, (num_rows, width)).astype(np.float32)
    if num_rows > 3 and width > 2:
        logits[1] = np.round(logits[1])
        logits[2, ::3] = -np.inf
        logits[3] = 0.5
    return logits


def options(num_rows: int, **given: Any) -> dict[str, np.ndarray]:
    defaults = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "uniform": 0.5} | given
    dtypes = {"top_k": np.int32, "uniform": np.float64}
    return {
        name: np.broadcast_to(np.asarray(value, dtypes.get(name, np.float32)), num_rows).copy()
        for name, value in defaults.items()
    }


# -- has_nan, argmax ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
def test_bad_rows_are_found_wherever_the_value_stands(ops: Any, width: int) -> None:
    logits = logits_of(7, width)
    for row, value in ((1, np.nan), (2, np.inf), (3, -np.nan)):
        logits[row, (row * 37) % width] = value
    logits[4] = -np.inf
    logits[5, : width - 1] = -np.inf
    logits[6, width - 1] = np.nan
    assert ops.has_nan(logits).tolist() == [False, True, True, True, True, False, True]


@pytest.mark.parametrize("width", WIDTHS)
def test_argmax_takes_the_lowest_of_equals_and_minus_one_in_bad_rows(ops: Any, width: int) -> None:
    logits = logits_of(9, width)
    logits[4, [width - 1, width // 2]] = 50.0
    logits[5] = -np.inf
    logits[6, width - 1] = np.nan
    logits[7, 0] = np.inf
    result = ops.argmax(logits)
    assert result.dtype == np.int32
    assert result.tolist() == np.where(ops.has_nan(logits), -1, logits.argmax(axis=1)).tolist()
    assert np.flatnonzero(result < 0).tolist() == [5, 6, 7]


# -- log-probabilities -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
def test_log_softmax_matches_float64(ops: Any, width: int) -> None:
    logits = logits_of(5, width) if width > 2 else np.zeros((5, width), np.float32)
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact - exact.max(1, keepdims=True)).sum(1, keepdims=True)) + exact.max(1, keepdims=True)
    np.testing.assert_allclose(ops.log_softmax(logits), exact, rtol=3e-7, atol=2e-6)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("k", [0, 1, 20, "all"])
def test_top_logprobs_order_and_rank(ops: Any, width: int, k: int | str) -> None:
    k = width if k == "all" else min(int(k), width)
    logits = logits_of(5, width)
    token_ids = np.random.default_rng(1).integers(0, width, 5).astype(np.int32)
    ids, logprobs, ranks = ops.top_logprobs(logits, token_ids, k)
    descending = np.argsort(-logits, axis=1, kind="stable")
    assert (ids[:, 0] == token_ids).all()
    assert (ids[:, 1:] == descending[:, :k]).all()
    for row in range(5):
        assert descending[row, ranks[row] - 1] == token_ids[row]
    # the same bits as log_softmax, not merely close ones
    assert (logprobs == np.take_along_axis(ops.log_softmax(logits), ids.astype(np.int64), 1)).all()


def test_top_logprobs_of_a_nan_row_stay_in_range(ops: Any) -> None:
    logits = logits_of(2, 300)
    logits[0, ::2] = np.nan
    ids, _, ranks = ops.top_logprobs(logits, np.zeros(2, np.int32), 200)
    assert ids.min() >= 0 and ids.max() < 300 and ranks.min() >= 1
    assert len(set(ids[0, 1:].tolist())) == 200


# -- penalties ---------------------------------------------------------------------------------------------------------


def test_penalties_follow_the_formula(ops: Any) -> None:
    logits = np.array([[2.0, -2.0, 1.0, 0.0], [2.0, -2.0, 1.0, -np.inf], [1.0, 1.0, 1.0, 1.0]], np.float32)
    ops.apply_penalties(
        logits,
        np.array([0, 3, 5, 5], np.int32),
        np.array([0, 1, 3, 2, 3], np.int32),
        np.array([2, 0, 1, 3, 1], np.int32),
        np.array([2.0, 1.0, 9.0], np.float32),
        np.array([0.5, 0.25, 9.0], np.float32),
        np.array([0.125, 1.0, 9.0], np.float32),
    )
    expected = [
        [2 / 2 - 2 * 0.5 - 0.125, -2 * 2, 1.0, 0 - 0.5 - 0.125],
        [2.0, -2.0, 1 - 0.75 - 1, -np.inf],
        [1.0, 1.0, 1.0, 1.0],
    ]
    np.testing.assert_array_equal(logits, np.array(expected, np.float32))


# -- bitmask -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("num_spare_words", [0, 2])
def test_bitmask_forbids_the_ids_whose_bits_are_zero(ops: Any, width: int, num_spare_words: int) -> None:
    logits = logits_of(5, width)
    generator = np.random.default_rng(width)
    num_words = -(-width // 32) + num_spare_words
    bitmask = generator.integers(-(2**31), 2**31, (5, num_words), dtype=np.int32)
    bitmask[1], bitmask[2] = -1, 0
    expected = logits.copy()
    for row in range(5):
        for token_id in range(width) if width < 2000 else range(0, width, 97):
            if not int(bitmask[row, token_id // 32]) >> token_id % 32 & 1:
                expected[row, token_id] = -np.inf
    ops.apply_bitmask(logits, bitmask)
    checked = slice(None) if width < 2000 else slice(0, None, 97)
    np.testing.assert_array_equal(logits[:, checked], expected[:, checked])
    reference = logits_of(5, width)
    reference_sampling.apply_bitmask(reference, bitmask)
    np.testing.assert_array_equal(logits, reference)


def test_wrong_bitmasks_raise_and_change_nothing(ops: Any) -> None:
    logits = logits_of(2, 40)
    before = logits.copy()
    for bitmask in (np.zeros((2, 1), np.int32), np.zeros((1, 2), np.int32), np.zeros((2, 2), np.int64)):
        with pytest.raises(ValueError):
            ops.apply_bitmask(logits, bitmask)
    assert (logits == before).all()


# -- sample ------------------------------------------------------------------------------------------------------------


def test_sample_draws_the_first_id_whose_cumulative_mass_exceeds_uniform(ops: Any) -> None:
    logits = np.log(np.array([[0.1, 0.2, 0.3, 0.4]], np.float32)).repeat(5, 0)
    drawn = ops.sample(logits, **options(5, uniform=[0.0, 0.099, 0.101, 0.59, 1 - 2**-53]))
    assert drawn.tolist() == [0, 0, 1, 2, 3]


def test_filters_keep_what_the_contract_says(ops: Any) -> None:
    logits = np.log(np.array([[0.1, 0.2, 0.3, 0.4]], np.float32)).repeat(99, 0)
    uniform = np.linspace(1e-9, 0.9999, 99)

    def drawn(**given: Any) -> set[int]:
        return set(ops.sample(logits, **options(99, uniform=uniform, **given)).tolist())

    assert drawn() == {0, 1, 2, 3}
    assert drawn(top_k=2) == {2, 3}
    assert drawn(top_k=10**6) == {0, 1, 2, 3}
    assert drawn(top_p=0.41) == {2, 3}
    assert drawn(top_p=0.39) == {3}
    assert drawn(top_p=1e-9) == {3}
    assert drawn(min_p=0.6) == {2, 3}
    assert drawn(min_p=1.0) == {3}
    assert drawn(top_k=3, top_p=0.75) == {2, 3}  # 0.4 + 0.3 of the remaining 0.9
    assert drawn(min_p=0.4, top_p=0.76) == {2, 3}
    assert drawn(temperature=0.01) == {3}
    assert drawn(temperature=2.0, min_p=0.6) == {1, 2, 3}  # min_p comes after the temperature


def test_ties_are_kept_by_top_k_and_cut_by_id_by_top_p(ops: Any) -> None:
    for width in (100, 100_000):
        logits = np.zeros((50, width), np.float32)
        uniform = np.linspace(0, 0.9999, 50)
        everything = ops.sample(logits, **options(50, uniform=uniform, top_k=1))
        assert everything.max() > 0.9 * width
        half = ops.sample(logits, **options(50, uniform=uniform, top_p=0.5))
        assert 0.45 * width < half.max() < 0.5 * width


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scale", [0.1, 2.0, 6.0])
def test_native_draws_equal_the_reference(isa: str, width: int, scale: float) -> None:
    rng = np.random.default_rng(width)
    before = _native.isa()
    _native.set_isa(isa)
    try:
        for top_k in (0, 1, 5, 50, 900, 3000):
            for top_p in (1.0, 0.9, 0.3, 1e-6):
                logits = logits_of(5, width, scale, seed=top_k)
                given = options(
                    5,
                    temperature=rng.uniform(0.3, 2, 5),
                    top_k=top_k,
                    top_p=top_p,
                    min_p=rng.choice([0.0, 0.05], 5),
                    uniform=rng.random(5),
                )
                expected = reference_sampling.sample(logits, **given)
                assert _native.sample(logits, **given).tolist() == expected.tolist(), (top_k, top_p)
    finally:
        _native.set_isa(before)


def test_sample_survives_rows_that_fail_has_nan(ops: Any) -> None:
    """Whatever is drawn for them, the process lives and the neighbour is right."""
    good = logits_of(1, 2000)
    for bad in (np.nan, np.inf):
        for given in ({}, {"top_k": 50}, {"top_k": 1500}, {"top_p": 0.5}, {"top_k": 50, "top_p": 0.5}):
            logits = np.vstack((good, good))
            logits[0, ::3] = bad
            if ops is reference_sampling:
                continue  # raises or draws: the sampler never asks it
            drawn = ops.sample(logits, **options(2, **given))
            assert 0 <= drawn[0] < 2000
            assert drawn[1] == ops.sample(good, **options(1, **given))[0]


# -- batch invariance --------------------------------------------------------------------------------------------------


def test_a_row_gives_the_same_bits_alone_and_in_any_batch(ops: Any) -> None:
    rng = np.random.default_rng(5)
    logits = logits_of(40, 5000)
    given = options(
        40,
        temperature=rng.uniform(0.2, 2, 40),
        top_k=rng.choice([0, 3, 70], 40),
        top_p=rng.choice([1.0, 0.8], 40),
        min_p=rng.choice([0.0, 0.02], 40),
        uniform=rng.random(40),
    )
    token_ids = rng.integers(0, 5000, 40).astype(np.int32)
    drawn = ops.sample(logits, **given)
    whole = ops.log_softmax(logits)
    ids, logprobs, ranks = ops.top_logprobs(logits, token_ids, 5)
    for size in (1, 3, 17):
        chosen = rng.permutation(40)[:size]
        part = np.ascontiguousarray(logits[chosen])
        assert (ops.sample(part, **{name: values[chosen] for name, values in given.items()}) == drawn[chosen]).all()
        assert (ops.log_softmax(part) == whole[chosen]).all()
        for ours, all_rows in zip(ops.top_logprobs(part, token_ids[chosen], 5), (ids, logprobs, ranks), strict=True):
            assert (ours == all_rows[chosen]).all()


def test_rows_may_be_a_strided_view(ops: Any) -> None:
    wide = logits_of(6, 400)
    view = wide[::2, 100:300]
    copy = np.ascontiguousarray(view)
    assert (ops.argmax(view) == ops.argmax(copy)).all()
    assert (ops.log_softmax(view) == ops.log_softmax(copy)).all()
    given = options(3, top_p=0.9)
    assert (ops.sample(view, **given) == ops.sample(copy, **given)).all()


# -- the border --------------------------------------------------------------------------------------------------------


def test_wrong_arguments_raise_before_anything_is_touched(ops: Any) -> None:
    logits = logits_of(2, 10)
    for bad in (logits[0], logits.astype(np.float64), logits[:, :0]):
        for function in (ops.has_nan, ops.argmax, ops.log_softmax):
            with pytest.raises(ValueError):
                function(bad)
    ids = np.zeros(2, np.int32)
    for token_ids, k in ((ids + 10, 1), (ids - 1, 1), (ids[:1], 1), (ids.astype(np.int64), 1), (ids, 11), (ids, -1)):
        with pytest.raises(ValueError):
            ops.top_logprobs(logits, token_ids, k)
    good = options(2)
    for name in good:
        with pytest.raises(ValueError):
            ops.sample(logits, **(good | {name: good[name][:1]}))


def test_wrong_penalty_arguments_raise_and_change_nothing(ops: Any) -> None:
    logits = logits_of(2, 10)
    before = logits.copy()
    one = np.ones(2, np.float32)
    good = SimpleNamespace(row_start=[0, 1, 2], token_ids=[3, 4], output_counts=[1, 1])
    for name, value in (
        ("row_start", [0, 2, 1]),
        ("row_start", [1, 1, 2]),
        ("row_start", [0, 1]),
        ("row_start", [0, 1, 3]),
        ("token_ids", [3, 10]),
        ("token_ids", [-1, 4]),
        ("output_counts", [1]),
    ):
        given = vars(good) | {name: value}
        arrays = [np.array(given[field], np.int32) for field in ("row_start", "token_ids", "output_counts")]
        with pytest.raises(ValueError):
            ops.apply_penalties(logits, *arrays, one, one, one)
    assert (logits == before).all()
