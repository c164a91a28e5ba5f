#include "quant_adapters.h"

#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "dispatch.h"
#include "quant_weight.h"
#include "scratch.h"

namespace octavo {
namespace {

constexpr int kDownGroup = 32;
constexpr QuantFormat kDownFormat{8, kDownGroup, ScaleKind::half, false};

QuantPanelLayout down_layout(std::int64_t in_features) {
    return quant_panel_layout(kDownFormat, (in_features + kDownGroup - 1) / kDownGroup);
}

std::int64_t num_panels(std::int64_t size) { return (size + kQuantPanel - 1) / kQuantPanel; }

struct CodedMatrix {
    Matrix<const std::uint8_t> codes;
    Matrix<const std::uint16_t> scales;
};

CodedMatrix read_coded(nb::handle pair, const char* name, std::int64_t rows, std::int64_t columns, int group) {
    const auto [codes_array, scales_array] = nb::cast<std::tuple<nb::object, nb::object>>(pair);
    const Matrix<const std::uint8_t> codes = read_matrix<std::uint8_t>(codes_array, name, rows, columns);
    return {codes, read_matrix<std::uint16_t>(scales_array, name, codes.rows, (codes.columns + group - 1) / group)};
}

// One part's adapter as it was handed in.
struct CodedPair {
    CodedMatrix down, up;
    float scale;
};

// Puts row `row` of a matrix into column `column` of a panel's scales, and its codes where rows are gathered.
void put_row(const CodedMatrix& matrix, std::int64_t row, std::int64_t column, std::uint8_t* codes, std::uint8_t* scales) {
    std::memcpy(codes, matrix.codes.row(row), static_cast<std::size_t>(matrix.codes.columns));
    for (std::int64_t g = 0; g < matrix.scales.columns; ++g) {
        std::memcpy(scales + (g * kQuantPanel + column) * 2, matrix.scales.row(row) + g, 2);
    }
}

// kQuantPanel rows of codes of the weight 0, each of `size` bytes.
struct PanelRows {
    explicit PanelRows(std::int64_t size) : codes(static_cast<std::size_t>(kQuantPanel * size), 128) {
        for (std::int64_t c = 0; c < kQuantPanel; ++c) rows[c] = codes.data() + c * size;
    }
    std::vector<std::uint8_t> codes;
    std::uint8_t* rows[kQuantPanel];
};

// Bytes of a part's second matrix: of each kAdapterGroup ranks all panels.
std::int64_t up_bytes(std::int64_t rank, std::int64_t out_features) {
    std::int64_t size = 0;
    for (std::int64_t r = 0; r < rank; r += kAdapterGroup) size += quant_up_panel_bytes(std::min<std::int64_t>(rank - r, kAdapterGroup));
    return size * num_panels(out_features);
}

std::int64_t num_groups(std::int64_t rank) { return (rank + kAdapterGroup - 1) / kAdapterGroup; }

void pack_up(const CodedMatrix& up, std::uint8_t* to) {
    for (std::int64_t r = 0; r < up.codes.columns; r += kAdapterGroup) {
        const std::int64_t count = std::min<std::int64_t>(up.codes.columns - r, kAdapterGroup), size = (count + 3) / 4 * 4;
        for (std::int64_t first = 0; first < up.codes.rows; first += kQuantPanel, to += quant_up_panel_bytes(count)) {
            PanelRows panel(size);
            for (std::int64_t c = 0; c < std::min(kQuantPanel, up.codes.rows - first); ++c) {
                std::memcpy(panel.rows[c], up.codes.row(first + c) + r, static_cast<std::size_t>(count));
                std::memcpy(to + kQuantPanel * size + 2 * c, up.scales.row(first + c) + r / kAdapterGroup, 2);
            }
            kernels().interleave_codes(panel.rows, size, 8, to);
        }
    }
}

}  // namespace

void pack_quantized(AdapterSlots::Slot& slot, const nb::list& adapters, const std::vector<std::int64_t>& out_sizes,
                    std::int64_t in_features) {
    std::vector<CodedPair> pairs;
    std::vector<std::int64_t> ranks;
    std::vector<float> scales;
    const QuantPanelLayout layout = down_layout(in_features);
    std::int64_t size = 0;
    for (std::size_t part = 0; part < out_sizes.size(); ++part) {
        pairs.push_back({});
        if (!adapters[part].is_none()) {
            const auto [down, up, scale] = nb::cast<std::tuple<nb::object, nb::object, float>>(adapters[part]);
            const CodedMatrix first = read_coded(down, "down", kAnySize, in_features, kDownGroup);
            pairs.back() = {first, read_coded(up, "up", out_sizes[part], first.codes.rows, kAdapterGroup), scale};
        }
        ranks.push_back(pairs.back().down.codes.rows);
        scales.insert(scales.end(), static_cast<std::size_t>(ranks.back()), pairs.back().scale);
        size += up_bytes(ranks.back(), out_sizes[part]);
    }
    scales.resize(static_cast<std::size_t>(num_panels(static_cast<std::int64_t>(scales.size())) * kQuantPanel));
    const std::int64_t num_columns = static_cast<std::int64_t>(scales.size());
    size += num_columns / kQuantPanel * layout.size;
    slot.reserve(size);
    slot.ranks = std::move(ranks);
    slot.scales = std::move(scales);
    std::uint8_t* to = slot.memory.get();
    std::fill_n(to, size, std::uint8_t{0});
    std::size_t part = 0;
    for (std::int64_t column = 0, row = 0; column < num_columns; column += kQuantPanel, to += layout.size) {
        PanelRows panel(layout.num_groups * kDownGroup);
        for (std::int64_t c = 0; c < kQuantPanel && part < pairs.size(); ++c) {
            while (part < pairs.size() && row == slot.ranks[part]) ++part, row = 0;
            if (part < pairs.size()) put_row(pairs[part].down, row++, c, panel.rows[c], to + layout.scales);
        }
        kernels().interleave_codes(panel.rows, layout.num_groups * kDownGroup, 8, to);
    }
    for (const CodedPair& pair : pairs) {
        pack_up(pair.up, to);
        to += up_bytes(pair.up.codes.columns, pair.up.codes.rows);
    }
}

const std::uint8_t* quantized_up(const AdapterSlots::Slot& slot, std::int64_t in_features) {
    return slot.memory.get() + static_cast<std::int64_t>(slot.scales.size()) / kQuantPanel * down_layout(in_features).size;
}

std::int64_t hidden_record_floats(const AdapterSlots::Slot& slot) {
    std::int64_t bytes = 0;
    for (const std::int64_t rank : slot.ranks) bytes += num_groups(rank) * record_bytes(kAdapterGroup);
    return bytes / 4;
}

void shrink_quantized(const RowGroup& group, const QuantizedRows& x, std::int64_t in_features, const Hidden& hidden,
                      const std::uint8_t* next) {
    const AdapterSlots::Slot& slot = *group.slot;
    const QuantPanelLayout layout = down_layout(in_features);
    const std::int64_t num_columns = static_cast<std::int64_t>(slot.scales.size());
    QuantShare share{};
    share.format = kDownFormat;
    share.scratch = thread_scratch(kQuantScratch + kAdapterRows * x.stride / 4);
    share.records = x.records + group.rows[0] * x.stride;
    share.record_stride = x.stride;
    share.num_rows = group.count;
    if (group.count > 1) {  // rows of an adapter lie anywhere
        std::uint8_t* gathered = reinterpret_cast<std::uint8_t*>(share.scratch + kQuantScratch);
        for (int k = 0; k < group.count; ++k) {
            std::memcpy(gathered + k * x.stride, x.records + group.rows[k] * x.stride, static_cast<std::size_t>(x.stride));
        }
        share.records = gathered;
    }
    share.panels = slot.memory.get();
    share.layout = &layout;
    share.num_panels = num_columns / kQuantPanel;
    share.num_columns = num_columns;
    share.out = hidden.data + group.first * hidden.stride;
    share.out_stride = hidden.stride;
    share.next = next;
    share.is_read_once = group.is_alone;
    kernels().quant_linear(share);
    for (int k = 0; k < group.count; ++k) {
        float* values = share.out + k * hidden.stride;
        std::uint8_t* record = reinterpret_cast<std::uint8_t*>(values + num_columns);
        for (const std::int64_t rank : slot.ranks) {
            kernels().quantize_row(values, rank, kAdapterGroup, record);
            record += num_groups(rank) * record_bytes(kAdapterGroup);
            values += rank;
        }
    }
}

void expand_quantized(const RowGroup& group, const AdapterSlots& adapters, const Hidden& hidden, const Range& blocks, float* out,
                      const std::uint8_t* next) {
    const AdapterSlots::Slot& slot = *group.slot;
    const std::uint8_t* up = quantized_up(slot, adapters.in_features());
    const float* records = hidden.data + group.first * hidden.stride + slot.scales.size();
    QuantExpandShare share{reinterpret_cast<const std::uint8_t*>(records), hidden.stride * 4, 0.0f, group.count, 0, nullptr, {}, 0, nullptr, false};
    std::int64_t start = 0, block = 0, column = 0;
    for (std::size_t part = 0; part < slot.ranks.size(); column += slot.ranks[part++]) {
        const std::int64_t size = adapters.out_sizes()[part], part_blocks = (size + kAdapterOutputs - 1) / kAdapterOutputs;
        const std::int64_t begin = std::max<std::int64_t>(blocks.begin - block, 0) * kAdapterOutputs;
        share.num_outputs = std::min(std::min(blocks.end - block, part_blocks) * kAdapterOutputs, size) - begin;
        for (std::int64_t r = 0; r < slot.ranks[part]; r += kAdapterGroup, share.records += record_bytes(kAdapterGroup)) {
            share.num_ranks = static_cast<int>(std::min<std::int64_t>(slot.ranks[part] - r, kAdapterGroup));
            const std::int64_t bytes = quant_up_panel_bytes(share.num_ranks);
            share.up = up + begin / kQuantPanel * bytes;
            up += num_panels(size) * bytes;
            if (share.num_outputs <= 0) continue;
            share.scale = slot.scales[static_cast<std::size_t>(column)];
            share.next = part + 1 < slot.ranks.size() || r + kAdapterGroup < slot.ranks[part] ? up : next;
            for (int k = 0; k < group.count; ++k) share.y[k] = out + group.rows[k] * adapters.out_features() + start + begin;
            share.is_read_once = group.is_alone;
            kernels().expand_quantized(share);
        }
        start += size;
        block += part_blocks;
    }
}

}  // namespace octavo
