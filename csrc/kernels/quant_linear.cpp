// y = x w^T + bias with quantised weights and activations.
//
// With activations x = scale_x * code_x + zero_x of a group, a weight's group adds to an output
//     scale * (scale_x * dot + zero_x * sum of codes) + minimum * (sum of activations),
// dot being the integer dot product of the codes. Groups are added in index order, and interrupting the sum between two depth
// blocks (it waits in `out`) loses nothing: a result depends neither on the other rows nor on the tiling.
#include "kernels/quant_linear.h"

#include "kernels/quant_dot.h"
#include "kernels/tile.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {
namespace {

struct QuantTile {
    const std::uint8_t* records;  // first row, first group
    std::int64_t record_stride;
    const std::uint8_t* codes;  // first group
    const float* scales;        // [group][kQuantPanel]
    const float* minimums;
    const float* code_sums;     // or null: sum them
    std::int64_t num_groups;
    float* out;
    std::int64_t out_stride;
    std::int64_t num_columns;  // valid columns from `out` on; may cut the tile
    const float* bias;         // added at the end, or null
    bool resume;               // start from the sums in `out`
    // The next panel lies `ahead` bytes behind this one; 0: do not ask for it.
    std::int64_t ahead;
    const std::uint8_t* packed_scales;  // as stored: first group
    const std::uint8_t* packed_minimums;
    std::int64_t packed_scales_step;  // bytes from one group to the next
    bool is_read_once;
};

#if defined(OCTAVO_ISA_AVX2) || defined(OCTAVO_ISA_AVX512)

#if defined(OCTAVO_ISA_AVX512)
constexpr int kQuantMaxRows = 8;
#else
constexpr int kQuantMaxRows = 4;
#endif
// Fewer rows sum the codes on the way. With AVX2 so do no 4 rows: their sums alone fill the registers.
constexpr int kRowsWithCodeSums = kQuantMaxRows == 4 ? 4 : 9;

template <int kBits>
OCTAVO_INLINE Ints unpack(Ints packed, int part) {
    if constexpr (kBits == 8) return packed;
    return and_bits(part == 0 ? packed : shift_right_4(packed), set_byte(15));
}

// Weights come from main memory at every step: while one panel is computed, ask for the next, evenly.
template <int kGroupBytes, bool kMinimums>
OCTAVO_INLINE void ask_for_next_panel(const QuantTile& tile, std::int64_t g) {
    const std::uint8_t* codes = tile.codes + tile.ahead + g * kGroupBytes;
    if (tile.is_read_once) {
#pragma GCC unroll 8
        for (int i = 0; i < kGroupBytes; i += 64) __builtin_prefetch(codes + i, 0, 0);
    } else {
#pragma GCC unroll 8
        for (int i = 0; i < kGroupBytes; i += 64) __builtin_prefetch(codes + i, 0, 2);
    }
    __builtin_prefetch(tile.packed_scales + tile.ahead + g * tile.packed_scales_step, 0, 2);
    if (kMinimums) __builtin_prefetch(tile.packed_minimums + tile.ahead + g * tile.packed_scales_step, 0, 2);
}

// kSumCodes: sum the weights' codes on the way, else read tile.code_sums.
template <int kBits, int kGroup, bool kMinimums, int R, int P, bool kSumCodes>
void multiply(const QuantTile& tile) {
    constexpr int kRecord = static_cast<int>(record_bytes(kGroup));
    constexpr int kGroupBytes = kGroup * static_cast<int>(kQuantPanel) * kBits / 8;
    constexpr int kLoads = kGroupBytes / 64;  // of 64 bytes
    constexpr int kParts = 8 / kBits;         // sets of 4 input features in a load
    Vec sums[R][P];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
        for (int p = 0; p < P; ++p) {
            sums[r][p] = tile.resume ? load_cut(tile.out + r * tile.out_stride, p * kColumns, tile.num_columns) : set(0.0f);
        }
    }
    const std::uint8_t* records = tile.records;
    for (std::int64_t g = 0; g < tile.num_groups; ++g, records += kRecord) {
        Dots<kBits, kMinimums> dots[R][P];
        CodeSums<kBits, kGroup, kMinimums> code_sums[P];
        if (tile.ahead != 0) ask_for_next_panel<kGroupBytes, kMinimums>(tile, g);
#pragma GCC unroll 16
        for (int p = 0; kSumCodes && p < P; ++p) code_sums[p].start();
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const RecordTail tail = read_tail(records + r * tile.record_stride, kGroup);
#pragma GCC unroll 16
            for (int p = 0; p < P; ++p) dots[r][p].start(tail);
        }
#pragma GCC unroll 16
        for (int i = 0; i < kLoads; ++i) {
            Ints packed[P];
#pragma GCC unroll 16
            for (int p = 0; p < P; ++p) {
                packed[p] = load_bytes(tile.codes + g * kGroupBytes + i * 64 + p * kVectorBytes);
            }
#pragma GCC unroll 2
            for (int part = 0; part < kParts; ++part) {
                Ints weights[P], magnitudes[P];
#pragma GCC unroll 16
                for (int p = 0; p < P; ++p) {
                    weights[p] = magnitudes[p] = unpack<kBits>(packed[p], part);
                    if (kSumCodes) code_sums[p].add(weights[p]);
#if !defined(OCTAVO_HAS_DPBUSD)
                    if constexpr (kBits == 8) {
                        weights[p] = xor_bits(weights[p], set_byte(static_cast<char>(0x80)));
                        magnitudes[p] = abs_bytes(weights[p]);
                    }
#endif
                }
#pragma GCC unroll 16
                for (int r = 0; r < R; ++r) {
                    const Ints x = set_int(read_four(records + r * tile.record_stride + (i * kParts + part) * 4));
#pragma GCC unroll 16
                    for (int p = 0; p < P; ++p) dots[r][p].add(weights[p], magnitudes[p], x);
                }
            }
        }
        Vec scales[P], minimums[P], sums_of_codes[P];
#pragma GCC unroll 16
        for (int p = 0; p < P; ++p) {
            const std::int64_t offset = g * kQuantPanel + p * kColumns;
            scales[p] = load(tile.scales + offset);
            minimums[p] = kMinimums ? load(tile.minimums + offset) : scales[p];
            sums_of_codes[p] = kSumCodes ? code_sums[p].finish() : load(tile.code_sums + offset);
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const RecordTail tail = read_tail(records + r * tile.record_stride, kGroup);
#pragma GCC unroll 16
            for (int p = 0; p < P; ++p) {
                const Vec product = fma(dots[r][p].finish(tail), set(tail.scale), mul(sums_of_codes[p], set(tail.zero)));
                sums[r][p] = fma(scales[p], product, sums[r][p]);
                if (kMinimums) sums[r][p] = fma(minimums[p], set(tail.sum), sums[r][p]);
            }
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
        for (int p = 0; p < P; ++p) {
            Vec sum = sums[r][p];
            if (tile.bias != nullptr) sum = add(sum, load_cut(tile.bias, p * kColumns, tile.num_columns));
            store_cut(tile.out + r * tile.out_stride, sum, p * kColumns, tile.num_columns);
        }
    }
}

