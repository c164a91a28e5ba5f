// Transposing rows of keys into columns: squares in registers where the instruction set allows, the rest one by one.
#pragma once

#include "kernels/simd.h"

#if defined(__SSE__)
#include <immintrin.h>
#endif

namespace octavo::OCTAVO_ISA_NAMESPACE {

#if defined(OCTAVO_ISA_AVX2) || defined(OCTAVO_ISA_AVX512)

constexpr std::int64_t kSquare = 8;

// out[column][row] = rows[row][column] of 8 x 8. Loading each half-row next to the half-row 4 below leaves only shuffles within
// 128-bit lanes: pairs, then pairs of pairs.
OCTAVO_INLINE void transpose_square(const float* rows, std::int64_t row_stride, float* out, std::int64_t out_stride) {
    for (int half = 0; half < 2; ++half) {
        const float* from = rows + 4 * half;
        __m256 v[4];
        for (int i = 0; i < 4; ++i) {
            v[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(from + i * row_stride)),
                                        _mm_loadu_ps(from + (i + 4) * row_stride), 1);
        }
        const __m256 low01 = _mm256_unpacklo_ps(v[0], v[1]);
        const __m256 high01 = _mm256_unpackhi_ps(v[0], v[1]);
        const __m256 low23 = _mm256_unpacklo_ps(v[2], v[3]);
        const __m256 high23 = _mm256_unpackhi_ps(v[2], v[3]);
        float* to = out + 4 * half * out_stride;
        _mm256_storeu_ps(to, _mm256_shuffle_ps(low01, low23, 0x44));
        _mm256_storeu_ps(to + out_stride, _mm256_shuffle_ps(low01, low23, 0xee));
        _mm256_storeu_ps(to + 2 * out_stride, _mm256_shuffle_ps(high01, high23, 0x44));
        _mm256_storeu_ps(to + 3 * out_stride, _mm256_shuffle_ps(high01, high23, 0xee));
    }
}

#elif defined(__SSE__)

constexpr std::int64_t kSquare = 4;

OCTAVO_INLINE void transpose_square(const float* rows, std::int64_t row_stride, float* out, std::int64_t out_stride) {
    __m128 a = _mm_loadu_ps(rows);
    __m128 b = _mm_loadu_ps(rows + row_stride);
    __m128 c = _mm_loadu_ps(rows + 2 * row_stride);
    __m128 d = _mm_loadu_ps(rows + 3 * row_stride);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    _mm_storeu_ps(out, a);
    _mm_storeu_ps(out + out_stride, b);
    _mm_storeu_ps(out + 2 * out_stride, c);
    _mm_storeu_ps(out + 3 * out_stride, d);
}

#else

constexpr std::int64_t kSquare = 1;

OCTAVO_INLINE void transpose_square(const float* rows, std::int64_t, float* out, std::int64_t) { *out = *rows; }

#endif

// out[column * out_stride + row] = rows[row * num_columns + column]: num_rows contiguous rows of num_columns become columns.
OCTAVO_INLINE void transpose(const float* rows, std::int64_t num_rows, std::int64_t num_columns, float* out,
                             std::int64_t out_stride) {
    const std::int64_t square_rows = num_rows - num_rows % kSquare;
    const std::int64_t square_columns = num_columns - num_columns % kSquare;
    for (std::int64_t row = 0; row < square_rows; row += kSquare) {
        for (std::int64_t column = 0; column < square_columns; column += kSquare) {
            transpose_square(rows + row * num_columns + column, num_columns, out + column * out_stride + row, out_stride);
        }
    }
    for (std::int64_t row = 0; row < num_rows; ++row) {
        for (std::int64_t column = row < square_rows ? square_columns : 0; column < num_columns; ++column) {
            out[column * out_stride + row] = rows[row * num_columns + column];
        }
    }
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
