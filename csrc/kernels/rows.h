// Kernels of one row each; see Kernels in kernels.h for what they compute.
#pragma once

#include "kernels/kernels.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {

void rms_norm(const float* x, const float* weight, float eps, std::int64_t n, float* out);
void add_rms_norm(const float* x, const float* residual, const float* weight, float eps, std::int64_t n, float* out,
                  float* total);
void layer_norm(const float* x, const float* weight, const float* bias, float eps, std::int64_t n, float* out);
void add_rows(const float* x, const float* y, std::int64_t n, float* out);
void map(Function function, const float* x, float parameter, std::int64_t n, float* out);
void map_and_mul(Function function, const float* gate, const float* up, std::int64_t n, float* out);
void rope(const float* x, std::int64_t head_stride, std::int64_t num_heads, std::int64_t head_dim, const float* cos_sin,
          std::int64_t rotary_dim, float* out);

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
