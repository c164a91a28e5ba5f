#include "sampling_row.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

namespace octavo {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// How many of the most likely tokens a nucleus is first looked for in: enough for all but nearly flat distributions.
constexpr std::int64_t kNucleusGuess = 256;

// Buckets of a wide nucleus: by distance from the largest logit, in steps of 1/64 after the temperature; the last holds the rest.
constexpr int kNumBuckets = 2048;
constexpr float kBucketsPerUnit = 64.0f;

// Sorting is undefined with NaN. Rows with one have no right answer, but must not break the process.
float without_nan(float x) { return x == x ? x : -kInfinity; }

// The k-th largest value; reorders them.
float kth_largest(std::vector<float>& values, std::int64_t k) {
    const auto kth = values.begin() + (k - 1);
    std::nth_element(values.begin(), kth, values.end(), std::greater<float>());
    return *kth;
}

}  // namespace

void RowSampler::begin(const SamplingKernels& kernels, const float* x, std::int64_t count) {
    kernels_ = &kernels;
    x_ = x;
    count_ = count;
    maxima_.resize(static_cast<std::size_t>(num_logits_blocks(count)));
    const bool not_finite = kernels.block_maxima(x, count, maxima_.data());
    largest_ = *std::max_element(maxima_.begin(), maxima_.end());
    is_bad_ = not_finite || largest_ == -kInfinity;
}

std::int32_t RowSampler::argmax() const {
    const auto block = std::find(maxima_.begin(), maxima_.end(), largest_) - maxima_.begin();
    const std::int64_t begin = std::min<std::int64_t>(block * kLogitsBlock, count_ - 1);
    const std::int64_t end = std::min(begin + kLogitsBlock, count_);
    return static_cast<std::int32_t>(std::find(x_ + begin, x_ + end, largest_) - x_);
}

float RowSampler::log_sum() const { return static_cast<float>(std::log(kernels_->exp_sum(x_, count_, largest_))); }

void RowSampler::most_likely(std::int64_t k, std::int32_t* ids) {
    if (k == 0) return;
    gather_top(k);
    for (std::int64_t i = 0; i < k; ++i) ids[i] = candidates_[static_cast<std::size_t>(i)].id;
}

// Collects every id whose logit reaches the threshold, in id order.
void RowSampler::gather(float threshold) {
    candidates_.clear();
    for (std::size_t block = 0; block < maxima_.size(); ++block) {
        if (maxima_[block] < threshold) continue;
        const std::int64_t begin = static_cast<std::int64_t>(block) * kLogitsBlock;
        const std::int64_t end = std::min(begin + kLogitsBlock, count_);
        for (std::int64_t i = begin; i < end; ++i) {
            const float logit = without_nan(x_[i]);
            if (logit >= threshold) candidates_.push_back({logit, static_cast<std::int32_t>(i)});
        }
    }
}

// A value that at least k logits reach: the k-th largest of the blocks' maxima.
float RowSampler::kth_block_maximum(std::int64_t k) {
    if (k > static_cast<std::int64_t>(maxima_.size())) return -kInfinity;
    selection_ = maxima_;
    return kth_largest(selection_, k);
}

// Collects the k largest and all that tie with the last of them, in descending order, ties by id.
void RowSampler::gather_top(std::int64_t k) {
    gather(kth_block_maximum(k));
    if (static_cast<std::int64_t>(candidates_.size()) > k) {
        selection_.resize(candidates_.size());
        std::transform(candidates_.begin(), candidates_.end(), selection_.begin(), [](const Candidate& c) { return c.logit; });
        const float threshold = kth_largest(selection_, k);
        candidates_.erase(std::remove_if(candidates_.begin(), candidates_.end(),
                                         [threshold](const Candidate& c) { return c.logit < threshold; }),
                          candidates_.end());
    }
    std::sort(candidates_.begin(), candidates_.end());
}

std::int32_t RowSampler::sample(const SamplingOptions& options) {
    if (options.top_k > 0 && options.top_k <= static_cast<std::int64_t>(maxima_.size())) return sample_from_top(options);
    weights_.resize(static_cast<std::size_t>(count_));
    sums_.resize(maxima_.size());
    kernels_->weigh(x_, count_, largest_, options.temperature, options.min_p, weights_.data(), sums_.data());
    if (options.top_k > 0 && options.top_k < count_) {
        selection_.resize(static_cast<std::size_t>(count_));
        std::transform(x_, x_ + count_, selection_.begin(), without_nan);
        const float threshold = kth_largest(selection_, options.top_k);
        kernels_->cut(x_, count_, threshold, count_ - 1, weights_.data(), sums_.data());
    }
    if (options.top_p < 1.0f) cut_to_nucleus(options);
    return draw(options.uniform);
}