// Several tiles of kQuantMaxRows share what this finds: the same to the bit as what multiply<..., true> sums by itself.
template <int kBits, int kGroup, bool kMinimums>
void sum_codes(const std::uint8_t* codes, std::int64_t num_groups, float* out) {
    for (std::int64_t g = 0; g < num_groups; ++g) {
        for (int p = 0; p < kVectorsPerPanel; ++p) {
            CodeSums<kBits, kGroup, kMinimums> sums;
            sums.start();
#pragma GCC unroll 16
            for (int i = 0; i < kGroup * kBits / 32; ++i) {
                const Ints packed = load_bytes(codes + (g * kGroup * kBits / 32 + i) * 64 + p * kVectorBytes);
                for (int part = 0; part < 8 / kBits; ++part) sums.add(unpack<kBits>(packed, part));
            }
            store(out + g * kQuantPanel + p * kColumns, sums.finish());
        }
    }
}

// The instance of multiply for `rows` rows; returns how many column vectors it computed.
template <int kBits, int kGroup, bool kMinimums, int R = kQuantMaxRows>
OCTAVO_INLINE int multiply_rows_of(const QuantTile& tile, std::int64_t rows, std::int64_t vectors_left) {
    if (rows == R) {
        constexpr int P = kVectorsPerPanel;
        const bool wide = vectors_left >= P;
        if (R == kQuantMaxRows && tile.code_sums != nullptr) {
            if (wide) {
                multiply<kBits, kGroup, kMinimums, R, P, R != kQuantMaxRows>(tile);
            } else {
                multiply<kBits, kGroup, kMinimums, R, 1, R != kQuantMaxRows>(tile);
            }
        } else if (wide) {
            multiply<kBits, kGroup, kMinimums, R, P, true>(tile);
        } else {
            multiply<kBits, kGroup, kMinimums, R, 1, true>(tile);
        }
        return wide ? P : 1;
    } else if constexpr (R > 1) {
        return multiply_rows_of<kBits, kGroup, kMinimums, R - 1>(tile, rows, vectors_left);
    }
    return 1;
}

