// Packing quantised matrices, and handing the kernel its share.
#include "quant_weight.h"

#include <algorithm>
#include <cstring>

#include "dispatch.h"
#include "scratch.h"
#include "thread_pool.h"

namespace octavo {
namespace {

class QuantPart final : public WeightPart {
  public:
    QuantPart(const QuantFormat& format, std::int64_t out_features, std::int64_t in_features)
        : WeightPart(&octavo::kernels(), out_features, in_features),
          format_(format),
          layout_(quant_panel_layout(format, (in_features + format.group - 1) / format.group)),
          memory_(allocate_weight(num_panels() * layout_.size)) {}

    std::int64_t panel_width() const override { return kQuantPanel; }
    std::int64_t size_bytes() const override { return num_panels() * layout_.size; }
    int activation_group() const override { return format_.group; }
    std::int64_t row_block() const override { return kQuantRowBlock; }

    double panel_ns(std::int64_t num_rows) const override {
        const double products = static_cast<double>(layout_.num_groups * format_.group * kQuantPanel * num_rows);
        return std::max(static_cast<double>(layout_.size) / 15.0, products / kernels().quant_products_per_ns);
    }

    void read_row(std::int64_t index, float* out) const override;
    void multiply(const LinearInput& input, const LinearBlock& block) const override;

    // Packs panels [begin, end), rows of the part being given by read(row index, where to).
    template <class Read>
    void pack_panels(std::int64_t begin, std::int64_t end, const Read& read);

  private:
    std::uint8_t* panel(std::int64_t index) const { return memory_.get() + index * layout_.size; }
    std::int64_t num_super_groups() const {
        return (layout_.num_groups * format_.group + kQuantSuperGroup - 1) / kQuantSuperGroup;
    }
    float read_scale(const std::uint8_t* fine, const std::uint8_t* coarse, std::int64_t group, std::int64_t column) const;
    float read_half(const std::uint8_t* half) const;

    QuantFormat format_;
    QuantPanelLayout layout_;
    WeightMemory memory_;
};

// Puts one row's scales (elements of `size` bytes) into column `column` of a panel.
void scatter(const std::uint8_t* row, std::int64_t count, std::int64_t size, std::int64_t column, std::uint8_t* panel) {
    std::uint8_t* to = panel + column * size;
    for (std::int64_t g = 0; g < count; ++g) std::memcpy(to + g * kQuantPanel * size, row + g * size, static_cast<std::size_t>(size));
}

template <class Read>
void QuantPart::pack_panels(std::int64_t begin, std::int64_t end, const Read& read) {
    const std::int64_t num_groups = layout_.num_groups, size = num_groups * format_.group;
    const std::int64_t fine = scale_bytes(format_.scales), num_coarse = num_super_groups();
    // Columns and features beyond the matrix stay codes of the weight 0.
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(kQuantPanel * size));
    std::vector<std::uint8_t> scales(static_cast<std::size_t>(num_groups * fine)), minimums(scales.size());
    std::vector<std::uint16_t> coarse_scales(static_cast<std::size_t>(num_coarse)), coarse_minimums(coarse_scales.size());
    for (std::int64_t p = begin; p < end; ++p) {
        std::fill(codes.begin(), codes.end(), static_cast<std::uint8_t>(code_bias(format_)));
        const std::uint8_t* rows[kQuantPanel];
        std::uint8_t* to = panel(p);
        for (std::int64_t c = 0; c < kQuantPanel; ++c) {
            rows[c] = codes.data() + c * size;
            if (p * kQuantPanel + c >= out_features()) continue;
            read(p * kQuantPanel + c, QuantRow{codes.data() + c * size, scales.data(), coarse_scales.data(), minimums.data(),
                                               coarse_minimums.data()});
            scatter(scales.data(), num_groups, fine, c, to + layout_.scales);
            if (format_.has_minimums) scatter(minimums.data(), num_groups, fine, c, to + layout_.minimums);
            if (format_.scales != ScaleKind::coarse) continue;
            scatter(reinterpret_cast<const std::uint8_t*>(coarse_scales.data()), num_coarse, 2, c, to + layout_.coarse_scales);
            if (format_.has_minimums) {
                scatter(reinterpret_cast<const std::uint8_t*>(coarse_minimums.data()), num_coarse, 2, c,
                        to + layout_.coarse_minimums);
            }
        }
        kernels().interleave_codes(rows, size, format_.bits, to);
    }
}

float QuantPart::read_half(const std::uint8_t* half) const {
    float value;
    kernels().expand(ElementKind::float16, half, 1, &value);
    return value;
}

float QuantPart::read_scale(const std::uint8_t* fine, const std::uint8_t* coarse, std::int64_t group, std::int64_t column) const {
    const std::int64_t index = group * kQuantPanel + column;
    if (format_.scales == ScaleKind::half) return read_half(fine + index * 2);
    if (format_.scales == ScaleKind::coarse) {
        const float coarse_scale = read_half(coarse + (group * format_.group / kQuantSuperGroup * kQuantPanel + column) * 2);
        return coarse_scale * static_cast<float>(static_cast<std::int8_t>(fine[index]));
    }
    float scale;
    std::memcpy(&scale, fine + index * 4, sizeof(scale));
    return scale;
}

void QuantPart::read_row(std::int64_t index, float* out) const {
    const std::uint8_t* panel = this->panel(index / kQuantPanel);
    const std::int64_t column = index % kQuantPanel;
    const std::int32_t bias = code_bias(format_);
    for (std::int64_t group = 0; group < layout_.num_groups; ++group) {
        const float scale = read_scale(panel + layout_.scales, panel + layout_.coarse_scales, group, column);
        const float minimum = format_.has_minimums
                                  ? read_scale(panel + layout_.minimums, panel + layout_.coarse_minimums, group, column)
                                  : 0.0f;
        const std::uint8_t* codes = panel + group * layout_.group_code_bytes + column * 4;
        const std::int64_t first = group * format_.group;
        const std::int64_t count = std::min<std::int64_t>(format_.group, in_features() - first);
        for (std::int64_t k = 0; k < count; ++k) {
            std::int32_t code;
            if (format_.bits == 8) {
                code = codes[k / 4 * 64 + k % 4];
            } else {
                code = codes[k / 8 * 64 + k % 4] >> (k % 8 < 4 ? 0 : 4) & 15;
            }
            out[first + k] = scale * static_cast<float>(code - bias) + minimum;
        }
    }
}

void QuantPart::multiply(const LinearInput& input, const LinearBlock& block) const {
    const QuantizedRows& rows = format_.group == 32 ? input.by_32 : input.by_16;
    const std::int64_t first = block.panels.begin * kQuantPanel;
    QuantShare share;
    share.format = format_;
    share.records = rows.records + block.rows.begin * rows.stride;
    share.record_stride = rows.stride;
    share.num_rows = block.rows.end - block.rows.begin;
    share.panels = panel(block.panels.begin);
    share.layout = &layout_;
    share.num_panels = block.panels.end - block.panels.begin;
    share.num_columns = std::min(block.panels.end * kQuantPanel, out_features()) - first;
    share.bias = block.bias == nullptr ? nullptr : block.bias + first;
    share.out = block.out + block.rows.begin * block.out_stride + first;
    share.out_stride = block.out_stride;
    share.scratch = thread_scratch(kQuantScratch);
    kernels().quant_linear(share);
}

// Memory for the records of one group size, kept by the calling thread.
std::uint8_t* record_memory(int group, std::int64_t size) {
    thread_local std::vector<std::uint8_t> memory[2];
    std::vector<std::uint8_t>& kept = memory[group == 32];
    constexpr std::int64_t kLine = 64;
    if (static_cast<std::int64_t>(kept.size()) < size + kLine) {
        kept = std::vector<std::uint8_t>();  // free before allocating
        kept.resize(static_cast<std::size_t>(size + kLine));
    }
    const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(kept.data());
    return kept.data() + ((address + kLine - 1) / kLine * kLine - address);
}

}  // namespace

