// One vector of float32, Vec, for the instruction set being compiled, and the few operations that the kernels are written in.
//
// fma(a, b, c) is a * b + c: fused where the instruction set has it (avx2, avx512), else a product and then a sum; never a
// mixture within one build, since contraction by the compiler is off. Tails use load_first / store_first, which run the same
// vector instructions on padded lanes, so an element's bits do not depend on where in a row it stands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(OCTAVO_ISA_AVX2) || defined(OCTAVO_ISA_AVX512)
#include <immintrin.h>
#endif

#define OCTAVO_INLINE inline __attribute__((always_inline))

namespace octavo::OCTAVO_ISA_NAMESPACE {

#if defined(OCTAVO_ISA_AVX512)

constexpr int kLanes = 16;
using Vec = __m512;
using Mask = __mmask16;

OCTAVO_INLINE Mask first_lanes(std::int64_t count) { return static_cast<Mask>((1u << count) - 1u); }
OCTAVO_INLINE Vec load(const float* p) { return _mm512_loadu_ps(p); }
OCTAVO_INLINE void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
// The first `count` (< kLanes) elements, the other lanes 0; nothing beyond them is touched.
OCTAVO_INLINE Vec load_first(const float* p, std::int64_t count) { return _mm512_maskz_loadu_ps(first_lanes(count), p); }
OCTAVO_INLINE void store_first(float* p, Vec v, std::int64_t count) { _mm512_mask_storeu_ps(p, first_lanes(count), v); }
OCTAVO_INLINE Vec set(float x) { return _mm512_set1_ps(x); }
OCTAVO_INLINE Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
OCTAVO_INLINE Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
OCTAVO_INLINE Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
OCTAVO_INLINE Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
OCTAVO_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
OCTAVO_INLINE Vec sqrt(Vec a) { return _mm512_sqrt_ps(a); }
// Of two operands one of which is NaN, max and min return the second.
OCTAVO_INLINE Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
OCTAVO_INLINE Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
OCTAVO_INLINE Mask less(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
OCTAVO_INLINE Vec select(Mask mask, Vec yes, Vec no) { return _mm512_mask_blend_ps(mask, no, yes); }
OCTAVO_INLINE Vec abs(Vec a) { return _mm512_abs_ps(a); }
// The magnitude of a with the sign of b.
OCTAVO_INLINE Vec copy_sign(Vec a, Vec b) {
    return _mm512_or_ps(_mm512_abs_ps(a), _mm512_and_ps(b, _mm512_set1_ps(-0.0f)));
}
// a * 2^n for whole n, rounded once, also when the result is subnormal or overflows.
OCTAVO_INLINE Vec scale_by_power(Vec a, Vec n) { return _mm512_scalef_ps(a, n); }
OCTAVO_INLINE Vec round(Vec a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

#elif defined(OCTAVO_ISA_AVX2)

constexpr int kLanes = 8;
using Vec = __m256;
using Mask = __m256;

OCTAVO_INLINE __m256i first_lanes(std::int64_t count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
OCTAVO_INLINE Vec load(const float* p) { return _mm256_loadu_ps(p); }
OCTAVO_INLINE void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
OCTAVO_INLINE Vec load_first(const float* p, std::int64_t count) { return _mm256_maskload_ps(p, first_lanes(count)); }
OCTAVO_INLINE void store_first(float* p, Vec v, std::int64_t count) { _mm256_maskstore_ps(p, first_lanes(count), v); }
OCTAVO_INLINE Vec set(float x) { return _mm256_set1_ps(x); }
OCTAVO_INLINE Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
OCTAVO_INLINE Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
OCTAVO_INLINE Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
OCTAVO_INLINE Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
OCTAVO_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
OCTAVO_INLINE Vec sqrt(Vec a) { return _mm256_sqrt_ps(a); }
OCTAVO_INLINE Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
OCTAVO_INLINE Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
OCTAVO_INLINE Mask less(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
OCTAVO_INLINE Vec select(Mask mask, Vec yes, Vec no) { return _mm256_blendv_ps(no, yes, mask); }
OCTAVO_INLINE Vec abs(Vec a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
OCTAVO_INLINE Vec copy_sign(Vec a, Vec b) { return _mm256_or_ps(abs(a), _mm256_and_ps(b, _mm256_set1_ps(-0.0f))); }
OCTAVO_INLINE Vec power_of_two(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
// In two steps, so that neither factor leaves the range of normal numbers for |n| < 252.
OCTAVO_INLINE Vec scale_by_power(Vec a, Vec n) {
    const __m256i whole = _mm256_cvtps_epi32(n);
    const __m256i half = _mm256_srai_epi32(whole, 1);
    return mul(mul(a, power_of_two(half)), power_of_two(_mm256_sub_epi32(whole, half)));
}
OCTAVO_INLINE Vec round(Vec a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

#else  // portable: GCC's and Clang's vector extensions, which any machine can run

constexpr int kLanes = 4;
typedef float Vec __attribute__((vector_size(16)));
typedef std::int32_t Mask __attribute__((vector_size(16)));

OCTAVO_INLINE Vec load(const float* p) {
    Vec v;
    std::memcpy(&v, p, sizeof(v));
    return v;
}
OCTAVO_INLINE void store(float* p, Vec v) { std::memcpy(p, &v, sizeof(v)); }
OCTAVO_INLINE Vec load_first(const float* p, std::int64_t count) {
    Vec v = {0, 0, 0, 0};
    for (std::int64_t i = 0; i < count; ++i) v[i] = p[i];
    return v;
}
OCTAVO_INLINE void store_first(float* p, Vec v, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) p[i] = v[i];
}
OCTAVO_INLINE Vec set(float x) { return Vec{x, x, x, x}; }
OCTAVO_INLINE Vec add(Vec a, Vec b) { return a + b; }
OCTAVO_INLINE Vec sub(Vec a, Vec b) { return a - b; }
OCTAVO_INLINE Vec mul(Vec a, Vec b) { return a * b; }
OCTAVO_INLINE Vec div(Vec a, Vec b) { return a / b; }
OCTAVO_INLINE Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
OCTAVO_INLINE Vec sqrt(Vec a) {
    for (int i = 0; i < kLanes; ++i) a[i] = __builtin_sqrtf(a[i]);
    return a;
}
OCTAVO_INLINE Mask less(Vec a, Vec b) { return a < b; }
OCTAVO_INLINE Vec select(Mask mask, Vec yes, Vec no) {
    return reinterpret_cast<Vec>((reinterpret_cast<Mask>(yes) & mask) | (reinterpret_cast<Mask>(no) & ~mask));
}
OCTAVO_INLINE Vec max(Vec a, Vec b) { return select(a > b, a, b); }
OCTAVO_INLINE Vec min(Vec a, Vec b) { return select(a < b, a, b); }
OCTAVO_INLINE Vec abs(Vec a) { return reinterpret_cast<Vec>(reinterpret_cast<Mask>(a) & 0x7fffffff); }
OCTAVO_INLINE Vec copy_sign(Vec a, Vec b) {
    const Mask sign = reinterpret_cast<Mask>(b) & static_cast<std::int32_t>(0x80000000);
    return reinterpret_cast<Vec>((reinterpret_cast<Mask>(a) & 0x7fffffff) | sign);
}
// To the nearest whole number, ties to even, for |a| < 2^22: adding 1.5 * 2^23 leaves no room for a fraction.
OCTAVO_INLINE Vec round(Vec a) {
    const Vec magic = set(12582912.0f);
    return (a + magic) - magic;
}
typedef std::uint32_t Bits __attribute__((vector_size(16)));
OCTAVO_INLINE Vec power_of_two(Bits n) { return reinterpret_cast<Vec>((n + 127u) << 23); }
OCTAVO_INLINE Vec scale_by_power(Vec a, Vec n) {
    // The low bits of n + 1.5 * 2^23 are n itself: a conversion that is defined for NaN too.
    const Bits whole = reinterpret_cast<Bits>(n + set(12582912.0f)) - reinterpret_cast<Bits>(set(12582912.0f));
    const Bits half = reinterpret_cast<Bits>(reinterpret_cast<Mask>(whole) >> 1);
    return a * power_of_two(half) * power_of_two(whole - half);
}

#endif

// The sum of the lanes, always as the same tree: halves upon halves.
OCTAVO_INLINE float sum_lanes(Vec v) {
    float lanes[kLanes];
    store(lanes, v);
    for (int width = kLanes / 2; width > 0; width /= 2) {
        for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    }
    return lanes[0];
}

OCTAVO_INLINE float max_lanes(Vec v) {
    float lanes[kLanes];
    store(lanes, v);
    for (int width = kLanes / 2; width > 0; width /= 2) {
        for (int i = 0; i < width; ++i) lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
    }
    return lanes[0];
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
