// Element types of the key/value cache: reading them as vectors of float32, and writing keys and values.
//
// What belongs to one block and one head: its keys as [head_dim][block_size], so that a vector holds one element of several keys
// and scores need no transposition; its values as [block_size][head_dim]. An int8 part is followed by the block_size float32
// scales of its keys or values.
#pragma once

#include "kernels/half.h"
#include "kernels/kernels.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {

#if defined(OCTAVO_ISA_AVX512)
OCTAVO_INLINE Vec load(const std::int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
#elif defined(OCTAVO_ISA_AVX2)
OCTAVO_INLINE Vec load(const std::int8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
#else
OCTAVO_INLINE Vec load(const std::int8_t* p) {
    Vec v;
    for (int i = 0; i < kLanes; ++i) v[i] = static_cast<float>(p[i]);
    return v;
}
#endif

template <class T>
OCTAVO_INLINE Vec load_first(const T* p, std::int64_t count) {
    T padded[kLanes] = {};
    std::memcpy(padded, p, static_cast<std::size_t>(count) * sizeof(T));
    return load(padded);
}

// out[0 .. n) = p[0 .. n) as float32.
template <class T>
OCTAVO_INLINE void widen(const T* p, std::int64_t n, float* out) {
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(out + i, load(p + i));
    if (i < n) store_first(out + i, load_first(p + i, n - i), n - i);
}

// Writes one token's key and value of one head: see Kernels::store_kv.
void store_kv(KvType type, const float* key, const float* value, std::int64_t head_dim, std::int64_t block_size,
              std::int64_t offset, std::uint8_t* keys, std::uint8_t* values);

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
