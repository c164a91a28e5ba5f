// Sampling of one row of logits on the calling thread. Knows one row; never NumPy, never other rows.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/sampling_kernels.h"

namespace octavo {

struct SamplingOptions {
    float temperature;  // > 0
    std::int32_t top_k;  // 0 = off
    float top_p;
    float min_p;
    double uniform;  // in [0, 1)
};

// A row, and memory to work in that is kept from row to row (one per thread).
class RowSampler {
  public:
    // Looks at x[0 .. count), count > 0, which must stay valid while the other members are called.
    void begin(const SamplingKernels& kernels, const float* x, std::int64_t count);

    float largest() const { return largest_; }
    // Does the row hold a NaN or +infinity, or nothing finite?
    bool is_bad() const { return is_bad_; }
    // The lowest index of the maximum; the row must not be bad.
    std::int32_t argmax() const;
    // log(sum(exp(x - largest))).
    float log_sum() const;
    // Writes the ids of the k most likely, descending, ties to the lower id; 0 <= k <= count.
    void most_likely(std::int64_t k, std::int32_t* ids);
    std::int32_t sample(const SamplingOptions& options);

  private:
    struct Candidate {
        float logit;
        std::int32_t id;
        bool operator<(const Candidate& other) const {
            return logit != other.logit ? logit > other.logit : id < other.id;
        }
    };

    float weight(std::int64_t id) const { return weights_[static_cast<std::size_t>(id)]; }
    double mass(std::int64_t id) const { return static_cast<double>(weight(id)); }

    void gather(float threshold);
    float kth_block_maximum(std::int64_t k);
    void gather_top(std::int64_t k);
    std::int32_t sample_from_top(const SamplingOptions& options);
    void cut_to_nucleus(const SamplingOptions& options);
    bool cut_within_candidates(double target);
    void cut_by_buckets(const SamplingOptions& options);
    std::int32_t draw(double uniform) const;
    std::int32_t last_with_weight() const;

    const SamplingKernels* kernels_ = nullptr;
    const float* x_ = nullptr;
    std::int64_t count_ = 0;
    float largest_ = 0;
    bool is_bad_ = false;
    std::vector<float> maxima_;  // of each block
    std::vector<float> selection_;
    std::vector<Candidate> candidates_;
    std::vector<double> masses_;
    std::vector<std::pair<std::int32_t, double>> by_id_;
    std::vector<float> weights_, sums_;
};

}  // namespace octavo
