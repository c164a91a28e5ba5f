// The attention kernels; see AttentionShare and Kernels in kernels.h.
#pragma once

#include "kernels/kernels.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {

void attend_span(const AttentionShare& share, std::int64_t span, const AttentionState& state);
void merge_attention(const AttentionState& state, const AttentionState& later, std::int64_t num_queries,
                     std::int64_t head_dim);
void finish_attention(const float* values, float sum, std::int64_t head_dim, float* out);

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
