// The multiply-add loop that linear and attention share: a few rows of x times a few panels of a matrix.
//
// Inner loop (multiply_tile): a tile of R rows x P panels keeps its R * P * kPanelVectors sums in registers. For each k it
// loads the panels' next vectors, broadcasts x[row][k] for each row, and does one multiply-add a pair. An output's sum therefore
// runs over k strictly in order, in one lane, whatever R and P are, and interrupting it (the sums waiting in `out`) loses
// nothing, as they are float32 either way. That is the whole proof of batch invariance.
#pragma once

#include <type_traits>

#include "kernels/half.h"
#include "kernels/simd.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {

constexpr int kPanelVectors = 2;
constexpr int kPanelWidth = kPanelVectors * kLanes;

#if defined(OCTAVO_ISA_AVX512)
constexpr int kMaxRows = 12;  // 24 of 32 registers for sums
#elif defined(OCTAVO_ISA_AVX2)
constexpr int kMaxRows = 6;  // 12 of 16
#else
constexpr int kMaxRows = 4;
#endif

constexpr int kPrefetchDistance = 512;  // elements

// Panels side by side for R rows: at least 8 independent sums where the registers allow.
constexpr int panels_for(int rows) { return rows == 1 ? 4 : rows * 4 <= kMaxRows * 2 ? 2 : 1; }

// Weight: float, Half or Bfloat.
template <class Weight>
struct Tile {
    const float* x;  // the rows
    std::int64_t x_stride;
    const Weight* panel;        // [depth][kPanelWidth] of the first panel
    std::int64_t panel_stride;  // elements from one panel to the next
    std::int64_t depth_stride;  // elements from one k to the next
    std::int64_t depth;
    float* out;
    std::int64_t out_stride;
    std::int64_t num_columns;  // valid columns from `out` on; may cut the tile's last panel
    const float* bias;         // added at the end, or null
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

// kCut: read no more than the valid columns of the panel either (it is no padded copy; floats only).
template <int R, int P, bool kCut, class Weight>
void multiply_tile(const Tile<Weight>& tile) {
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
    const Weight* panel = tile.panel;
    for (std::int64_t k = 0; k < tile.depth; ++k) {
        Vec weights[V];
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) {
            const Weight* p = panel + v / kPanelVectors * tile.panel_stride + v % kPanelVectors * kLanes;
            // With one row the weights come straight from memory: ask for them early.
            if (R == 1 && !kCut) __builtin_prefetch(p + kPrefetchDistance);
            if constexpr (kCut) {
                weights[v] = load_cut(p, 0, tile.num_columns - v * kLanes);
            } else {
                weights[v] = load(p);
            }
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const Vec input = set(x[r * tile.x_stride]);
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) sums[r][v] = fma(input, weights[v], sums[r][v]);
        }
        ++x;
        panel += tile.depth_stride;
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

enum class Panels { wide, single, cut };

// The instance of multiply_tile for `rows` rows, with panels_for(rows) panels, with one, or with one that is cut.
template <int R = kMaxRows, class Weight>
OCTAVO_INLINE void multiply_rows(const Tile<Weight>& tile, std::int64_t rows, Panels panels) {
    if (rows == R) {
        if (panels == Panels::wide) return multiply_tile<R, panels_for(R), false>(tile);
        if (panels == Panels::single) return multiply_tile<R, 1, false>(tile);
        if constexpr (std::is_same_v<Weight, float>) return multiply_tile<R, 1, true>(tile);
    } else if constexpr (R > 1) {
        multiply_rows<R - 1>(tile, rows, panels);
    }
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
