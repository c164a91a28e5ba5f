// The loops of csrc/kernels/sampling_kernels.h. Every sum runs in the same order for the same row, whatever the other rows are.
#include "kernels/sampling_kernels.h"

#include "kernels/kernels.h"
#include "kernels/math.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {
namespace {

constexpr float kInfinity = __builtin_huge_valf();

// Calls body(x, block) for every block; a short last block is padded with -infinity, which every loop here counts as nothing.
template <class Body>
OCTAVO_INLINE void for_each_block(const float* x, std::int64_t count, const Body& body) {
    const std::int64_t num_whole = count / kLogitsBlock;
    for (std::int64_t block = 0; block < num_whole; ++block) body(x + block * kLogitsBlock, block);
    const std::int64_t rest = count - num_whole * kLogitsBlock;
    if (rest == 0) return;
    float padded[kLogitsBlock];
    for (std::int64_t i = 0; i < kLogitsBlock; ++i) padded[i] = i < rest ? x[num_whole * kLogitsBlock + i] : -kInfinity;
    body(padded, num_whole);
}

// Copies as much of a block of results as the row has room for.
OCTAVO_INLINE void store_block(const float* values, std::int64_t block, std::int64_t count, float* row) {
    const std::int64_t begin = block * kLogitsBlock;
    const std::int64_t size = count - begin < kLogitsBlock ? count - begin : kLogitsBlock;
    std::memcpy(row + begin, values, static_cast<std::size_t>(size) * sizeof(float));
}

bool block_maxima(const float* x, std::int64_t count, float* maxima) {
    const Vec infinity = set(kInfinity), one = set(1.0f);
    Vec found = set(0.0f);
    for_each_block(x, count, [&](const float* values, std::int64_t block) {
        Vec largest = set(-kInfinity);
        for (int i = 0; i < kLogitsBlock; i += kLanes) {
            const Vec v = load(values + i);
            largest = max(v, largest);                        // with the largest so far second, max passes over a NaN
            found = select(less(v, infinity), found, one);  // false for +infinity and for NaN
        }
        maxima[block] = max_lanes(largest);
    });
    return max_lanes(found) != 0.0f;
}

// exp(x), which is 0 below -104: there without computing it, by way of subnormal numbers, which takes several times as long. A
// grammar forbids most of a row with -infinity.
OCTAVO_INLINE Vec exp_or_zero(Vec x) {
    const Vec zero = set(0.0f);
    const auto vanishes = less(x, set(-104.0f));
    return select(vanishes, zero, exp(select(vanishes, zero, x)));
}

double exp_sum(const float* x, std::int64_t count, float largest) {
    const Vec subtrahend = set(largest);
    double sum = 0.0;
    for_each_block(x, count, [&](const float* values, std::int64_t) {
        Vec partial = set(0.0f);
        for (int i = 0; i < kLogitsBlock; i += kLanes) partial = add(partial, exp_or_zero(sub(load(values + i), subtrahend)));
        sum += static_cast<double>(sum_lanes(partial));
    });
    return sum;
}

void log_softmax(const float* x, std::int64_t count, float largest, float log_sum, float* result) {
    for (std::int64_t i = 0; i < count; ++i) result[i] = (x[i] - largest) - log_sum;
}

void weigh(const float* x, std::int64_t count, float largest, float temperature, float smallest, float* weights, float* sums) {
    const Vec subtrahend = set(largest), divisor = set(temperature), floor = set(smallest), zero = set(0.0f);
    for_each_block(x, count, [&](const float* values, std::int64_t block) {
        float results[kLogitsBlock];
        Vec sum = zero;
        for (int i = 0; i < kLogitsBlock; i += kLanes) {
            const Vec weight = exp_or_zero(div(sub(load(values + i), subtrahend), divisor));
            const Vec kept = select(less(weight, floor), zero, weight);
            store(results + i, kept);
            sum = add(sum, kept);
        }
        sums[block] = sum_lanes(sum);
        store_block(results, block, count, weights);
    });
}

void cut(const float* x, std::int64_t count, float threshold, std::int64_t last_tied, float* weights, float* sums) {
    for (std::int64_t i = 0; i < count; ++i) weights[i] = x[i] < threshold ? 0.0f : weights[i];
    for (std::int64_t i = last_tied + 1; i < count; ++i) weights[i] = x[i] == threshold ? 0.0f : weights[i];
    for_each_block(weights, count, [&](const float* values, std::int64_t block) {
        Vec sum = set(0.0f);
        // the padding of the last block is -infinity
        for (int i = 0; i < kLogitsBlock; i += kLanes) sum = add(sum, max(set(0.0f), load(values + i)));
        sums[block] = sum_lanes(sum);
    });
}

std::int32_t rank(const float* x, std::int64_t count, std::int64_t index) {
    const float value = x[index];
    std::int32_t num_above = 0, num_equal = 0;
    for (std::int64_t i = 0; i < count; ++i) num_above += x[i] > value;
    for (std::int64_t i = 0; i < index; ++i) num_equal += x[i] == value;
    return 1 + num_above + num_equal;
}

}  // namespace

extern const SamplingKernels sampling_kernels = {
    block_maxima, exp_sum, log_softmax, weigh, cut, rank,
};

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