#endif

#if !defined(OCTAVO_ISA_AVX2) && !defined(OCTAVO_ISA_AVX512)

// Any machine: one row, one panel.
constexpr int kVectorsPerPanel = 1;
constexpr int kColumns = static_cast<int>(kQuantPanel);
constexpr int kVectorBytes = 4 * kColumns;
constexpr int kQuantMaxRows = 1;
constexpr int kRowsWithCodeSums = 1 << 30;  // never

template <int kBits, int kGroup, bool kMinimums>
void multiply(const QuantTile& tile) {
    constexpr int kGroupBytes = kGroup * kColumns * kBits / 8;
    constexpr std::int32_t kMinusBias = -kGroup * (kBits == 8 ? 128 : kMinimums ? 0 : 8);
    float sums[kColumns] = {};
    const int valid = tile.num_columns < kColumns ? static_cast<int>(tile.num_columns) : kColumns;
    if (tile.resume) std::memcpy(sums, tile.out, sizeof(float) * static_cast<std::size_t>(valid));
    const std::uint8_t* record = tile.records;
    for (std::int64_t g = 0; g < tile.num_groups; ++g, record += record_bytes(kGroup)) {
        const RecordTail tail = read_tail(record, kGroup);
        const std::int32_t start = kBits == 8 ? tail.minus_128 : kMinimums ? 0 : tail.minus_128 / 16;
        std::int32_t dots[kColumns], code_sums[kColumns];
        for (int c = 0; c < kColumns; ++c) dots[c] = start, code_sums[c] = kMinusBias;
        const std::uint8_t* codes = tile.codes + g * kGroupBytes;
        for (int k = 0; k < kGroup; ++k) {
            const std::int32_t x = static_cast<std::int8_t>(record[k]);
            const std::uint8_t* four = codes + k * kBits / 32 * 64 + k % 4;
            const int shift = kBits == 4 && k % 8 >= 4 ? 4 : 0;
            for (int c = 0; c < kColumns; ++c) {
                const std::int32_t code = four[4 * c] >> shift & (kBits == 4 ? 15 : 255);
                dots[c] += code * x;
                code_sums[c] += code;
            }
        }
        const float* scales = tile.scales + g * kQuantPanel;
        const float* minimums = tile.minimums + g * kQuantPanel;
        for (int c = 0; c < kColumns; ++c) {
            sums[c] += scales[c] * (static_cast<float>(dots[c]) * tail.scale + code_sums[c] * tail.zero);
            if (kMinimums) sums[c] += minimums[c] * tail.sum;
        }
    }
    for (int c = 0; c < valid; ++c) tile.out[c] = tile.bias == nullptr ? sums[c] : sums[c] + tile.bias[c];
}

template <int kBits, int kGroup, bool kMinimums>
void sum_codes(const std::uint8_t*, std::int64_t, float*) {}  // multiply does

template <int kBits, int kGroup, bool kMinimums>
int multiply_rows_of(const QuantTile& tile, std::int64_t, std::int64_t) {
    multiply<kBits, kGroup, kMinimums>(tile);
    return 1;
}

#endif

struct Block {
    std::int64_t row, num_rows, group, num_groups;
};

