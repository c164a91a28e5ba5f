// The quantised linear kernel and its helpers; see quant_format.h for the layouts.
#pragma once

#include "kernels/kernels.h"
#include "kernels/quant_format.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {

#if defined(__AVX512VNNI__)
constexpr double kQuantProductsPerNs = 250;
#elif defined(OCTAVO_ISA_AVX512) || defined(__AVXVNNI__)
constexpr double kQuantProductsPerNs = 120;
#elif defined(OCTAVO_ISA_AVX2)
constexpr double kQuantProductsPerNs = 70;
#else
constexpr double kQuantProductsPerNs = 3;
#endif

void quant_linear(const QuantShare& share);

// One row of `size` activations into records of `group`, the last group padded with zeros. A group that holds a NaN or an infinity
// has the zero NaN, so that every output that reads it is NaN.
void quantize_row(const float* x, std::int64_t size, int group, std::uint8_t* records);

// Codes of the rows of one panel, each in bytes as stored (see quant_format.h), into the panel's order.
// rows: kQuantPanel pointers to num_groups * group bytes each.
void interleave_codes(const std::uint8_t* const* rows, std::int64_t size, int bits, std::uint8_t* panel);

// Scales (or minimums) of `num_groups` groups from group `first`, to float32 [group][column].
void expand_scales(ScaleKind kind, int group, const std::uint8_t* fine, const std::uint8_t* coarse, std::int64_t first,
                   std::int64_t num_groups, float* out);

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
