// y = x w^T + bias in float32 (the weight may be stored in 16 bits), every output summed over the input features in index order (see tile.h for the inner loop).
//
// With few rows (R <= kMaxRows) the weight is read once from memory, panels side by side so that enough independent sums
// hide the latency of the multiply-add. With many, k is cut into blocks so that a panel's block stays in the first-level cache
// while all rows pass over it.
#include "kernels/linear.h"

#include <cstring>

namespace octavo::OCTAVO_ISA_NAMESPACE {
namespace {

template <class Weight>
void multiply_few_rows(const LinearShare& share) {
    const Weight* panels = static_cast<const Weight*>(share.panels);
    const std::int64_t panel_stride = share.in_features * kPanelWidth;
    const std::int64_t side_by_side = panels_for(static_cast<int>(share.num_rows));
    for (std::int64_t panel = 0; panel < share.num_panels;) {
        const bool wide = panel + side_by_side <= share.num_panels;
        const std::int64_t column = panel * kPanelWidth;
        multiply_rows(Tile<Weight>{share.x, share.x_stride, panels + panel * panel_stride, panel_stride, kPanelWidth,
                                 share.in_features, share.out + column, share.out_stride, share.num_columns - column,
                                 share.bias == nullptr ? nullptr : share.bias + column, false},
                                share.num_rows, wide ? Panels::wide : Panels::single);
        panel += wide ? side_by_side : 1;
    }
}

// One block of rows (<= kLinearRowBlock) and one of input features, all panels.
template <class Weight>
void multiply_block(const LinearShare& share, std::int64_t row, std::int64_t num_rows, std::int64_t k, std::int64_t depth) {
    // A compact copy of the inputs: the rows of a tile would otherwise fall into one set of the cache when x_stride is a
    // multiple of 4 KiB.
    const float* x = share.scratch;
    const Weight* panels = static_cast<const Weight*>(share.panels);
    for (std::int64_t r = 0; r < num_rows; ++r) {
        std::memcpy(share.scratch + r * kLinearScratchStride, share.x + (row + r) * share.x_stride + k,
                    static_cast<std::size_t>(depth) * sizeof(float));
    }
    const std::int64_t num_tiles = (num_rows + kMaxRows - 1) / kMaxRows;
    const bool last = k + depth == share.in_features;
    for (std::int64_t panel = 0; panel < share.num_panels; ++panel) {
        const std::int64_t column = panel * kPanelWidth;
        for (std::int64_t tile = 0; tile < num_tiles; ++tile) {
            const std::int64_t first = num_rows * tile / num_tiles;  // even shares: 13 rows are 7 + 6, not 12 + 1
            const std::int64_t rows = num_rows * (tile + 1) / num_tiles - first;
            multiply_rows(
                Tile<Weight>{x + first * kLinearScratchStride, kLinearScratchStride,
                 panels + (panel * share.in_features + k) * kPanelWidth, 0, kPanelWidth, depth,
                 share.out + (row + first) * share.out_stride + column, share.out_stride, share.num_columns - column,
                 last && share.bias != nullptr ? share.bias + column : nullptr, k > 0},
                rows, Panels::single);
        }
    }
}

template <class Weight>
void multiply_share(const LinearShare& share) {
    if (share.num_rows <= kMaxRows) return multiply_few_rows<Weight>(share);
    const std::int64_t num_depths = (share.in_features + kLinearDepthBlock - 1) / kLinearDepthBlock;
    for (std::int64_t row = 0; row < share.num_rows; row += kLinearRowBlock) {
        const std::int64_t left = share.num_rows - row;
        const std::int64_t num_rows = left < kLinearRowBlock ? left : kLinearRowBlock;
        for (std::int64_t block = 0; block < num_depths; ++block) {
            const std::int64_t k = share.in_features * block / num_depths;
            multiply_block<Weight>(share, row, num_rows, k, share.in_features * (block + 1) / num_depths - k);
        }
    }
}

template <class Weight>
void expand_of(const void* from, std::int64_t count, float* out) {
    const Weight* elements = static_cast<const Weight*>(from);
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) store(out + i, load(elements + i));
    for (; i < count; ++i) {
        Weight padded[kLanes] = {elements[i]};
        store_first(out + i, load(padded), 1);
    }
}

}  // namespace

void linear(const LinearShare& share) {
    switch (share.kind) {
        case ElementKind::float32: return multiply_share<float>(share);
        case ElementKind::float16: return multiply_share<Half>(share);
        case ElementKind::bfloat16: return multiply_share<Bfloat>(share);
    }
}

void expand(ElementKind kind, const void* from, std::int64_t count, float* out) {
    switch (kind) {
        case ElementKind::float32: return expand_of<float>(from, count, out);
        case ElementKind::float16: return expand_of<Half>(from, count, out);
        case ElementKind::bfloat16: return expand_of<Bfloat>(from, count, out);
    }
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