// For a top_k so small that the rest of the vocabulary need not be weighed at all.
std::int32_t RowSampler::sample_from_top(const SamplingOptions& options) {
    gather_top(options.top_k);
    masses_.resize(candidates_.size());
    double total = 0.0;
    std::size_t num_kept = 0;
    for (; num_kept < candidates_.size(); ++num_kept) {
        const double distance = static_cast<double>(candidates_[num_kept].logit) - static_cast<double>(largest_);
        const double mass = std::exp(distance / static_cast<double>(options.temperature));
        if (num_kept > 0 && mass < static_cast<double>(options.min_p)) break;
        masses_[num_kept] = mass;
        total += mass;
    }
    if (options.top_p < 1.0f) {
        const double target = total * static_cast<double>(options.top_p);
        double reached = 0.0;
        for (std::size_t i = 0; i < num_kept && reached < target; ++i) {
            reached += masses_[i];
            if (reached >= target) num_kept = i + 1;
        }
        total = std::accumulate(masses_.begin(), masses_.begin() + static_cast<std::ptrdiff_t>(num_kept), 0.0);
    }
    // the draw walks in id order, so the masses follow their ids
    by_id_.clear();
    for (std::size_t i = 0; i < num_kept; ++i) by_id_.emplace_back(candidates_[i].id, masses_[i]);
    std::sort(by_id_.begin(), by_id_.end());
    const double target = options.uniform * total;
    double cumulative = 0.0;
    std::int32_t last = candidates_.front().id;
    for (const auto& [id, mass] : by_id_) {
        cumulative += mass;
        if (mass > 0.0) last = id;
        if (cumulative > target) return id;
    }
    return last;
}

// Zeroes the weights of what lies outside the smallest set of the most likely tokens whose mass reaches top_p of the total.
void RowSampler::cut_to_nucleus(const SamplingOptions& options) {
    const double total = std::accumulate(sums_.begin(), sums_.end(), 0.0);
    if (!cut_within_candidates(total * static_cast<double>(options.top_p))) cut_by_buckets(options);
}

// The usual case: the nucleus ends among a few hundred tokens. False, having done nothing, if it does not.
bool RowSampler::cut_within_candidates(double target) {
    if (kNucleusGuess > static_cast<std::int64_t>(maxima_.size())) return false;
    gather(kth_block_maximum(kNucleusGuess));
    double total = 0.0;
    for (const Candidate& candidate : candidates_) total += mass(candidate.id);
    if (total < target) return false;
    std::sort(candidates_.begin(), candidates_.end());
    double reached = 0.0;
    for (const Candidate& candidate : candidates_) {
        reached += mass(candidate.id);
        if (reached >= target) {
            kernels_->cut(x_, count_, candidate.logit, candidate.id, weights_.data(), sums_.data());
            return true;
        }
    }
    return false;  // the two orders of summation differ by a rounding
}

void RowSampler::cut_by_buckets(const SamplingOptions& options) {
    const float scale = kBucketsPerUnit / options.temperature;
    const auto bucket_of = [&](float logit) {
        const float distance = (largest_ - logit) * scale;
        return distance < static_cast<float>(kNumBuckets - 1) ? static_cast<int>(distance) : kNumBuckets - 1;
    };
    masses_.assign(kNumBuckets, 0.0);
    for (std::int64_t i = 0; i < count_; ++i) {
        if (weight(i) > 0.0f) masses_[static_cast<std::size_t>(bucket_of(x_[i]))] += mass(i);
    }
    const double target = std::accumulate(masses_.begin(), masses_.end(), 0.0) * static_cast<double>(options.top_p);
    double reached = 0.0;
    int border = 0;
    while (border < kNumBuckets - 1 && reached + masses_[static_cast<std::size_t>(border)] < target) {
        reached += masses_[static_cast<std::size_t>(border++)];
    }
    candidates_.clear();
    for (std::int64_t i = 0; i < count_; ++i) {
        if (weight(i) > 0.0f && bucket_of(x_[i]) == border) {
            candidates_.push_back({x_[i], static_cast<std::int32_t>(i)});
        }
    }
    std::sort(candidates_.begin(), candidates_.end());
    for (const Candidate& candidate : candidates_) {
        reached += mass(candidate.id);
        if (reached >= target) {
            kernels_->cut(x_, count_, candidate.logit, candidate.id, weights_.data(), sums_.data());
            return;
        }
    }
}

// The first id whose cumulative weight, in id order, exceeds uniform * total.
std::int32_t RowSampler::draw(double uniform) const {
    const double target = uniform * std::accumulate(sums_.begin(), sums_.end(), 0.0);
    double cumulative = 0.0;
    for (std::size_t block = 0; block < sums_.size(); ++block) {
        const double after = cumulative + static_cast<double>(sums_[block]);
        if (!(after > target)) {
            cumulative = after;
            continue;
        }
        const std::int64_t begin = static_cast<std::int64_t>(block) * kLogitsBlock;
        const std::int64_t end = std::min(begin + kLogitsBlock, count_);
        std::int64_t last = begin;
        for (std::int64_t i = begin; i < end; ++i) {
            cumulative += mass(i);
            if (weight(i) > 0.0f) last = i;
            if (cumulative > target) return static_cast<std::int32_t>(i);
        }
        return static_cast<std::int32_t>(last);  // the block's sum was rounded up beyond its elements'
    }
    return last_with_weight();
}

std::int32_t RowSampler::last_with_weight() const {
    for (std::int64_t i = count_ - 1; i > 0; --i) {
        if (weight(i) > 0.0f) return static_cast<std::int32_t>(i);
    }
    return 0;
}

}  // namespace octavo
