"""Quantised and 16-bit weights in C++: exact weights, the documented arithmetic, and its bits under every tiling."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from octavo import _native
from octavo.loader.compact import GROUP_SIZES, BlockMatrix, CompactMatrix, HalfMatrix, QuantizedMatrix
from octavo.ops.interface import Ops
from octavo.ops.reference import ReferenceOps

Array = NDArray[np.float32]
REFERENCE = ReferenceOps()

# Where the float16 scales of a block lie, for types that the gguf package cannot quantise to.
SCALE_OFFSETS = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def activations(num_tokens: int, size: int, seed: int = 3) -> Array:
    """Normal numbers with outliers, a row of zeros and a constant row."""
    rng = np.random.default_rng(seed)
    x = random(num_tokens, size, seed=seed) * rng.choice([0.1, 1, 30], (num_tokens, size), p=[0.5, 0.45, 0.05])
    x[1::7] = 0
    x[2::7] = 1.5
    return x.astype(np.float32)


def block_matrix(name: str, rows: int, num_blocks: int, seed: int = 0) -> BlockMatrix:
    kind = GGMLQuantizationType[name]
    block_size, block_bytes = GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(seed)
    if name in SCALE_OFFSETS:
        blocks = rng.integers(0, 256, (rows, num_blocks, block_bytes), dtype=np.uint8)
        for offset in SCALE_OFFSETS[name]:
            scales = rng.uniform(-0.01, 0.01, (rows, num_blocks, 1)).astype(np.float16)
            blocks[:, :, offset : offset + 2] = scales.view(np.uint8)
        blocks = blocks.reshape(rows, -1)
    else:
        blocks = quantize(random(rows, num_blocks * block_size, seed=seed), kind).view(np.uint8)
    return BlockMatrix(name, blocks, num_blocks * block_size)


def group_matrix(
    bits: int, group: int, minimums: bool, dtype: type, rows: int, columns: int, seed: int = 0
) -> QuantizedMatrix:
    rng = np.random.default_rng(seed)
    low, high = (0, 16) if bits == 4 and minimums else (-8, 8) if bits == 4 else (-128, 128)
    codes = rng.integers(low, high, (rows, columns)).astype(np.uint8 if low == 0 else np.int8)
    shape = (rows, -(-columns // group))
    scales = rng.uniform(0.01, 0.02, shape).astype(dtype)
    return QuantizedMatrix(
        bits, group, codes, scales, rng.uniform(-0.1, 0.1, shape).astype(dtype) if minimums else None
    )


def half_matrix(kind: str, rows: int, columns: int) -> HalfMatrix:
    values = random(rows, columns, seed=7)
    bits = values.astype(np.float16).view(np.uint16) if kind == "float16" else (values.view(np.uint32) >> 16)
    return HalfMatrix(kind, bits.astype(np.uint16))  # type: ignore[arg-type]


GROUP_FORMATS = [
    (bits, group, minimums, dtype)
    for bits in (4, 8)
    for group in (16, 32)
    for minimums in (False, True)
    for dtype in (np.float16, np.float32)
]


def every_format(rows: int, columns: int) -> list[CompactMatrix]:
    """One matrix of every format; `columns` a multiple of 256."""
    blocks = [block_matrix(n, rows, columns // GGML_QUANT_SIZES[GGMLQuantizationType[n]][0]) for n in GROUP_SIZES]
    groups = [group_matrix(*kind, rows=rows, columns=columns) for kind in GROUP_FORMATS]
    return [*blocks, *groups, half_matrix("float16", rows, columns), half_matrix("bfloat16", rows, columns)]


# -- weights -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GROUP_SIZES)
@pytest.mark.parametrize("shape", [(1, 1), (37, 2), (16, 5)])
def test_packed_blocks_are_ggufs_weights_to_the_bit(native: Ops, name: str, shape: tuple[int, int]) -> None:
    matrix = block_matrix(name, *shape)
    expected = dequantize(matrix.blocks, GGMLQuantizationType[name])
    weight = native.pack([matrix])
    assert (weight.out_features, weight.in_features) == expected.shape
    np.testing.assert_array_equal(weight.dequantized(), expected)
    np.testing.assert_array_equal(matrix.dequantized(), expected)
    ids = np.array([shape[0] - 1, 0, shape[0] // 2], np.int32)
    np.testing.assert_array_equal(native.embedding(ids, weight), expected[ids])


@pytest.mark.parametrize("kind", GROUP_FORMATS)
def test_packed_groups_are_scale_times_code_plus_minimum(native: Ops, kind: tuple[int, int, bool, type]) -> None:
    matrix = group_matrix(*kind, rows=19, columns=96)
    weight = native.pack([matrix])
    for row, column in ((0, 0), (18, 95), (7, 40), (16, 16)):
        group = column // matrix.group_size
        expected = np.float32(matrix.scales[row, group]) * np.float32(matrix.codes[row, column])
        if matrix.minimums is not None:
            expected += np.float32(matrix.minimums[row, group])
        assert weight.dequantized()[row, column] == expected == matrix.dequantized()[row, column]


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_sixteen_bit_weights_are_kept_and_multiplied_like_float32(native: Ops, kind: str) -> None:
    special = half_matrix(kind, 45, 70)
    special.bits[0, :6] = [0, 0x8000, 1, 0x8001, 0x03FF, 0x7C00]  # zeros, subnormal numbers, infinity or 3e36
    weight, exact = native.pack([special]), special.dequantized()
    np.testing.assert_array_equal(weight.dequantized().view(np.uint32), exact.view(np.uint32))
    floats = native.pack([exact])
    assert weight.size_bytes * 2 == floats.size_bytes
    x = activations(40, 70)
    for num_tokens in (0, 1, 3, 13, 40):
        np.testing.assert_array_equal(native.linear(x[:num_tokens], weight), native.linear(x[:num_tokens], floats))
    ids = np.array([44, 0], np.int32)
    np.testing.assert_array_equal(native.embedding(ids, weight).view(np.uint32), exact[ids].view(np.uint32))


def test_sixteen_bit_weights_over_many_rows_and_depth_blocks(native: Ops) -> None:
    matrix = half_matrix("bfloat16", 130, 600)
    x = random(200, 600)
    np.testing.assert_array_equal(
        native.linear(x, native.pack([matrix])), native.linear(x, native.pack([matrix.dequantized()]))
    )


# -- linear ------------------------------------------------------------------------------------------------------------


def check_linear(native: Ops, matrices: list[CompactMatrix], x: Array, bias: Array | None) -> Array:
    result = native.linear(x, native.pack(matrices), bias)
    expected = REFERENCE.linear(x, REFERENCE.pack(matrices), bias)
    assert result.shape == expected.shape and result.dtype == np.float32
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5 * max(1.0, float(np.abs(expected).max())))
    return result


@pytest.mark.parametrize("rows", [1, 15, 33])
def test_linear_rounds_activations_as_documented(native: Ops, rows: int) -> None:
    for matrix in every_format(rows, 512):
        check_linear(native, [matrix], activations(11, 512), random(rows, seed=5))


@pytest.mark.parametrize("kind", [kind for kind in GROUP_FORMATS if not kind[2]])
@pytest.mark.parametrize("columns", [1, 31, 49, 100])
def test_input_features_need_not_fill_the_last_group(
    native: Ops, kind: tuple[int, int, bool, type], columns: int
) -> None:
    matrix = group_matrix(*kind, rows=21, columns=columns)
    check_linear(native, [matrix], activations(9, columns), None)
    np.testing.assert_array_equal(native.pack([matrix]).dequantized(), matrix.dequantized())


@pytest.mark.parametrize("columns", [16, 80, 2048, 2080, 5120])
@pytest.mark.parametrize("bits", [4, 8])
def test_one_and_several_depth_blocks(native: Ops, columns: int, bits: int) -> None:
    matrix = group_matrix(bits, 16, True, np.float32, rows=35, columns=columns)
    check_linear(native, [matrix], activations(10, columns), random(35, seed=5))


def test_parts_of_several_formats_in_one_weight(native: Ops) -> None:
    matrices = [
        block_matrix("Q4_K", 21, 1),
        block_matrix("Q6_K", 9, 1, seed=1),
        block_matrix("Q6_K", 30, 1, seed=2),
        random(5, 256, seed=3),
        half_matrix("bfloat16", 17, 256),
        half_matrix("float16", 3, 256),
        block_matrix("Q8_0", 40, 8),
    ]
    x, bias = activations(14, 256), random(125, seed=9)
    result = check_linear(native, matrices, x, bias)
    first = 0
    for matrix in matrices:
        rows = len(matrix) if isinstance(matrix, np.ndarray) else matrix.out_features
        alone = native.linear(x, native.pack([matrix]), bias[first : first + rows])
        np.testing.assert_array_equal(result[:, first : first + rows], alone)
        first += rows
    weight = native.pack(matrices)
    np.testing.assert_array_equal(weight.dequantized(), REFERENCE.pack(matrices).dequantized())
    ids = np.array([124, 0, 20, 21, 59, 60, 64, 65], np.int32)
    np.testing.assert_array_equal(native.embedding(ids, weight), weight.dequantized()[ids])


def test_the_largest_codes_neither_overflow_nor_saturate(native: Ops) -> None:
    """Activations at both ends of their codes, in every arrangement of signs, against the largest weights."""
    for minimums in (False, True):
        for bits, extremes in ((4, (0, 15) if minimums else (-8, 7)), (8, (-128, 127))):
            for code in extremes:
                codes = np.full((18, 64), code, np.uint8 if bits == 4 and minimums else np.int8)
                ones = np.ones((18, 2), np.float32)
                matrix = QuantizedMatrix(bits, 32, codes, ones, -ones if minimums else None)
                x = np.ones((6, 64), np.float32) * 127
                x[0] = -127
                x[1, ::2] = -127
                x[2, 1::2] = -127
                x[3, 3] = -127
                x[4, 4] = 126
                check_linear(native, [matrix], x, None)


def test_zero_tokens(native: Ops) -> None:
    weight = native.pack([block_matrix("Q4_K", 21, 1), block_matrix("Q6_K", 9, 1)])
    assert native.linear(np.empty((0, 256), np.float32), weight).shape == (0, 30)
    assert native.embedding(np.empty(0, np.int32), weight).shape == (0, 256)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_reach_every_output_of_their_row(native: Ops, bad: float) -> None:
    for name in ("Q4_0", "Q4_1", "Q8_0", "Q6_K"):
        x = activations(9, 256)
        clean = native.linear(x, native.pack([block_matrix(name, 20, 256 // (256 if name == "Q6_K" else 32))]))
        x[4, 77] = bad
        matrix = block_matrix(name, 20, 256 // (256 if name == "Q6_K" else 32))
        result = native.linear(x, native.pack([matrix]))
        assert np.isnan(result[4]).all()
        assert np.isnan(REFERENCE.linear(x, REFERENCE.pack([matrix]))[4]).all()
        others = np.arange(9) != 4
        np.testing.assert_array_equal(result[others], clean[others])


def test_tiny_and_huge_activations(native: Ops) -> None:
    matrix = block_matrix("Q8_0", 20, 4)
    x = activations(12, 128)
    for magnitude in (1e-38, 1e-29, 1e-10, 1e10, 1e30):
        check_linear(native, [matrix], x * np.float32(magnitude), None)


# -- a row's bits ------------------------------------------------------------------------------------------------------


def test_a_rows_bits_do_not_depend_on_other_rows_or_threads(native: Ops) -> None:
    """For 1 to 20 rows (each tile height), and more than a block of rows."""
    x, bias = activations(211, 256), random(150, seed=5)
    for matrix in every_format(150, 256):
        weight = native.pack([matrix])
        whole = native.linear(x, weight, bias)
        for num_tokens in (*range(1, 21), 97, 150):
            first = (7 * num_tokens) % (211 - num_tokens)
            part = native.linear(x[first : first + num_tokens], weight, bias)
            np.testing.assert_array_equal(part, whole[first : first + num_tokens])
        _native.set_num_threads(1)
        np.testing.assert_array_equal(native.linear(x, weight, bias), whole)
        _native.set_num_threads(3)
        np.testing.assert_array_equal(native.linear(x, weight, bias), whole)
        _native.set_num_threads(2)


def test_several_depth_blocks_keep_a_rows_bits(native: Ops) -> None:
    matrix = group_matrix(4, 32, True, np.float16, rows=70, columns=4160)
    weight, x = native.pack([matrix]), activations(110, 4160)
    whole = native.linear(x, weight)
    for num_tokens in (1, 4, 9, 96):
        np.testing.assert_array_equal(native.linear(x[5 : 5 + num_tokens], weight), whole[5 : 5 + num_tokens])


def test_strided_rows_and_their_copies_give_the_same_bits(native: Ops) -> None:
    weight = native.pack([block_matrix("Q4_1", 20, 4)])
    x = activations(10, 300)
    np.testing.assert_array_equal(native.linear(x[::2, 40:168], weight), native.linear(x[::2, 40:168].copy(), weight))


def test_vector_instruction_sets_agree_to_the_bit() -> None:
    """The sums of a group are exact integers, and the float32 operations on them are the same ones."""
    from octavo.ops.native import NativeOps

    isas = [isa for isa in _native.available_isas() if isa != "portable"]
    before = _native.isa()
    x, results = activations(13, 256), []
    for isa in isas:
        _native.set_isa(isa)
        ops = NativeOps()
        results.append([ops.linear(x, ops.pack([m])) for m in every_format(37, 256) if not isinstance(m, HalfMatrix)])
    _native.set_isa(before)
    for result in results[1:]:
        for got, expected in zip(result, results[0], strict=True):
            np.testing.assert_array_equal(got, expected)


# -- the border --------------------------------------------------------------------------------------------------------


def test_bad_matrices_are_refused(native: Ops) -> None:
    good = group_matrix(4, 32, False, np.float16, rows=5, columns=64)
    with pytest.raises(ValueError, match="Q9_Z cannot be packed"):
        native.pack([BlockMatrix("Q9_Z", np.zeros((2, 18), np.uint8), 32)])
    with pytest.raises(ValueError, match="multiple of 18 bytes, got 19"):
        native.pack([BlockMatrix("Q4_0", np.zeros((2, 19), np.uint8), 32)])
    with pytest.raises(ValueError, match="group 16 or 32"):
        native.pack([QuantizedMatrix(4, 64, good.codes, good.scales)])
    with pytest.raises(ValueError, match="bits must be 4 or 8"):
        native.pack([QuantizedMatrix(5, 32, good.codes, good.scales)])
    with pytest.raises(ValueError, match=r"scales must be a uint16 array \[5, 2\]"):
        native.pack([QuantizedMatrix(4, 32, good.codes, good.scales[:, :1])])
    with pytest.raises(ValueError, match="multiple of 32, got 40"):
        native.pack([QuantizedMatrix(8, 32, good.codes[:, :40], good.scales, good.scales)])
    with pytest.raises(ValueError, match="64 input features like those before it, got 32"):
        native.pack([good, BlockMatrix("Q4_0", np.zeros((2, 18), np.uint8), 32)])
    with pytest.raises(ValueError, match="empty"):
        native.pack([BlockMatrix("Q4_0", np.zeros((0, 18), np.uint8), 32)])
