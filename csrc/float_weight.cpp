// Matrices of float32 or 16-bit numbers packed for the float32 linear kernel: [panel][in_features][panel_width], zero-padded.
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
    FloatPart(ElementKind kind, std::int64_t out_features, std::int64_t in_features)
        : WeightPart(&octavo::kernels(), out_features, in_features), kind_(kind), memory_(allocate_weight(size_bytes())) {}

    std::int64_t panel_width() const override { return kernels().panel_width; }
    std::int64_t size_bytes() const override { return num_panels() * panel_width() * in_features() * element_bytes(kind_); }
    int activation_group() const override { return 0; }
    std::int64_t row_block() const override { return kLinearRowBlock; }

    double panel_ns(std::int64_t num_rows) const override {
        const double size = static_cast<double>(in_features() * panel_width());
        const double flops_per_ns = 10.0 * static_cast<double>(panel_width());
        const double read_ns = static_cast<double>(element_bytes(kind_)) * size / 20.0;
        return std::max(read_ns, 2.0 * size * static_cast<double>(num_rows) / flops_per_ns);
    }

    void read_row(std::int64_t index, float* out) const override {
        if (kind_ == ElementKind::float32) return gather(reinterpret_cast<const float*>(column(index)), out);
        std::uint16_t* row = reinterpret_cast<std::uint16_t*>(thread_scratch((in_features() + 1) / 2));
        gather(reinterpret_cast<const std::uint16_t*>(column(index)), row);
        kernels().expand(kind_, row, in_features(), out);
    }

    // Element: float, or uint16_t for the bits of a 16-bit number.
    template <class Element>
    void write_row(std::int64_t index, const Element* row) {
        Element* to = reinterpret_cast<Element*>(column(index));
        for (std::int64_t k = 0; k < in_features(); ++k) to[k * panel_width()] = row[k];
    }

    void multiply(const LinearInput& input, const LinearBlock& block) const override {
        const std::int64_t first = block.panels.begin * panel_width();
        LinearShare share;
        share.x = input.x.row(block.rows.begin);
        share.x_stride = input.x.row_stride;
        share.num_rows = block.rows.end - block.rows.begin;
        share.in_features = in_features();
        share.kind = kind_;
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
    template <class Element>
    void gather(const Element* column, Element* row) const {
        for (std::int64_t k = 0; k < in_features(); ++k) row[k] = column[k * panel_width()];
    }

    std::uint8_t* column(std::int64_t index) const {
        const std::int64_t element = index / panel_width() * in_features() * panel_width() + index % panel_width();
        return memory_.get() + element * element_bytes(kind_);
    }

    ElementKind kind_;
    WeightMemory memory_;
};

template <class Element>
std::unique_ptr<WeightPart> pack_elements(ElementKind kind, const std::vector<Matrix<const Element>>& matrices) {
    std::int64_t out_features = 0;
    for (const Matrix<const Element>& matrix : matrices) out_features += matrix.rows;
    auto part = std::make_unique<FloatPart>(kind, out_features, matrices[0].columns);
    std::int64_t first = 0;
    for (const Matrix<const Element>& matrix : matrices) {
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

}  // namespace

std::unique_ptr<WeightPart> pack_floats(const std::vector<Matrix<const float>>& matrices) {
    return pack_elements(ElementKind::float32, matrices);
}

std::unique_ptr<WeightPart> pack_halves(ElementKind kind, const std::vector<Matrix<const std::uint16_t>>& matrices) {
    return pack_elements(kind, matrices);
}

}  // namespace octavo
