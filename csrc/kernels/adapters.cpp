// Two thin products for up to kAdapterRows rows of one adapter, which share each load of its weights.
//
// A row's sums have the same order whatever the other rows are: the first product keeps kLanes partial sums by the input's index
// modulo kLanes, added up as a fixed tree; the second adds ranks in order. Tails use padded vectors.
#include "kernels/adapters.h"

#include "kernels/simd.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {
namespace {

// hidden[row][rank] for `ranks` ranks from `first` on.
template <int rows, int ranks>
OCTAVO_INLINE void shrink(const AdapterShare& share, const float* down, std::int64_t first) {
    Vec sums[ranks][rows];
    for (int r = 0; r < ranks; ++r) {
        for (int k = 0; k < rows; ++k) sums[r][k] = set(0.0f);
    }
    const std::int64_t n = share.in_features;
    const auto step = [&](auto read, std::int64_t i) {
        Vec x[rows];
        for (int k = 0; k < rows; ++k) x[k] = read(share.x[k] + i);
        for (int r = 0; r < ranks; ++r) {
            const Vec weight = read(down + (first + r) * n + i);
            for (int k = 0; k < rows; ++k) sums[r][k] = fma(weight, x[k], sums[r][k]);
        }
    };
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) step([](const float* p) { return load(p); }, i);
    if (i < n) step([rest = n - i](const float* p) { return load_first(p, rest); }, i);
    for (int r = 0; r < ranks; ++r) {
        for (int k = 0; k < rows; ++k) share.scratch[k * share.max_rank + first + r] = sum_lanes(sums[r][k]);
    }
}

// y[row] += hidden[row] @ up for `vectors` vectors of outputs from `column` on; the last may be padded: `count` outputs.
template <int rows, int vectors, class Read, class Write>
OCTAVO_INLINE void expand_columns(const AdapterShare& share, std::int64_t rank, std::int64_t column, Read read, Write write) {
    Vec sums[rows][vectors];
    for (int k = 0; k < rows; ++k) {
        for (int v = 0; v < vectors; ++v) sums[k][v] = set(0.0f);
    }
    for (std::int64_t r = 0; r < rank; ++r) {
        Vec weights[vectors];
        for (int v = 0; v < vectors; ++v) weights[v] = read(share.up + r * share.out_features + column + v * kLanes);
        for (int k = 0; k < rows; ++k) {
            const Vec hidden = set(share.scratch[k * share.max_rank + r]);
            for (int v = 0; v < vectors; ++v) sums[k][v] = fma(hidden, weights[v], sums[k][v]);
        }
    }
    for (int k = 0; k < rows; ++k) {
        for (int v = 0; v < vectors; ++v) {
            float* y = share.y[k] + column + v * kLanes;
            write(y, add(read(y), sums[k][v]));
        }
    }
}

template <int rows>
void adapt(const AdapterShare& share) {
    constexpr int kRanks = rows <= 2 ? 4 : 2;
    constexpr int kVectors = rows <= 2 ? 4 : 2;
    for (std::int64_t part = 0; part < share.num_parts; ++part) {
        const std::int64_t rank = share.ranks[part];
        if (rank == 0) continue;
        const float* down = share.down + part * share.max_rank * share.in_features;
        std::int64_t r = 0;
        for (; r + kRanks <= rank; r += kRanks) shrink<rows, kRanks>(share, down, r);
        for (; r < rank; ++r) shrink<rows, 1>(share, down, r);

        const auto read = [](const float* p) { return load(p); };
        const auto write = [](float* p, Vec v) { store(p, v); };
        const std::int64_t end = share.starts[part + 1];
        std::int64_t column = share.starts[part];
        for (; column + kVectors * kLanes <= end; column += kVectors * kLanes) {
            expand_columns<rows, kVectors>(share, rank, column, read, write);
        }
        for (; column + kLanes <= end; column += kLanes) expand_columns<rows, 1>(share, rank, column, read, write);
        if (column < end) {
            const std::int64_t rest = end - column;
            expand_columns<rows, 1>(
                share, rank, column, [rest](const float* p) { return load_first(p, rest); },
                [rest](float* p, Vec v) { store_first(p, v, rest); });
        }
    }
}

}  // namespace

void adapt_rows(const AdapterShare& share) {
    switch (share.num_rows) {
        case 1: return adapt<1>(share);
        case 2: return adapt<2>(share);
        case 3: return adapt<3>(share);
        default: return adapt<4>(share);
    }
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
