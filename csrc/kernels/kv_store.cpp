// Writing keys and values to the cache, rounded to its element type.
#include "kernels/kv_cache.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {
namespace {

constexpr float kLargestHalf = 65504.0f;
constexpr float kLargestInt8 = 127.0f;

// A vector to the nearest float16, ties to even; what is too large for it becomes the largest, NaN stays NaN.
OCTAVO_INLINE void to_half(Vec x, std::uint16_t* out) {
    const Vec limited = max(set(-kLargestHalf), min(set(kLargestHalf), x));  // with x second, a NaN is handed on
#if defined(OCTAVO_ISA_AVX512)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtps_ph(limited, _MM_FROUND_TO_NEAREST_INT));
#elif defined(OCTAVO_ISA_AVX2)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_cvtps_ph(limited, _MM_FROUND_TO_NEAREST_INT));
#else
    for (int i = 0; i < kLanes; ++i) {
        const float number = limited[i];
        std::uint32_t bits;
        std::memcpy(&bits, &number, sizeof(bits));
        const std::uint16_t sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
        const float magnitude = number < 0 ? -number : number;
        if (!(magnitude <= kLargestHalf)) {
            out[i] = static_cast<std::uint16_t>(sign | 0x7e00);
        } else if (magnitude < 6.103515625e-05f) {  // subnormal: adding 0.5 leaves the multiples of 2^-24 as the last bits
            const float shifted = magnitude + 0.5f;
            std::memcpy(&bits, &shifted, sizeof(bits));
            out[i] = static_cast<std::uint16_t>(sign | (bits & 0x7fff));
        } else {
            std::memcpy(&bits, &magnitude, sizeof(bits));
            bits += 0xfff + (bits >> 13 & 1);
            out[i] = static_cast<std::uint16_t>(sign | ((bits - (112u << 23)) >> 13));
        }
    }
#endif
}

void to_halves(const float* x, std::int64_t n, std::uint16_t* out, std::int64_t stride) {
    std::uint16_t halves[kLanes];
    for (std::int64_t i = 0; i < n; i += kLanes) {
        const std::int64_t count = n - i < kLanes ? n - i : kLanes;
        to_half(count == kLanes ? load(x + i) : load_first(x + i, count), halves);
        if (stride == 1) {
            std::memcpy(out + i, halves, static_cast<std::size_t>(count) * sizeof(std::uint16_t));
        } else {
            for (std::int64_t lane = 0; lane < count; ++lane) out[(i + lane) * stride] = halves[lane];
        }
    }
}

// Writes x as multiples of a scale, which it returns: largest magnitude / 127. NaN if x holds a NaN or infinity, so that whoever
// reads it back gets NaN.
float to_int8(const float* x, std::int64_t n, std::int8_t* out, std::int64_t stride) {
    Vec largest = set(0.0f);
    Vec zeros = set(0.0f);  // or NaN
    for (std::int64_t i = 0; i < n; i += kLanes) {
        const Vec v = n - i >= kLanes ? load(x + i) : load_first(x + i, n - i);
        largest = max(abs(v), largest);
        zeros = fma(v, set(0.0f), zeros);
    }
    const float magnitude = max_lanes(largest);
    const float zero = sum_lanes(zeros);
    if (!(zero == 0.0f)) {
        for (std::int64_t i = 0; i < n; ++i) out[i * stride] = 0;
        return zero;
    }
    const Vec inverse = set(magnitude > 0.0f ? kLargestInt8 / magnitude : 0.0f);
    float rounded[kLanes];
    for (std::int64_t i = 0; i < n; i += kLanes) {
        const std::int64_t count = n - i < kLanes ? n - i : kLanes;
        const Vec v = count == kLanes ? load(x + i) : load_first(x + i, count);
        // 127 / magnitude overflows for the smallest magnitudes: the limits keep the codes in range
        store(rounded, round(min(max(mul(v, inverse), set(-kLargestInt8)), set(kLargestInt8))));
        for (std::int64_t lane = 0; lane < count; ++lane) out[(i + lane) * stride] = static_cast<std::int8_t>(rounded[lane]);
    }
    return magnitude / kLargestInt8;
}

void store_scale(std::uint8_t* part, std::int64_t num_codes, std::int64_t index, float scale) {
    std::memcpy(part + num_codes + index * static_cast<std::int64_t>(sizeof(float)), &scale, sizeof(scale));
}

}  // namespace

void store_kv(KvType type, const float* key, const float* value, std::int64_t head_dim, std::int64_t block_size,
              std::int64_t offset, std::uint8_t* keys, std::uint8_t* values) {
    switch (type) {
        case KvType::float32: {
            float* column = reinterpret_cast<float*>(keys) + offset;
            for (std::int64_t i = 0; i < head_dim; ++i) column[i * block_size] = key[i];
            std::memcpy(reinterpret_cast<float*>(values) + offset * head_dim, value,
                        static_cast<std::size_t>(head_dim) * sizeof(float));
            return;
        }
        case KvType::float16:
            to_halves(key, head_dim, reinterpret_cast<std::uint16_t*>(keys) + offset, block_size);
            to_halves(value, head_dim, reinterpret_cast<std::uint16_t*>(values) + offset * head_dim, 1);
            return;
        case KvType::int8: {
            const std::int64_t num_codes = block_size * head_dim;
            store_scale(keys, num_codes, offset,
                        to_int8(key, head_dim, reinterpret_cast<std::int8_t*>(keys) + offset, block_size));
            store_scale(values, num_codes, offset,
                        to_int8(value, head_dim, reinterpret_cast<std::int8_t*>(values) + offset * head_dim, 1));
            return;
        }
    }
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
