// Transposing rows of keys into columns.
#pragma once

#include "kernels/simd.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace octavo::OCTAVO_ISA_NAMESPACE {

// out[column * out_stride + row] = rows[row * num_columns + column]: num_rows contiguous rows of num_columns become columns.
OCTAVO_INLINE void transpose(const float* rows, std::int64_t num_rows, std::int64_t num_columns, float* out,
                             std::int64_t out_stride) {
    std::int64_t row = 0;
#if defined(__SSE__)
    // Squares of 4 x 4 in registers; what is left over, one by one.
    for (; row + 4 <= num_rows; row += 4) {
        const float* from = rows + row * num_columns;
        float* to = out + row;
        std::int64_t column = 0;
        for (; column + 4 <= num_columns; column += 4) {
            __m128 a = _mm_loadu_ps(from + column);
            __m128 b = _mm_loadu_ps(from + num_columns + column);
            __m128 c = _mm_loadu_ps(from + 2 * num_columns + column);
            __m128 d = _mm_loadu_ps(from + 3 * num_columns + column);
            _MM_TRANSPOSE4_PS(a, b, c, d);
            _mm_storeu_ps(to + column * out_stride, a);
            _mm_storeu_ps(to + (column + 1) * out_stride, b);
            _mm_storeu_ps(to + (column + 2) * out_stride, c);
            _mm_storeu_ps(to + (column + 3) * out_stride, d);
        }
        for (; column < num_columns; ++column) {
            for (int i = 0; i < 4; ++i) to[column * out_stride + i] = from[i * num_columns + column];
        }
    }
#endif
    for (; row < num_rows; ++row) {
        for (std::int64_t column = 0; column < num_columns; ++column) {
            out[column * out_stride + row] = rows[row * num_columns + column];
        }
    }
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
