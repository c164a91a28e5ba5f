// Packed matrices: what linear and embedding ask of any of them, and the float32 one.
#pragma once

#include <cstdint>
#include <memory>

#include "arrays.h"
#include "kernels/kernels.h"

namespace octavo {

// A matrix [out_features, in_features] in some packed form. Its members work on plain memory, need no GIL and check nothing.
class Weight {
  public:
    virtual ~Weight() = default;

    std::int64_t out_features() const { return out_features_; }
    std::int64_t in_features() const { return in_features_; }

    // out [x.rows, out_features] = x w^T + bias (null: none), on the thread pool. x.rows may be 0.
    virtual void linear(const Matrix<const float>& x, const float* bias, float* out) const = 0;

    // Copies one row of the matrix to out [in_features].
    virtual void read_row(std::int64_t index, float* out) const = 0;

  protected:
    std::int64_t out_features_ = 0;
    std::int64_t in_features_ = 0;
};

// Copies rows `ids` of the table, all within it, to out [count, in_features], on the thread pool.
void run_embedding(const std::int32_t* ids, std::int64_t count, const Weight& table, float* out);

// A float32 matrix in panels of panel_width output columns: [panel][in_features][panel_width], zero-padded. It
// remembers the kernels that it was packed for, so that a change of instruction set later leaves it usable.
class PackedWeight final : public Weight {
  public:
    // Packs matrices stacked along the output axis. Call it without the GIL. Throws std::bad_alloc.
    PackedWeight(const Matrix<const float>* matrices, std::int64_t num_matrices);

    void linear(const Matrix<const float>& x, const float* bias, float* out) const override;
    void read_row(std::int64_t index, float* out) const override;

    std::int64_t num_panels() const { return (out_features_ + panel_width() - 1) / panel_width(); }
    std::int64_t panel_width() const { return kernels_->panel_width; }
    const Kernels& kernels() const { return *kernels_; }
    const float* panel(std::int64_t index) const { return data_.get() + index * in_features_ * panel_width(); }

  private:
    void pack_row(const float* row, std::int64_t index);

    struct Free {
        void operator()(float* memory) const;
    };

    const Kernels* kernels_;
    std::unique_ptr<float, Free> data_;
};

// Binds pack, linear and embedding.
void bind_linear(nb::module_& m);

}  // namespace octavo