// Panel `index` times one block of rows and groups.
template <int kBits, int kGroup, bool kMinimums>
void multiply_block(const QuantShare& share, const Block& block, std::int64_t index) {
    const QuantPanelLayout& layout = *share.layout;
    const std::uint8_t* panel = share.panels + index * layout.size;
    const std::uint8_t* codes = panel + block.group * layout.group_code_bytes;
    float* scales = share.scratch;
    float* minimums = scales + kQuantDepthGroups * kQuantPanel;
    float* code_sums = minimums + kQuantDepthGroups * kQuantPanel;
    expand_scales(share.format.scales, kGroup, panel + layout.scales, panel + layout.coarse_scales, block.group, block.num_groups,
                  scales);
    if (kMinimums) {
        expand_scales(share.format.scales, kGroup, panel + layout.minimums, panel + layout.coarse_minimums, block.group,
                      block.num_groups, minimums);
    }
    const bool sums_codes_first = block.num_rows >= kRowsWithCodeSums;
    if (sums_codes_first) sum_codes<kBits, kGroup, kMinimums>(codes, block.num_groups, code_sums);
    const std::int64_t scale_step = kQuantPanel * scale_bytes(share.format.scales);
    const std::int64_t ahead = index + 1 < share.num_panels ? layout.size : share.next != nullptr ? share.next - panel : 0;
    const bool last = block.group + block.num_groups == layout.num_groups;
    const std::int64_t num_tiles = (block.num_rows + kQuantMaxRows - 1) / kQuantMaxRows;
    for (std::int64_t tile = 0; tile < num_tiles; ++tile) {
        const std::int64_t first = block.num_rows * tile / num_tiles;  // even shares: 9 rows are 5 + 4, not 8 + 1
        const std::int64_t rows = block.num_rows * (tile + 1) / num_tiles - first;
        for (std::int64_t v = 0; v < kVectorsPerPanel;) {
            const std::int64_t column = index * kQuantPanel + v * kColumns;
            if (column >= share.num_columns) break;
            v += multiply_rows_of<kBits, kGroup, kMinimums>(
                {share.records + (block.row + first) * share.record_stride + block.group * record_bytes(kGroup),
                 share.record_stride, codes + v * kVectorBytes, scales + v * kColumns, minimums + v * kColumns,
                 sums_codes_first ? code_sums + v * kColumns : nullptr, block.num_groups,
                 share.out + (block.row + first) * share.out_stride + column, share.out_stride, share.num_columns - column,
                 last && share.bias != nullptr ? share.bias + column : nullptr, block.group > 0,
                 tile == 0 && v == 0 ? ahead : 0, panel + layout.scales + block.group * scale_step,
                 panel + layout.minimums + block.group * scale_step, scale_step, share.is_read_once},
                rows, kVectorsPerPanel - v);
        }
    }
}

template <int kBits, int kGroup, bool kMinimums>
void multiply_share(const QuantShare& share) {
    const std::int64_t num_depths = (share.layout->num_groups + kQuantDepthGroups - 1) / kQuantDepthGroups;
    for (std::int64_t row = 0; row < share.num_rows; row += kQuantRowBlock) {
        const std::int64_t rows_left = share.num_rows - row;
        for (std::int64_t depth = 0; depth < num_depths; ++depth) {
            const std::int64_t group = share.layout->num_groups * depth / num_depths;
            const Block block{row, rows_left < kQuantRowBlock ? rows_left : kQuantRowBlock, group,
                              share.layout->num_groups * (depth + 1) / num_depths - group};
            for (std::int64_t panel = 0; panel < share.num_panels; ++panel) {
                multiply_block<kBits, kGroup, kMinimums>(share, block, panel);
            }
        }
    }
}

template <int kBits, int kGroup>
void multiply_share(const QuantShare& share) {
    if (share.format.has_minimums) return multiply_share<kBits, kGroup, true>(share);
    multiply_share<kBits, kGroup, false>(share);
}

}  // namespace

void quant_linear(const QuantShare& share) {
    if (share.format.bits == 4) {
        share.format.group == 32 ? multiply_share<4, 32>(share) : multiply_share<4, 16>(share);
    } else {
        share.format.group == 32 ? multiply_share<8, 32>(share) : multiply_share<8, 16>(share);
    }
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
