// The vector loops of the sampling ops: each works on one row of logits. csrc/sampling.cpp composes them.
#pragma once

#include <cstdint>

namespace octavo {

// A row is looked at in blocks of so many logits (the last may be shorter): the maximum of each block leads straight to the few
// blocks that can hold a likely token.
constexpr std::int64_t kLogitsBlock = 64;

inline constexpr std::int64_t num_logits_blocks(std::int64_t count) { return (count + kLogitsBlock - 1) / kLogitsBlock; }

struct SamplingKernels {
    // maxima[b] = the largest element of block b; NaN counts as -infinity. Returns whether x holds a NaN or +infinity.
    bool (*block_maxima)(const float* x, std::int64_t count, float* maxima);
    // The sum of exp(x[i] - largest).
    double (*exp_sum)(const float* x, std::int64_t count, float largest);
    // result[i] = (x[i] - largest) - log_sum.
    void (*log_softmax)(const float* x, std::int64_t count, float largest, float log_sum, float* result);
    // weights[i] = exp((x[i] - largest) / temperature), or 0 where that is below smallest; sums[b] = their sum over block b.
    void (*weigh)(const float* x, std::int64_t count, float largest, float temperature, float smallest, float* weights,
                  float* sums);
    // weights[i] = 0 where x[i] < threshold, or where x[i] == threshold and i > last_tied; sums as above.
    void (*cut)(const float* x, std::int64_t count, float threshold, std::int64_t last_tied, float* weights, float* sums);
    // 1 + the number of elements above x[index] + the number of equal ones before it.
    std::int32_t (*rank)(const float* x, std::int64_t count, std::int64_t index);
};

}  // namespace octavo
