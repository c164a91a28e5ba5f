// Integer dot products of 4 weights and 4 activations per 32-bit lane, for the instruction set being compiled.
//
// A column vector holds kColumns output columns of one panel, 4 bytes each. Exactness: every intermediate fits its type, hence the
// sum of a group is exact and the same for every instruction set:
//   4-bit, 16-bit sums: a lane adds 2 products of 15 * 127 for each of at most 8 steps of a group of 32: 30480 < 32767.
//   8-bit, 16-bit sums: 2 products of at most 128 * 127: 32512 < 32767.
//   32-bit sums: at most 255 * 127 * 32 in a group, far below 2^24, so that the conversion to float32 is exact too.
#pragma once

#include "kernels/simd.h"

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define OCTAVO_HAS_DPBUSD 1
#endif

namespace octavo::OCTAVO_ISA_NAMESPACE {

#if defined(OCTAVO_ISA_AVX512)

using Ints = __m512i;
constexpr int kColumns = 16;

OCTAVO_INLINE Ints load_bytes(const std::uint8_t* p) { return _mm512_loadu_si512(p); }
OCTAVO_INLINE Ints set_int(std::int32_t x) { return _mm512_set1_epi32(x); }
OCTAVO_INLINE Ints set_byte(char x) { return _mm512_set1_epi8(x); }
OCTAVO_INLINE Ints and_bits(Ints a, Ints b) { return _mm512_and_si512(a, b); }
OCTAVO_INLINE Ints xor_bits(Ints a, Ints b) { return _mm512_xor_si512(a, b); }
OCTAVO_INLINE Ints shift_right_4(Ints a) { return _mm512_srli_epi16(a, 4); }
OCTAVO_INLINE Ints shift_ints_right_4(Ints a) { return _mm512_srai_epi32(a, 4); }
OCTAVO_INLINE Ints add_ints(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
OCTAVO_INLINE Ints add_shorts(Ints a, Ints b) { return _mm512_add_epi16(a, b); }
OCTAVO_INLINE Ints multiply_bytes(Ints a, Ints b) { return _mm512_maddubs_epi16(a, b); }
OCTAVO_INLINE Ints sum_pairs(Ints a) { return _mm512_madd_epi16(a, _mm512_set1_epi16(1)); }
OCTAVO_INLINE Ints abs_bytes(Ints a) { return _mm512_abs_epi8(a); }
// a where b is 0 or more, else -a. Where b is 0 it differs from AVX2's, but there |b| = 0 is the other factor.
OCTAVO_INLINE Ints sign_bytes(Ints a, Ints b) {
    return _mm512_mask_sub_epi8(a, _mm512_movepi8_mask(b), _mm512_setzero_si512(), a);
}
OCTAVO_INLINE Vec to_float(Ints a) { return _mm512_cvtepi32_ps(a); }
#if defined(OCTAVO_HAS_DPBUSD)
OCTAVO_INLINE Ints dpbusd(Ints sum, Ints weights, Ints x) { return _mm512_dpbusd_epi32(sum, weights, x); }
#endif

#else

using Ints = __m256i;
constexpr int kColumns = 8;

OCTAVO_INLINE Ints load_bytes(const std::uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
OCTAVO_INLINE Ints set_int(std::int32_t x) { return _mm256_set1_epi32(x); }
OCTAVO_INLINE Ints set_byte(char x) { return _mm256_set1_epi8(x); }
OCTAVO_INLINE Ints and_bits(Ints a, Ints b) { return _mm256_and_si256(a, b); }
OCTAVO_INLINE Ints xor_bits(Ints a, Ints b) { return _mm256_xor_si256(a, b); }
OCTAVO_INLINE Ints shift_right_4(Ints a) { return _mm256_srli_epi16(a, 4); }
OCTAVO_INLINE Ints shift_ints_right_4(Ints a) { return _mm256_srai_epi32(a, 4); }
OCTAVO_INLINE Ints add_ints(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
OCTAVO_INLINE Ints add_shorts(Ints a, Ints b) { return _mm256_add_epi16(a, b); }
OCTAVO_INLINE Ints multiply_bytes(Ints a, Ints b) { return _mm256_maddubs_epi16(a, b); }
OCTAVO_INLINE Ints sum_pairs(Ints a) { return _mm256_madd_epi16(a, _mm256_set1_epi16(1)); }
OCTAVO_INLINE Ints abs_bytes(Ints a) { return _mm256_abs_epi8(a); }
OCTAVO_INLINE Ints sign_bytes(Ints a, Ints b) { return _mm256_sign_epi8(a, b); }
OCTAVO_INLINE Vec to_float(Ints a) { return _mm256_cvtepi32_ps(a); }
#if defined(OCTAVO_HAS_DPBUSD)
OCTAVO_INLINE Ints dpbusd(Ints sum, Ints weights, Ints x) { return _mm256_dpbusd_avx_epi32(sum, weights, x); }
#endif

#endif

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
