// Packed matrices: what linear and embedding ask of any of them, and the one that is made of parts, each in a format of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "arrays.h"
#include "kernels/kernels.h"
#include "thread_pool.h"

namespace octavo {

// Activations quantised for a kernel, see RecordTail in kernels/quant_format.h.
struct QuantizedRows {
    const std::uint8_t* records = nullptr;
    std::int64_t stride = 0;  // bytes
};

// What a linear call reads: the rows, and the same rows quantised in groups of 16 and 32 where a part asks for it.
struct LinearInput {
    Matrix<const float> x;
    QuantizedRows by_16;
    QuantizedRows by_32;
};

// Other work for the threads of a linear call, done when that returns: where that waits for arithmetic, this may wait for memory.
struct Companion {
    std::int64_t num_tiles;
    int activation_group;  // of the rounded inputs that it reads; 0: none
    const std::function<void(const LinearInput&, std::int64_t)>& run_tile;
};

// A matrix [out_features, in_features] in some packed form. Its members work on plain memory, need no GIL and check nothing.
class Weight {
  public:
    virtual ~Weight() = default;

    std::int64_t out_features() const { return out_features_; }
    std::int64_t in_features() const { return in_features_; }

    // out [x.rows, out_features] = x w^T + bias (null: none), on the thread pool. x.rows may be 0.
    virtual void linear(const Matrix<const float>& x, const float* bias, float* out, const Companion* companion = nullptr) const = 0;

    // Copies one row of the matrix, dequantised, to out [in_features].
    virtual void read_row(std::int64_t index, float* out) const = 0;

    // Whether any of its outputs are of quantised weights.
    virtual bool rounds_inputs() const = 0;

  protected:
    std::int64_t out_features_ = 0;
    std::int64_t in_features_ = 0;
};

// Copies rows `ids` of the table, all within it, to out [count, in_features], on the thread pool.
void run_embedding(const std::int32_t* ids, std::int64_t count, const Weight& table, float* out);

// The same for a table that begins with the row of first_id; ids that it does not have give zeros.
void run_embedding_share(const std::int32_t* ids, std::int64_t count, const Weight& table, std::int64_t first_id, float* out);

// A block of one part's outputs.
struct LinearBlock {
    Range rows;
    Range panels;
    const float* bias;  // of the part's first column, or null
    float* out;         // first row, the part's first column
    std::int64_t out_stride;
};

// A matrix in panels of output columns. It remembers the kernels that it was packed for, so that a change of instruction set
// later leaves it usable.
class WeightPart {
  public:
    WeightPart(const Kernels* kernels, std::int64_t out_features, std::int64_t in_features)
        : kernels_(kernels), out_features_(out_features), in_features_(in_features) {}
    virtual ~WeightPart() = default;

    std::int64_t out_features() const { return out_features_; }
    std::int64_t in_features() const { return in_features_; }
    const Kernels& kernels() const { return *kernels_; }
    std::int64_t num_panels() const { return (out_features_ + panel_width() - 1) / panel_width(); }

    virtual std::int64_t panel_width() const = 0;
    virtual std::int64_t size_bytes() const = 0;
    // Group of the quantised activations that multiply reads; 0: float32 activations.
    virtual int activation_group() const = 0;
    // Rows that multiply reads once for all panels of a block.
    virtual std::int64_t row_block() const = 0;
    // About how long one thread needs for one panel.
    virtual double panel_ns(std::int64_t num_rows) const = 0;
    // Copies one row of the matrix, dequantised, to out [in_features].
    virtual void read_row(std::int64_t index, float* out) const = 0;
    virtual void multiply(const LinearInput& input, const LinearBlock& block) const = 0;

  private:
    const Kernels* kernels_;
    std::int64_t out_features_;
    std::int64_t in_features_;
};

// Parts stacked along the output axis.
class PackedWeight final : public Weight {
  public:
    explicit PackedWeight(std::vector<std::unique_ptr<WeightPart>> parts);
    PackedWeight(const PackedWeight&) = delete;
    PackedWeight& operator=(const PackedWeight&) = delete;

    void linear(const Matrix<const float>& x, const float* bias, float* out, const Companion* companion) const override;
    void read_row(std::int64_t index, float* out) const override;
    bool rounds_inputs() const override;

    std::int64_t size_bytes() const;
    const std::vector<std::unique_ptr<WeightPart>>& parts() const { return parts_; }

  private:
    std::vector<std::unique_ptr<WeightPart>> parts_;
};

// One product among several: rows of the input times one matrix.
struct LinearJob {
    const PackedWeight* weight;
    Range rows;         // of the input, and of `out`
    const float* bias;  // or null
    float* out;         // row 0: [rows of the input, out_features]
};

// Computes all jobs at once, on the thread pool. Jobs may share rows or have none.
void run_linears(const Matrix<const float>& x, const std::vector<LinearJob>& jobs, const Companion* companion = nullptr);

// Zeroed memory that a weight lives in, aligned to a cache line; a chunk of it goes back when its last weight does.
// Throws std::bad_alloc.
using WeightMemory = std::shared_ptr<std::uint8_t>;
WeightMemory allocate_weight(std::int64_t size_bytes);

// Packs float32 matrices stacked along the output axis.
std::unique_ptr<WeightPart> pack_floats(const std::vector<Matrix<const float>>& matrices);

// The same with the bits of 16-bit numbers.
std::unique_ptr<WeightPart> pack_halves(ElementKind kind, const std::vector<Matrix<const std::uint16_t>>& matrices);

// Binds WeightBuilder, PackedWeight, linear and embedding.
void bind_linear(nb::module_& m);

}  // namespace octavo
