// The two thin products of low-rank adapters, for up to kAdapterRows rows of one adapter, which share each load of its weights.
//
// A row's sums have the same order whatever the other rows are: the first product keeps kChains sums by the input's index modulo
// kChains, added up as a fixed tree; the second adds ranks in order.
#include "kernels/adapters.h"

#include "kernels/half.h"
#include "kernels/quant_dot.h"
#include "kernels/tile.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {
namespace {

OCTAVO_INLINE Vec load_element(const float* p) { return load(p); }
OCTAVO_INLINE Vec load_element(const Half* p) { return load(p); }
OCTAVO_INLINE Vec load_element(const Bfloat* p) { return load(p); }

// As many sums as the registers hold, and enough to hide the latency of a multiply-add.
constexpr int kRows = kLanes == 16 ? 4 : 2;
constexpr int kChains = kLanes == 16 ? 4 : 2;
constexpr int kShrinkVectors = static_cast<int>(kAdapterColumns) / kLanes;
constexpr int kExpandVectors = 4;
constexpr std::int64_t kAheadBytes = 4096;

// Adapters come from main memory at every step: ask for what lies further on, also beyond the end, where the next share begins.
template <class Element>
OCTAVO_INLINE void ask_ahead(const Element* p, int count) {
    for (int i = 0; i < count; i += 64 / static_cast<int>(sizeof(Element))) {
        __builtin_prefetch(reinterpret_cast<const char*>(p + i) + kAheadBytes, 0, 3);
    }
}

template <class Element, int rows>
void shrink_rows(const ShrinkShare& share, int first) {
    Vec sums[kChains][rows][kShrinkVectors];
    for (int c = 0; c < kChains; ++c) {
        for (int k = 0; k < rows; ++k) {
            for (int v = 0; v < kShrinkVectors; ++v) sums[c][k][v] = set(0.0f);
        }
    }
    const Element* down = static_cast<const Element*>(share.down);
    const float* x[rows];
    for (int k = 0; k < rows; ++k) x[k] = share.x[first + k];
    const auto step = [&](std::int64_t i, int c) {
        for (int v = 0; v < kShrinkVectors; ++v) {
            const Vec weight = load_element(down + i * kAdapterColumns + v * kLanes);
            for (int k = 0; k < rows; ++k) sums[c][k][v] = fma(set(x[k][i]), weight, sums[c][k][v]);
        }
    };
    std::int64_t i = 0;
    for (; i + kChains <= share.in_features; i += kChains) {
        ask_ahead(down + i * kAdapterColumns, kChains * kAdapterColumns);
#pragma GCC unroll 4
        for (int c = 0; c < kChains; ++c) step(i + c, c);
    }
#pragma GCC unroll 4
    for (int c = 0; c < kChains; ++c) {
        if (i + c < share.in_features) step(i + c, c);
    }
    for (int k = 0; k < rows; ++k) {
        for (int v = 0; v < kShrinkVectors; ++v) {
            for (int width = kChains / 2; width > 0; width /= 2) {
                for (int c = 0; c < width; ++c) sums[c][k][v] = add(sums[c][k][v], sums[c + width][k][v]);
            }
            const Vec scale = load(share.scales + v * kLanes);
            store(share.hidden + (first + k) * share.hidden_stride + v * kLanes, mul(sums[0][k][v], scale));
        }
    }
}

// `vectors` vectors of outputs from `column` on; the last of a single one may be cut.
template <class Element, int rows, int vectors, class Read, class Write>
OCTAVO_INLINE void expand_columns(const ExpandShare& share, int first, std::int64_t column, Read read, Write write) {
    Vec sums[rows][vectors];
    for (int k = 0; k < rows; ++k) {
        for (int v = 0; v < vectors; ++v) sums[k][v] = set(0.0f);
    }
    const Element* up = static_cast<const Element*>(share.up) + column;
    const float* hidden = share.hidden + first * share.hidden_stride;
    for (std::int64_t r = 0; r < share.rank; ++r) {
        if (first == 0) ask_ahead(up + r * kAdapterOutputs, vectors * kLanes);
        Vec weights[vectors];
        for (int v = 0; v < vectors; ++v) weights[v] = load_element(up + r * kAdapterOutputs + v * kLanes);
        for (int k = 0; k < rows; ++k) {
            const Vec factor = set(hidden[k * share.hidden_stride + r]);
            for (int v = 0; v < vectors; ++v) sums[k][v] = fma(factor, weights[v], sums[k][v]);
        }
    }
    for (int k = 0; k < rows; ++k) {
        for (int v = 0; v < vectors; ++v) {
            float* y = share.y[first + k] + column + v * kLanes;
            write(y, add(read(y), sums[k][v]));
        }
    }
}

template <class Element, int rows>
void expand_rows(const ExpandShare& share, int first) {
    const auto read = [](const float* p) { return load(p); };
    const auto write = [](float* p, Vec v) { store(p, v); };
    std::int64_t column = 0;
    for (; column + kExpandVectors * kLanes <= share.num_outputs; column += kExpandVectors * kLanes) {
        expand_columns<Element, rows, kExpandVectors>(share, first, column, read, write);
    }
    for (; column + kLanes <= share.num_outputs; column += kLanes) {
        expand_columns<Element, rows, 1>(share, first, column, read, write);
    }
    if (column == share.num_outputs) return;
    const std::int64_t rest = share.num_outputs - column;
    expand_columns<Element, rows, 1>(
        share, first, column, [rest](const float* p) { return load_first(p, rest); },
        [rest](float* p, Vec v) { store_first(p, v, rest); });
}

template <class Element>
void shrink_elements(const ShrinkShare& share) {
    int first = 0;
    for (; first + kRows <= share.num_rows; first += kRows) shrink_rows<Element, kRows>(share, first);
    for (; first + 2 <= share.num_rows; first += 2) shrink_rows<Element, 2>(share, first);
    if (first < share.num_rows) shrink_rows<Element, 1>(share, first);
}

template <class Element>
void expand_elements(const ExpandShare& share) {
    int first = 0;
    for (; first + kRows <= share.num_rows; first += kRows) expand_rows<Element, kRows>(share, first);
    for (; first + 2 <= share.num_rows; first += 2) expand_rows<Element, 2>(share, first);
    if (first < share.num_rows) expand_rows<Element, 1>(share, first);
}

// -- 8-bit adapters

// What a row's hidden values are to all panels.
struct HiddenGroup {
    const std::uint8_t* codes;
    RecordTail tail;
};

OCTAVO_INLINE HiddenGroup read_hidden(const QuantExpandShare& share, int row, int num_codes) {
    HiddenGroup hidden;
    hidden.codes = share.records + row * share.record_stride;
    hidden.tail = read_tail(hidden.codes, kAdapterGroup);
    std::int32_t sum = 0;
    for (int i = 0; i < num_codes; ++i) sum += static_cast<std::int8_t>(hidden.codes[i]);
    hidden.tail.minus_128 = -128 * sum;
    hidden.tail.scale *= share.scale;
    hidden.tail.zero *= share.scale;
    return hidden;
}

// Asks for what lies kAheadBytes further on in this matrix or, where it ends, in the next.
OCTAVO_INLINE void ask_ahead_in(const QuantExpandShare& share, const std::uint8_t* panel, const std::uint8_t* end, int bytes) {
    const std::uint8_t* ahead = panel + kAheadBytes;
    if (ahead >= end) {
        if (share.next == nullptr) return;
        ahead = share.next + (ahead - end);
    }
    for (int i = 0; i < bytes && share.is_read_once; i += 64) __builtin_prefetch(ahead + i, 0, 0);
    for (int i = 0; i < bytes && !share.is_read_once; i += 64) __builtin_prefetch(ahead + i, 0, 3);
}

#if defined(OCTAVO_ISA_AVX2) || defined(OCTAVO_ISA_AVX512)

template <int rows, int steps>
void expand_panels(const QuantExpandShare& share, int first) {
    constexpr int P = kVectorsPerPanel;
    constexpr int kBytes = static_cast<int>(quant_up_panel_bytes(4 * steps));
    Ints x[rows][steps];
    RecordTail tails[rows];
    for (int k = 0; k < rows; ++k) {
        const HiddenGroup hidden = read_hidden(share, first + k, 4 * steps);
        tails[k] = hidden.tail;
        for (int step = 0; step < steps; ++step) x[k][step] = set_int(read_four(hidden.codes + 4 * step));
    }
    const std::uint8_t* panel = share.up;
    const std::uint8_t* end = panel + (share.num_outputs + kQuantPanel - 1) / kQuantPanel * kBytes;
    for (std::int64_t column = 0; column < share.num_outputs; column += kQuantPanel, panel += kBytes) {
        if (first == 0) ask_ahead_in(share, panel, end, kBytes);
        const Half* scales = reinterpret_cast<const Half*>(panel + steps * 64);
#pragma GCC unroll 2
        for (int p = 0; p < P; ++p) {
            Dots<8, false> dots[rows];
            CodeSums<8, 4 * steps, false> code_sums;
            code_sums.start();
#pragma GCC unroll 4
            for (int k = 0; k < rows; ++k) dots[k].start(tails[k]);
#pragma GCC unroll 4
            for (int step = 0; step < steps; ++step) {
                const Ints codes = load_bytes(panel + step * 64 + p * kVectorBytes);
                code_sums.add(codes);
#if defined(OCTAVO_HAS_DPBUSD)
                const Ints weights = codes, magnitudes = codes;
#else
                const Ints weights = xor_bits(codes, set_byte(static_cast<char>(0x80))), magnitudes = abs_bytes(weights);
#endif
#pragma GCC unroll 4
                for (int k = 0; k < rows; ++k) dots[k].add(weights, magnitudes, x[k][step]);
            }
            const Vec scale = load(scales + p * kColumns), sum_of_codes = code_sums.finish();
#pragma GCC unroll 4
            for (int k = 0; k < rows; ++k) {
                const Vec product = fma(dots[k].finish(tails[k]), set(tails[k].scale), mul(sum_of_codes, set(tails[k].zero)));
                float* y = share.y[first + k] + column;
                const std::int64_t left = share.num_outputs - column;
                store_cut(y, fma(scale, product, load_cut(y, p * kColumns, left)), p * kColumns, left);
            }
        }
    }
}

#else

template <int rows, int steps>
void expand_panels(const QuantExpandShare& share, int first) {
    for (int k = first; k < first + rows; ++k) {
        const HiddenGroup hidden = read_hidden(share, k, 4 * steps);
        const std::uint8_t* panel = share.up;
        for (std::int64_t column = 0; column < share.num_outputs; ++column) {
            const std::int64_t c = column % kQuantPanel;
            std::int32_t dot = 0, code_sum = 0;
            for (int i = 0; i < 4 * steps; ++i) {
                const std::int32_t code = panel[i / 4 * 64 + c * 4 + i % 4] - 128;
                dot += code * static_cast<std::int8_t>(hidden.codes[i]);
                code_sum += code;
            }
            const float scale = half_to_float(reinterpret_cast<const Half*>(panel + steps * 64)[c].bits);
            const float product = static_cast<float>(dot) * hidden.tail.scale + static_cast<float>(code_sum) * hidden.tail.zero;
            share.y[k][column] += scale * product;
            if (c == kQuantPanel - 1) panel += quant_up_panel_bytes(4 * steps);
        }
    }
}

#endif

template <int steps>
void expand_steps(const QuantExpandShare& share) {
    int first = 0;
    for (; first + 4 <= share.num_rows; first += 4) expand_panels<4, steps>(share, first);
    for (; first + 2 <= share.num_rows; first += 2) expand_panels<2, steps>(share, first);
    if (first < share.num_rows) expand_panels<1, steps>(share, first);
}

}  // namespace

void expand_quantized(const QuantExpandShare& share) {
    switch ((share.num_ranks + 3) / 4) {
        case 1: return expand_steps<1>(share);
        case 2: return expand_steps<2>(share);
        case 3: return expand_steps<3>(share);
        default: return expand_steps<4>(share);
    }
}

void shrink(const ShrinkShare& share) {
    switch (share.kind) {
        case ElementKind::float32: return shrink_elements<float>(share);
        case ElementKind::float16: return shrink_elements<Half>(share);
        case ElementKind::bfloat16: return shrink_elements<Bfloat>(share);
    }
}

void expand_adapter(const ExpandShare& share) {
    switch (share.kind) {
        case ElementKind::float32: return expand_elements<float>(share);
        case ElementKind::float16: return expand_elements<Half>(share);
        case ElementKind::bfloat16: return expand_elements<Bfloat>(share);
    }
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
