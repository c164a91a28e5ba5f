// Integer dot products of 4 weights and 4 activations per 32-bit lane, for the instruction set being compiled.
//
// A column vector holds kColumns output columns of one panel, 4 bytes each. Exactness: every intermediate fits its type, hence the
// sum of a group is exact and the same for every instruction set:
//   4-bit, 16-bit sums: a lane adds 2 products of 15 * 127 for each of at most 8 steps of a group of 32: 30480 < 32767.
//   8-bit, 16-bit sums: 2 products of at most 128 * 127: 32512 < 32767.
//   32-bit sums: at most 255 * 127 * 32 in a group, far below 2^24, so that the conversion to float32 is exact too.
#pragma once

#include "kernels/quant_format.h"
#include "kernels/simd.h"

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define OCTAVO_HAS_DPBUSD 1
#endif

namespace octavo::OCTAVO_ISA_NAMESPACE {

OCTAVO_INLINE RecordTail read_tail(const std::uint8_t* record, int group) {
    RecordTail tail;
    std::memcpy(&tail, record + group, sizeof(tail));
    return tail;
}

OCTAVO_INLINE std::int32_t read_four(const std::uint8_t* p) {
    std::int32_t four;
    std::memcpy(&four, p, sizeof(four));
    return four;
}

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

#elif defined(OCTAVO_ISA_AVX2)

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

#if defined(OCTAVO_ISA_AVX2) || defined(OCTAVO_ISA_AVX512)

constexpr int kVectorsPerPanel = static_cast<int>(kQuantPanel) / kColumns;
constexpr int kVectorBytes = 4 * kColumns;

// The dot products of one row and one column vector over a group.
template <int kBits, bool kMinimums>
struct Dots {
    Ints sum;

    // What the bias of signed codes added to the dot product, negated.
    static OCTAVO_INLINE Ints unbias(const RecordTail& tail) {
        if constexpr (kBits == 8) return set_int(tail.minus_128);
        return kMinimums ? set_int(0) : shift_ints_right_4(set_int(tail.minus_128));
    }

    OCTAVO_INLINE void start(const RecordTail& tail) {
#if defined(OCTAVO_HAS_DPBUSD)
        sum = unbias(tail);
#else
        (void)tail;
        sum = set_int(0);
#endif
    }

    // weights: codes as stored, one a byte; x: 4 activations in every lane.
    OCTAVO_INLINE void add(Ints weights, Ints magnitudes, Ints x) {
#if defined(OCTAVO_HAS_DPBUSD)
        (void)magnitudes;
        sum = dpbusd(sum, weights, x);
#else
        if constexpr (kBits == 8) {
            sum = add_ints(sum, sum_pairs(multiply_bytes(magnitudes, sign_bytes(x, weights))));
        } else {
            (void)magnitudes;
            sum = add_shorts(sum, multiply_bytes(weights, x));
        }
#endif
    }

    OCTAVO_INLINE Vec finish(const RecordTail& tail) const {
#if defined(OCTAVO_HAS_DPBUSD)
        (void)tail;
        return to_float(sum);
#else
        if constexpr (kBits == 8) return to_float(sum);
        const Ints total = sum_pairs(sum);
        return to_float(kMinimums ? total : add_ints(total, unbias(tail)));
#endif
    }
};

// The sums of the codes of one column vector over a group. A single row sums them on the way; several rows share what sum_codes
// found, which is the same to the bit.
template <int kBits, int kGroup, bool kMinimums>
struct CodeSums {
    static constexpr std::int32_t kMinusBias = -kGroup * (kBits == 8 ? 128 : kMinimums ? 0 : 8);
    Ints sum;

    OCTAVO_INLINE void start() {
#if defined(OCTAVO_HAS_DPBUSD)
        sum = set_int(kMinusBias);
#else
        sum = set_int(0);
#endif
    }

    // codes: as stored, one a byte
    OCTAVO_INLINE void add(Ints codes) {
#if defined(OCTAVO_HAS_DPBUSD)
        sum = dpbusd(sum, codes, set_byte(1));
#else
        sum = add_shorts(sum, multiply_bytes(codes, set_byte(1)));  // at most 8 * 2 * 255
#endif
    }

    OCTAVO_INLINE Vec finish() const {
#if defined(OCTAVO_HAS_DPBUSD)
        return to_float(sum);
#else
        return to_float(add_ints(sum_pairs(sum), set_int(kMinusBias)));
#endif
    }
};

#endif

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
