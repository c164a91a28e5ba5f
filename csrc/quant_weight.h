// Quantised matrices packed for the quantised linear kernel.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/quant_format.h"
#include "weight.h"

namespace octavo {

// One row of a quantised matrix, unpacked: one byte a code as it will be stored (bias added), scales and minimums as the format has
// them (see quant_format.h). Arrays that the format lacks are not touched.
struct QuantRow {
    std::uint8_t* codes;
    std::uint8_t* scales;
    std::uint16_t* coarse_scales;
    std::uint8_t* minimums;
    std::uint16_t* coarse_minimums;
};

// Rows of a quantised matrix that are still in some file's format. Called from several threads at once.
class QuantRowSource {
  public:
    virtual ~QuantRowSource() = default;
    virtual QuantFormat format() const = 0;
    virtual std::int64_t num_rows() const = 0;
    virtual std::int64_t num_columns() const = 0;
    virtual void read(std::int64_t index, const QuantRow& row) const = 0;
};

QuantPanelLayout quant_panel_layout(const QuantFormat& format, std::int64_t num_groups);

// True if the two lie in memory in the same way, so that their matrices can be one part.
bool same_format(const QuantFormat& a, const QuantFormat& b);

// Packs matrices of one format, stacked along the output axis.
std::unique_ptr<WeightPart> pack_quantized(const std::vector<const QuantRowSource*>& matrices);

// The rows of activations that a part with QuantFormat::group `group` reads, in memory of the calling thread that is valid until
// its next call for the same group. Call it outside of parallel_for.
QuantizedRows quantize_rows(const Matrix<const float>& x, int group);

}  // namespace octavo
