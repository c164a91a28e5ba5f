// Quantising activations, expanding scales, and putting codes into the order of the panels.
#include "kernels/half.h"
#include "kernels/quant_linear.h"
#include "kernels/simd.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {
namespace {

constexpr float kSteps = 254.0f;
constexpr float kMaxCode = 127.0f;
constexpr float kTiny = 1e-30f;  // below it kSteps / x overflows; such a group counts as constant

// store_codes stores whole numbers in -127 .. 127 as bytes and returns their sum. any_nan is NaN if a lane is, else 0.
#if defined(OCTAVO_ISA_AVX512)

OCTAVO_INLINE float largest_lane(Vec v) { return _mm512_reduce_max_ps(v); }
OCTAVO_INLINE float any_nan(Vec v) { return _mm512_reduce_add_ps(v); }

template <int kVectors>
OCTAVO_INLINE std::int32_t store_codes(const Vec (&codes)[kVectors], std::uint8_t* out) {
    __m512i sum = _mm512_setzero_si512();
    for (int v = 0; v < kVectors; ++v) {
        const __m512i ints = _mm512_cvtps_epi32(codes[v]);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 16 * v), _mm512_cvtepi32_epi8(ints));
        sum = _mm512_add_epi32(sum, ints);
    }
    return _mm512_reduce_add_epi32(sum);
}

OCTAVO_INLINE Vec load_bytes_signed(const std::int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}

#elif defined(OCTAVO_ISA_AVX2)

OCTAVO_INLINE float largest_lane(Vec v) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}
OCTAVO_INLINE float any_nan(Vec v) { return sum_lanes(v); }

template <int kVectors>
OCTAVO_INLINE std::int32_t store_codes(const Vec (&codes)[kVectors], std::uint8_t* out) {
    __m128i sum = _mm_setzero_si128();
    for (int v = 0; v < kVectors; v += 2) {
        const __m256i a = _mm256_cvtps_epi32(codes[v]), b = _mm256_cvtps_epi32(codes[v + 1]);
        const __m256i shorts = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
        const __m128i low = _mm256_castsi256_si128(shorts), high = _mm256_extracti128_si256(shorts, 1);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 8 * v), _mm_packs_epi16(low, high));
        sum = _mm_add_epi32(sum, _mm_madd_epi16(_mm_add_epi16(low, high), _mm_set1_epi16(1)));
    }
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}

OCTAVO_INLINE Vec load_bytes_signed(const std::int8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

#else

OCTAVO_INLINE float largest_lane(Vec v) { return max_lanes(v); }
OCTAVO_INLINE float any_nan(Vec v) { return sum_lanes(v); }

template <int kVectors>
OCTAVO_INLINE std::int32_t store_codes(const Vec (&codes)[kVectors], std::uint8_t* out) {
    std::int32_t sum = 0;
    for (int v = 0; v < kVectors; ++v) {
        for (int i = 0; i < kLanes; ++i) {
            const std::int32_t code = static_cast<std::int32_t>(codes[v][i]);
            out[v * kLanes + i] = static_cast<std::uint8_t>(code);
            sum += code;
        }
    }
    return sum;
}

OCTAVO_INLINE Vec load_bytes_signed(const std::int8_t* p) {
    Vec v;
    for (int i = 0; i < kLanes; ++i) v[i] = static_cast<float>(p[i]);
    return v;
}

#endif

// 16 or 32 activations, all there.
template <int kGroup>
OCTAVO_INLINE void quantize_group(const float* x, std::uint8_t* record) {
    constexpr int kVectors = kGroup / kLanes;
    Vec values[kVectors];
    Vec largest = set(-3.4e38f), negated = set(-3.4e38f), poison = set(0.0f);
    for (int v = 0; v < kVectors; ++v) {
        values[v] = load(x + v * kLanes);
        largest = max(values[v], largest);  // passes over NaN ...
        negated = max(sub(set(0.0f), values[v]), negated);
        poison = fma(values[v], set(0.0f), poison);  // ... which stays here, as infinity * 0 does
    }
    const float high = largest_lane(largest), low = -largest_lane(negated);
    const float range = high - low;
    const bool constant = !(range >= kTiny);
    const float zero = 0.5f * (high + low);
    const Vec inverse = set(constant ? 0.0f : kSteps / range);
    Vec codes[kVectors];
    for (int v = 0; v < kVectors; ++v) {
        // max and min return the second operand for NaN: the code of a NaN is a number.
        codes[v] = round(min(max(mul(sub(values[v], set(zero)), inverse), set(-kMaxCode)), set(kMaxCode)));
    }
    const std::int32_t sum = store_codes(codes, record);
    RecordTail tail;
    tail.scale = constant ? 0.0f : range / kSteps;
    tail.zero = zero + any_nan(poison);
    tail.sum = tail.scale * static_cast<float>(sum) + static_cast<float>(kGroup) * tail.zero;
    tail.minus_128 = -128 * sum;
    std::memcpy(record + kGroup, &tail, sizeof(tail));
}

template <int kGroup>
void quantize(const float* x, std::int64_t size, std::uint8_t* records) {
    for (; size >= kGroup; size -= kGroup, x += kGroup, records += record_bytes(kGroup)) quantize_group<kGroup>(x, records);
    if (size > 0) {
        float padded[kGroup] = {};
        std::memcpy(padded, x, static_cast<std::size_t>(size) * sizeof(float));
        quantize_group<kGroup>(padded, records);
    }
}

OCTAVO_INLINE std::uint32_t read_four(const std::uint8_t* p) {
    std::uint32_t four;
    std::memcpy(&four, p, sizeof(four));
    return four;
}

}  // namespace

void quantize_row(const float* x, std::int64_t size, int group, std::uint8_t* records) {
    group == 32 ? quantize<32>(x, size, records) : quantize<16>(x, size, records);
}

void interleave_codes(const std::uint8_t* const* rows, std::int64_t size, int bits, std::uint8_t* panel) {
    const std::int64_t step = bits == 8 ? 4 : 8;
    for (std::int64_t k = 0; k < size; k += step) {
        for (std::int64_t c = 0; c < kQuantPanel; ++c, panel += 4) {
            std::uint32_t four = read_four(rows[c] + k);
            if (bits == 4) four |= read_four(rows[c] + k + 4) << 4;
            std::memcpy(panel, &four, sizeof(four));
        }
    }
}

void expand_scales(ScaleKind kind, int group, const std::uint8_t* fine, const std::uint8_t* coarse, std::int64_t first,
                   std::int64_t num_groups, float* out) {
    const std::int64_t start = first * kQuantPanel, count = num_groups * kQuantPanel;
    if (kind == ScaleKind::single) {
        std::memcpy(out, fine + start * 4, static_cast<std::size_t>(count) * sizeof(float));
    } else if (kind == ScaleKind::half) {
        const Half* halves = reinterpret_cast<const Half*>(fine) + start;
        for (std::int64_t i = 0; i < count; i += kLanes) store(out + i, load(halves + i));
    } else {
        const std::int8_t* factors = reinterpret_cast<const std::int8_t*>(fine) + start;
        const Half* halves = reinterpret_cast<const Half*>(coarse);
        for (std::int64_t g = 0; g < num_groups; ++g) {
            const Half* super = halves + (first + g) * group / kQuantSuperGroup * kQuantPanel;
            float* to = out + g * kQuantPanel;
            for (int c = 0; c < kQuantPanel; c += kLanes) {
                store(to + c, mul(load(super + c), load_bytes_signed(factors + g * kQuantPanel + c)));
            }
        }
    }
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
