// float16 and bfloat16 to float32, exact.
#pragma once

#include "kernels/simd.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {

struct Half {
    std::uint16_t bits;
};
struct Bfloat {
    std::uint16_t bits;
};

OCTAVO_INLINE float half_to_float(std::uint16_t half) {
    // Shifted into place, the exponent is 112 too small; a product puts it right, for subnormal numbers too.
    std::uint32_t bits = static_cast<std::uint32_t>(half & 0x7fff) << 13;
    if ((half & 0x7c00) == 0x7c00) {
        bits |= 0x7f800000;  // infinity or NaN
    } else {
        float value;
        std::memcpy(&value, &bits, sizeof(value));
        value *= 5.192296858534828e33f;  // 2^112
        std::memcpy(&bits, &value, sizeof(bits));
    }
    bits |= static_cast<std::uint32_t>(half & 0x8000) << 16;
    float result;
    std::memcpy(&result, &bits, sizeof(result));
    return result;
}

OCTAVO_INLINE float bfloat_to_float(std::uint16_t bfloat) {
    const std::uint32_t bits = static_cast<std::uint32_t>(bfloat) << 16;
    float result;
    std::memcpy(&result, &bits, sizeof(result));
    return result;
}

// One Vec of float16 or bfloat16 numbers.
#if defined(OCTAVO_ISA_AVX512)
OCTAVO_INLINE Vec load(const Half* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
OCTAVO_INLINE Vec load(const Bfloat* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
#elif defined(OCTAVO_ISA_AVX2)
OCTAVO_INLINE Vec load(const Half* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
OCTAVO_INLINE Vec load(const Bfloat* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
#else
OCTAVO_INLINE Vec load(const Half* p) {
    Vec v;
    for (int i = 0; i < kLanes; ++i) v[i] = half_to_float(p[i].bits);
    return v;
}
OCTAVO_INLINE Vec load(const Bfloat* p) {
    Vec v;
    for (int i = 0; i < kLanes; ++i) v[i] = bfloat_to_float(p[i].bits);
    return v;
}
#endif

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
