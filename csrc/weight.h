// A float32 matrix packed for the linear kernel.
#pragma once

#include <cstdint>
#include <memory>

#include "arrays.h"
#include "kernels/kernels.h"

namespace octavo {

// [out_features, in_features] in panels of panel_width output columns: [panel][in_features][panel_width], zero-padded. It
// remembers the kernels that it was packed for, so that a change of instruction set later leaves it usable.
class PackedWeight {
  public:
    // Packs matrices stacked along the output axis. Call it without the GIL. Throws std::bad_alloc.
    PackedWeight(const Matrix<const float>* matrices, std::int64_t num_matrices);

    std::int64_t out_features() const { return out_features_; }
    std::int64_t in_features() const { return in_features_; }
    std::int64_t num_panels() const { return (out_features_ + panel_width() - 1) / panel_width(); }
    std::int64_t panel_width() const { return kernels_->panel_width; }
    const Kernels& kernels() const { return *kernels_; }
    const float* panel(std::int64_t index) const { return data_.get() + index * in_features_ * panel_width(); }

    // Copies one row of the matrix to out [in_features].
    void read_row(std::int64_t index, float* out) const;

  private:
    void pack_row(const float* row, std::int64_t index);

    struct Free {
        void operator()(float* memory) const;
    };

    const Kernels* kernels_;
    std::int64_t out_features_ = 0;
    std::int64_t in_features_ = 0;
    std::unique_ptr<float, Free> data_;
};

// Binds pack, linear and embedding.
void bind_linear(nb::module_& m);

}  // namespace octavo
