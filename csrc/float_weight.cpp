// Float32 matrices packed for the float32 linear kernel: [panel][in_features][panel_width], zero-padded.
#include <algorithm>
#include <cstring>

#include "dispatch.h"
#include "scratch.h"
#include "thread_pool.h"
#include "weight.h"

namespace octavo {
namespace {

class FloatPart final : public WeightPart {
  public:
    FloatPart(std::int64_t out_features, std::int64_t in_features)
        : WeightPart(&octavo::kernels(), out_features, in_features),
          memory_(allocate_weight(num_panels() * panel_width() * in_features * static_cast<std::int64_t>(sizeof(float)))),
          data_(reinterpret_cast<float*>(memory_.get())) {}

    std::int64_t panel_width() const override { return kernels().panel_width; }
    std::int64_t size_bytes() const override {
        return num_panels() * panel_width() * in_features() * static_cast<std::int64_t>(sizeof(float));
    }
    int activation_group() const override { return 0; }
    std::int64_t row_block() const override { return kLinearRowBlock; }

    double panel_ns(std::int64_t num_rows) const override {
        const double size = static_cast<double>(in_features() * panel_width());
        const double flops_per_ns = 10.0 * static_cast<double>(panel_width());
        return std::max(4.0 * size / 20.0, 2.0 * size * static_cast<double>(num_rows) / flops_per_ns);
    }

    void read_row(std::int64_t index, float* out) const override {
        const float* column = this->column(index);
        for (std::int64_t k = 0; k < in_features(); ++k) out[k] = column[k * panel_width()];
    }

    void write_row(std::int64_t index, const float* row) {
        float* column = data_ + (this->column(index) - data_);
        for (std::int64_t k = 0; k < in_features(); ++k) column[k * panel_width()] = row[k];
    }

    void multiply(const LinearInput& input, const LinearBlock& block) const override {
        const std::int64_t first = block.panels.begin * panel_width();
        LinearShare share;
        share.x = input.x.row(block.rows.begin);
        share.x_stride = input.x.row_stride;
        share.num_rows = block.rows.end - block.rows.begin;
        share.in_features = in_features();
        share.panels = column(first);
        share.num_panels = block.panels.end - block.panels.begin;
        share.num_columns = std::min(block.panels.end * panel_width(), out_features()) - first;
        share.bias = block.bias == nullptr ? nullptr : block.bias + first;
        share.out = block.out + block.rows.begin * block.out_stride + first;
        share.out_stride = block.out_stride;
        share.scratch = thread_scratch(kLinearScratch);
        kernels().linear(share);
    }

  private:
    const float* column(std::int64_t index) const {
        return data_ + index / panel_width() * in_features() * panel_width() + index % panel_width();
    }

    WeightMemory memory_;
    float* data_;
};

}  // namespace

std::unique_ptr<WeightPart> pack_floats(const std::vector<Matrix<const float>>& matrices) {
    std::int64_t out_features = 0;
    for (const Matrix<const float>& matrix : matrices) out_features += matrix.rows;
    auto part = std::make_unique<FloatPart>(out_features, matrices[0].columns);
    std::int64_t first = 0;
    for (const Matrix<const float>& matrix : matrices) {
        // Whole groups of panel_width rows a tile, so that threads seldom write to one cache line.
        const std::int64_t width = part->panel_width();
        const std::int64_t num_groups = (matrix.rows + width - 1) / width;
        parallel_ranges(num_groups, static_cast<double>(part->in_features() * width), [&](std::int64_t begin, std::int64_t end) {
            const std::int64_t last = std::min(end * width, matrix.rows);
            for (std::int64_t row = begin * width; row < last; ++row) part->write_row(first + row, matrix.row(row));
        });
        first += matrix.rows;
    }
    return part;
}

}  // namespace octavo
