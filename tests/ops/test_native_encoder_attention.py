"""Attention in both directions in C++ against the reference, its bits however sequences are packed, and its tape."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo import _native
from octavo.ops.interface import AttentionMetadata, Float, Ops
from octavo.ops.reference import ReferenceOps
from octavo.ops.tape import ForwardInputs, ModelFunctions, TapeLimits

Array = NDArray[np.float32]
REFERENCE = ReferenceOps()
WINDOWS = [None, 1, 2, 30, 64, 65, 300]


def packed(lengths: list[int], num_kv_heads: int, group: int, head_dim: int, seed: int = 0) -> tuple[Array, ...]:
    """Return query, key and value, views of one fused projection between columns of NaN, and the borders."""
    num_heads = num_kv_heads * group
    fused = np.full((sum(lengths), num_heads + 2 * num_kv_heads + 1, head_dim), np.nan, np.float32)
    fused[:, :-1] = np.random.default_rng(seed).standard_normal(fused[:, :-1].shape)
    key, value = fused[:, num_heads : num_heads + num_kv_heads], fused[:, num_heads + num_kv_heads : -1]
    return fused[:, :num_heads], key, value, np.cumsum([0, *lengths], dtype=np.int32)


def bias_of(num_heads: int, reach: int, padding: int = 3) -> Array:
    """Return a bias by distance, a view before columns of NaN."""
    width = 2 * reach - 1
    table = np.full((num_heads, width + padding), np.nan, np.float32)
    table[:, :width] = np.random.default_rng(7).standard_normal((num_heads, width))
    return table[:, :width]


@pytest.mark.parametrize("is_biased", [False, True])
@pytest.mark.parametrize("window", WINDOWS)
def test_it_agrees_with_the_reference(native: Ops, window: int | None, is_biased: bool) -> None:
    generator = np.random.default_rng(window)
    shapes = [([700, 1, 64, 65, 130], 1, 2, 40), ([600, 513], 3, 1, 64), ([1, 0, 2], 2, 3, 16), ([1100], 1, 4, 1)]
    for _ in range(6):
        lengths = generator.integers(0, 200, generator.integers(1, 6)).tolist()
        shapes.append((lengths, *(int(generator.integers(1, limit)) for limit in (4, 5, 100))))
    for seed, shape in enumerate(shapes):
        arguments = packed(*shape, seed=seed)
        bias = bias_of(shape[1] * shape[2], max(shape[0], default=0) + seed % 2) if is_biased else None
        result = native.encoder_attention(*arguments, 0.25, window, bias)
        assert result.dtype == np.float32 and result.flags.c_contiguous
        expected = REFERENCE.encoder_attention(*arguments, 0.25, window, bias)
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=4e-6, err_msg=str(shape))


@pytest.mark.parametrize(
    ("window", "bias"), [(None, None), (40, None), (None, bias_of(4, 1000)), (40, bias_of(4, 900))]
)
def test_bits_do_not_depend_on_neighbours_or_threads(native: Ops, window: int | None, bias: Array | None) -> None:
    lengths = [3, 900, 70, 1, 515]
    query, key, value, starts = packed(lengths, 2, 2, 24)
    together = native.encoder_attention(query, key, value, starts, 0.25, window, bias)
    for start, length in zip(starts.tolist(), lengths, strict=False):
        part = slice(start, start + length)
        borders = np.array([0, length], np.int32)
        for num_threads in (1, 2, 3):
            _native.set_num_threads(num_threads)
            alone = native.encoder_attention(query[part], key[part], value[part], borders, 0.25, window, bias)
            assert np.array_equal(alone, together[part])


def test_a_nan_stays_in_its_sequence_and_window(native: Ops) -> None:
    query, key, value, starts = packed([50, 200, 50], 1, 1, 16)
    clean = native.encoder_attention(query, key, value, starts, 0.25, 10)
    key[120] = np.nan
    value[130] = np.nan
    result = native.encoder_attention(query, key, value, starts, 0.25, 10)
    touched = np.isnan(result).all(axis=1)
    assert touched[111:140].all() and touched.sum() == 29
    assert np.array_equal(result[~touched], clean[~touched])


def test_scores_of_any_size_do_not_overflow(native: Ops) -> None:
    query, *rest = packed([70], 2, 1, 16)
    result = native.encoder_attention(query * 1e4, *rest, 0.25)
    np.testing.assert_allclose(result, REFERENCE.encoder_attention(query * 1e4, *rest, 0.25), rtol=1e-4, atol=1e-4)


def test_no_tokens(native: Ops) -> None:
    for borders in ([0], [0, 0]):
        query, key, value, _ = packed([], 2, 3, 16)
        result = native.encoder_attention(query, key, value, np.array(borders, np.int32), 0.25)
        assert result.shape == (0, 6 * 16)


def test_bad_arguments_are_refused(native: Ops) -> None:
    query, key, value, starts = packed([4, 2], 2, 2, 8)

    def refuse(message: str, **changes: object) -> None:
        arguments = {"query": query, "key": key, "value": value, "query_start": starts, "scale": 1.0, **changes}
        with pytest.raises(ValueError, match=message):
            native.encoder_attention(**arguments)  # type: ignore[arg-type]

    refuse("query_start must rise from 0 to 6", query_start=np.array([0, 4], np.int32))
    refuse("query_start must rise from 0 to 6", query_start=np.array([1, 6], np.int32))
    refuse("query_start must not fall", query_start=np.array([0, 8, 6], np.int32))
    refuse("query_start must have at least 1 number", query_start=np.array([], np.int32))
    refuse("query_start must be a int32 array", query_start=starts.astype(np.int64))
    refuse("query must have a multiple of 2 heads, got 3", query=query[:, :3])
    refuse("query must have a multiple of 0 heads", key=key[:, :0], value=value[:, :0])
    refuse(r"key must be a float32 array \[6, \*, 8\]", key=key[:5])
    refuse(r"value must be a float32 array \[6, 2, 8\]", value=value[:, :1])
    refuse("sliding_window must be at least 1, got 0", sliding_window=0)
    refuse("query_start must rise by at most 3, got 4", distance_bias=bias_of(4, 3))
    refuse("distance_bias must have an odd number of columns, got 8", distance_bias=bias_of(4, 5)[:, :8])
    refuse(r"distance_bias must be a float32 array \[4, \*\]", distance_bias=bias_of(3, 5))


def encoder(ops: Ops, x: Float, starts: object, window: int | None, bias: Array | None) -> Float:
    heads = x.reshape(x.shape[0], 8, 8)
    attended = ops.encoder_attention(heads[:, :4], heads[:, 4:6], heads[:, 6:], starts, 0.25, window, bias)  # type: ignore[arg-type]
    return attended


@pytest.mark.parametrize(("window", "bias"), [(None, None), (9, None), (None, bias_of(4, 60))])
def test_the_tape_gives_the_bits_of_the_op(native: Ops, window: int | None, bias: Array | None) -> None:
    table = native.pack([np.random.default_rng(0).standard_normal((50, 64)).astype(np.float32)])

    def forward(ops: Ops, inputs: ForwardInputs) -> Float:
        x = ops.embedding(inputs.token_ids, table)
        return ops.take_rows(encoder(ops, x, inputs.metadata[0].query_start, window, bias), inputs.output_rows)

    functions = ModelFunctions(
        forward, lambda ops, hidden, slots: ops.linear(hidden, native.pack([np.eye(32, dtype=np.float32)]))
    )
    tape = native.capture(functions, TapeLimits(100, 100, 100, 32, 1))
    assert tape is not None
    for lengths in ([30, 1, 60], [7]):
        total = sum(lengths)
        inputs = ForwardInputs(
            token_ids=np.arange(total, dtype=np.int32) % 50,
            positions=np.zeros(total, np.int32),
            output_rows=np.arange(total, dtype=np.int32)[::-1].copy(),
            metadata=[
                AttentionMetadata(
                    np.cumsum([0, *lengths], dtype=np.int32),
                    np.array(lengths, np.int32),
                    np.zeros((len(lengths), 0), np.int32),
                    np.zeros(total, np.int64),
                )
            ],
        )
        assert np.array_equal(tape.forward(inputs), forward(native, inputs))
        inputs.metadata[0].query_start = np.arange(len(lengths) + 1, dtype=np.int32)
        with pytest.raises(ValueError, match=f"query_start must rise from 0 to {total}"):
            tape.forward(inputs)
        if bias is not None and total > 60:
            inputs.metadata[0].query_start = np.array([0, total, *[total] * (len(lengths) - 1)], np.int32)
            with pytest.raises(ValueError, match="query_start must rise by at most 60, got 91"):
                tape.forward(inputs)
