// The machine's limits for benchmarks/roofline.py, one thread each: reading memory, float32 multiply-adds, and products of bytes
// summed to int32. Each function does a known amount of work; the caller takes the time.
#include <immintrin.h>
#include <string.h>

#if defined(__AVX512F__)
typedef __m512 Floats;
enum { kLanes = 16 };
#define LOAD _mm512_loadu_ps
#define ADD _mm512_add_ps
#define FMA _mm512_fmadd_ps
#define SET _mm512_set1_ps
#define STORE _mm512_storeu_ps
#else
typedef __m256 Floats;
enum { kLanes = 8 };
#define LOAD _mm256_loadu_ps
#define ADD _mm256_add_ps
#define FMA _mm256_fmadd_ps
#define SET _mm256_set1_ps
#define STORE _mm256_storeu_ps
#endif
enum { kChains = 10 };  // enough independent sums to hide the latency of a multiply-add

// Reads `count` floats, a multiple of 64.
void read_floats(const float* x, long count, float* out) {
    Floats sums[4] = {SET(0), SET(0), SET(0), SET(0)};
    for (long i = 0; i < count; i += 4 * kLanes) {
        _mm_prefetch((const char*)(x + i) + 4096, _MM_HINT_T1);
        for (int j = 0; j < 4; ++j) sums[j] = ADD(sums[j], LOAD(x + i + j * kLanes));
    }
    STORE(out, ADD(ADD(sums[0], sums[1]), ADD(sums[2], sums[3])));
}

// Returns the number of operations, two a multiply-add.
long multiply_add(long rounds, float* out) {
    Floats sums[kChains];
    const Floats a = SET(out[0]), b = SET(out[1]);
    for (int j = 0; j < kChains; ++j) sums[j] = SET((float)j);
    for (long i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
        for (int j = 0; j < kChains; ++j) sums[j] = FMA(sums[j], a, b);
    }
    for (int j = 0; j < kChains; ++j) STORE(out, ADD(sums[j], LOAD(out)));
    return rounds * kChains * kLanes * 2;
}

// Returns the number of operations: four products and four sums for each lane of int32.
long dot_bytes(long rounds, int* out) {
#if defined(__AVX512VNNI__)
    typedef __m512i Ints;
#define DOT(sum, a, b) _mm512_dpbusd_epi32(sum, a, b)
#define SET_INT _mm512_set1_epi32
#elif defined(__AVXVNNI__)
    typedef __m256i Ints;
#define DOT(sum, a, b) _mm256_dpbusd_avx_epi32(sum, a, b)
#define SET_INT _mm256_set1_epi32
#else
    typedef __m256i Ints;
#define DOT(sum, a, b) _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)))
#define SET_INT _mm256_set1_epi32
#endif
    Ints sums[kChains];
    const Ints b = SET_INT(out[1]);
    for (int j = 0; j < kChains; ++j) sums[j] = SET_INT(j);
    for (long i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
        for (int j = 0; j < kChains; ++j) sums[j] = DOT(sums[j], sums[j], b);
    }
    for (int j = 0; j < kChains; ++j) memcpy(out + j, &sums[j], sizeof(int));
    return rounds * kChains * (long)(sizeof(Ints) / 4) * 8;
}
