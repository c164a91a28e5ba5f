// y = x w^T + bias in float32, every output summed over the input features in index order.
//
// Inner loop (multiply_tile): a tile of R rows x P panels keeps its R * P * kPanelVectors sums in registers. For each input
// feature k it loads the panels' next vectors (contiguous memory: a panel is [k][column]), broadcasts x[row][k] for each row,
// and does one multiply-add a pair. An output's sum therefore runs over k strictly in order, in one lane, whatever R and P
// are; that is the whole proof of batch invariance.
//
// With few rows (R <= kMaxRows) the weight is read once from memory, panels side by side so that enough independent sums
// hide the latency of the multiply-add. With many, k is cut into blocks so that a panel's block stays in the first-level cache
// while all rows pass over it; the sums wait in `out` between blocks, which loses nothing as they are float32 either way.
#include "kernels/linear.h"

#include <cstring>

namespace octavo::OCTAVO_ISA_NAMESPACE {
namespace {

#if defined(OCTAVO_ISA_AVX512)
constexpr int kMaxRows = 12;  // 24 of 32 registers for sums
#elif defined(OCTAVO_ISA_AVX2)
constexpr int kMaxRows = 6;  // 12 of 16
#else
constexpr int kMaxRows = 4;
#endif

constexpr int kPrefetchDistance = 512;  // floats

// Panels side by side for R rows: at least 8 independent sums where the registers allow.
constexpr int panels_for(int rows) { return rows == 1 ? 4 : rows * 4 <= kMaxRows * 2 ? 2 : 1; }

struct Tile {
    const float* x;
    std::int64_t x_stride;
    const float* panel;
    std::int64_t panel_stride;  // floats from one panel to the next
    std::int64_t depth;         // input features of this block
    float* out;
    std::int64_t out_stride;
    std::int64_t num_columns;  // valid columns from `out` on; may cut the tile's last panel
    const float* bias;         // added at the end of the last block, or null
    bool resume;               // start from the sums in `out`
};

// Column vector c of a tile row, cut at the tile's last valid column.
OCTAVO_INLINE Vec load_cut(const float* p, std::int64_t column, std::int64_t num_columns) {
    const std::int64_t left = num_columns - column;
    if (left >= kLanes) return load(p + column);
    return left > 0 ? load_first(p + column, left) : set(0.0f);
}

OCTAVO_INLINE void store_cut(float* p, Vec v, std::int64_t column, std::int64_t num_columns) {
    const std::int64_t left = num_columns - column;
    if (left >= kLanes) {
        store(p + column, v);
    } else if (left > 0) {
        store_first(p + column, v, left);
    }
}

template <int R, int P>
void multiply_tile(const Tile& tile) {
    constexpr int V = P * kPanelVectors;
    Vec sums[R][V];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) {
            sums[r][v] = tile.resume ? load_cut(tile.out + r * tile.out_stride, v * kLanes, tile.num_columns) : set(0.0f);
        }
    }
    const float* x = tile.x;
    const float* panel = tile.panel;
    for (std::int64_t k = 0; k < tile.depth; ++k) {
        Vec weights[V];
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) {
            const float* p = panel + v / kPanelVectors * tile.panel_stride + v % kPanelVectors * kLanes;
            // With one row the weights come straight from memory: ask for them early.
            if (R == 1) __builtin_prefetch(p + kPrefetchDistance);
            weights[v] = load(p);
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const Vec input = set(x[r * tile.x_stride]);
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) sums[r][v] = fma(input, weights[v], sums[r][v]);
        }
        ++x;
        panel += kPanelWidth;
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) {
            Vec sum = sums[r][v];
            if (tile.bias != nullptr) sum = add(sum, load_cut(tile.bias, v * kLanes, tile.num_columns));
            store_cut(tile.out + r * tile.out_stride, sum, v * kLanes, tile.num_columns);
        }
    }
}

// The instance of multiply_tile for `rows` rows; wide: panels_for(rows) panels, else one.
template <int R>
OCTAVO_INLINE void multiply_rows(const Tile& tile, std::int64_t rows, bool wide) {
    if (rows == R) {
        if (wide) {
            multiply_tile<R, panels_for(R)>(tile);
        } else {
            multiply_tile<R, 1>(tile);
        }
    } else if constexpr (R > 1) {
        multiply_rows<R - 1>(tile, rows, wide);
    }
}

void multiply_few_rows(const LinearShare& share) {
    const std::int64_t panel_stride = share.in_features * kPanelWidth;
    const std::int64_t side_by_side = panels_for(static_cast<int>(share.num_rows));
    for (std::int64_t panel = 0; panel < share.num_panels;) {
        const bool wide = panel + side_by_side <= share.num_panels;
        const std::int64_t column = panel * kPanelWidth;
        multiply_rows<kMaxRows>({share.x, share.x_stride, share.panels + panel * panel_stride, panel_stride,
                                 share.in_features, share.out + column, share.out_stride, share.num_columns - column,
                                 share.bias == nullptr ? nullptr : share.bias + column, false},
                                share.num_rows, wide);
        panel += wide ? side_by_side : 1;
    }
}

// One block of rows (<= kLinearRowBlock) and one of input features, all panels.
void multiply_block(const LinearShare& share, std::int64_t row, std::int64_t num_rows, std::int64_t k, std::int64_t depth) {
    // A compact copy of the inputs: the rows of a tile would otherwise fall into one set of the cache when x_stride is a
    // multiple of 4 KiB.
    const float* x = share.scratch;
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
            multiply_rows<kMaxRows>(
                {x + first * kLinearScratchStride, kLinearScratchStride,
                 share.panels + (panel * share.in_features + k) * kPanelWidth, 0, depth,
                 share.out + (row + first) * share.out_stride + column, share.out_stride, share.num_columns - column,
                 last && share.bias != nullptr ? share.bias + column : nullptr, k > 0},
                rows, false);
        }
    }
}

}  // namespace

void linear(const LinearShare& share) {
    if (share.num_rows <= kMaxRows) return multiply_few_rows(share);
    const std::int64_t num_depths = (share.in_features + kLinearDepthBlock - 1) / kLinearDepthBlock;
    for (std::int64_t row = 0; row < share.num_rows; row += kLinearRowBlock) {
        const std::int64_t left = share.num_rows - row;
        const std::int64_t num_rows = left < kLinearRowBlock ? left : kLinearRowBlock;
        for (std::int64_t block = 0; block < num_depths; ++block) {
            const std::int64_t k = share.in_features * block / num_depths;
            multiply_block(share, row, num_rows, k, share.in_features * (block + 1) / num_depths - k);
        }
    }
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
