// 8-bit low-rank adapters: both products are those of quantised matrices, and take inputs rounded in groups.
#pragma once

#include "adapters.h"

namespace octavo {

// Fills a slot with adapters of which each is None or ((codes [r, in], scales [r, groups of 32]), (codes [out, r], scales
// [out, groups of kAdapterGroup]), scale): codes plus 128, scales the bits of float16. Raises ValueError, having changed nothing,
// when they do not fit.
void pack_quantized(AdapterSlots::Slot& slot, const nb::list& adapters, const std::vector<std::int64_t>& out_sizes,
                    std::int64_t in_features);

// First product for the rows of a group, and its result rounded for the second: into records behind each row's hidden values.
// next: the matrices that this thread reads next; or null
void shrink_quantized(const RowGroup& group, const QuantizedRows& x, std::int64_t in_features, const Hidden& hidden,
                      const std::uint8_t* next);

// Where a slot's second matrices begin.
const std::uint8_t* quantized_up(const AdapterSlots::Slot& slot, std::int64_t in_features);

// Floats that the records of a row take.
std::int64_t hidden_record_floats(const AdapterSlots::Slot& slot);

// Second products for outputs of `blocks` of kAdapterOutputs, counted over parts. next: see shrink_quantized
void expand_quantized(const RowGroup& group, const AdapterSlots& adapters, const Hidden& hidden, const Range& blocks, float* out,
                      const std::uint8_t* next);

}  // namespace octavo