QuantPanelLayout quant_panel_layout(const QuantFormat& format, std::int64_t num_groups) {
    const bool coarse = format.scales == ScaleKind::coarse;
    const std::int64_t num_coarse = coarse ? (num_groups * format.group + kQuantSuperGroup - 1) / kQuantSuperGroup : 0;
    const std::int64_t fine_bytes = num_groups * kQuantPanel * scale_bytes(format.scales);
    const std::int64_t coarse_bytes = num_coarse * kQuantPanel * 2;
    QuantPanelLayout layout;
    layout.num_groups = num_groups;
    layout.group_code_bytes = format.group * kQuantPanel * format.bits / 8;
    layout.scales = num_groups * layout.group_code_bytes;
    layout.coarse_scales = layout.scales + fine_bytes;
    layout.minimums = layout.coarse_scales + coarse_bytes;
    layout.coarse_minimums = layout.minimums + (format.has_minimums ? fine_bytes : 0);
    layout.size = layout.coarse_minimums + (format.has_minimums ? coarse_bytes : 0);
    layout.size = (layout.size + 63) / 64 * 64;
    return layout;
}

bool same_format(const QuantFormat& a, const QuantFormat& b) {
    return a.bits == b.bits && a.group == b.group && a.scales == b.scales && a.has_minimums == b.has_minimums;
}

std::unique_ptr<WeightPart> pack_quantized(const std::vector<const QuantRowSource*>& matrices) {
    std::int64_t out_features = 0;
    for (const QuantRowSource* matrix : matrices) out_features += matrix->num_rows();
    auto part = std::make_unique<QuantPart>(matrices[0]->format(), out_features, matrices[0]->num_columns());
    const double panel_ns = 1.0 * static_cast<double>(part->in_features() * kQuantPanel);
    parallel_ranges(part->num_panels(), panel_ns, [&](std::int64_t begin, std::int64_t end) {
        part->pack_panels(begin, end, [&](std::int64_t index, const QuantRow& row) {
            std::size_t matrix = 0;
            while (index >= matrices[matrix]->num_rows()) index -= matrices[matrix++]->num_rows();
            matrices[matrix]->read(index, row);
        });
    });
    return part;
}

QuantizedRows quantize_rows(const Matrix<const float>& x, int group) {
    const Kernels& kernels = octavo::kernels();
    const std::int64_t stride = record_stride(group, (x.columns + group - 1) / group);
    std::uint8_t* records = record_memory(group, x.rows * stride);
    parallel_ranges(x.rows, 0.4 * static_cast<double>(x.columns), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
            kernels.quantize_row(x.row(row), x.columns, group, records + row * stride);
        }
    });
    return {records, stride};
}

}  // namespace octavo
