// How quantised weights and activations lie in memory. The same for every instruction set.
//
// A weight is scale * code + minimum over groups of 16 or 32 input features. Without minimums codes are signed: 4-bit codes are
// stored plus 8. 8-bit codes are always signed and stored plus 128. Panels hold 16 output columns. Each is a block of codes, then
// of scales, then of minimums, so that a kernel reads three streams front to back:
//   codes, 8-bit: for every 4 input features 64 bytes, [column][4 features]
//   codes, 4-bit: for every 8 input features 64 bytes, [column][4 features]: features 0-3 in the low halves of the bytes,
//                 features 4-7 in the high halves
//   scales:       [group][column], and the same for minimums; with coarse scales then [super-group][column]
// Columns beyond the last have scale 0, input features beyond the last have activations 0: they add nothing.
//
// Activations are quantised by rows, per group between its least and its greatest value: one record a group, see RecordTail.
#pragma once

#include <cstdint>

namespace octavo {

// Functions of headers that kernels share with the rest are never emitted by themselves: the linker might keep the copy that was
// built for AVX-512.
#define OCTAVO_SHARED constexpr inline __attribute__((always_inline))

constexpr std::int64_t kQuantPanel = 16;        // output columns
constexpr std::int64_t kQuantSuperGroup = 256;  // input features that share a coarse scale

// half: float16. single: float32. coarse: int8 times the float16 of the super-group, as in GGUF's K types.
enum class ScaleKind { half, single, coarse };

OCTAVO_SHARED std::int64_t scale_bytes(ScaleKind kind) {
    return kind == ScaleKind::half ? 2 : kind == ScaleKind::single ? 4 : 1;
}

struct QuantFormat {
    int bits;   // 4 or 8
    int group;  // 16 or 32
    ScaleKind scales;
    bool has_minimums;
};

// What is added to a code when it is stored.
OCTAVO_SHARED std::int32_t code_bias(const QuantFormat& format) {
    return format.bits == 8 ? 128 : format.has_minimums ? 0 : 8;
}

// Offsets in bytes within a panel.
struct QuantPanelLayout {
    std::int64_t num_groups;
    std::int64_t group_code_bytes;
    std::int64_t scales;
    std::int64_t coarse_scales;
    std::int64_t minimums;
    std::int64_t coarse_minimums;
    std::int64_t size;
};

// What follows the `group` int8 codes (-127 .. 127) of a group of activations: x = scale * code + zero.
struct RecordTail {
    float scale;
    float zero;
    float sum;               // of the group's (rounded) activations
    std::int32_t minus_128;  // -128 * the sum of the codes: undoes the bias of 8-bit weights
};

OCTAVO_SHARED std::int64_t record_bytes(int group) { return group + static_cast<std::int64_t>(sizeof(RecordTail)); }

// Bytes from one row of records to the next: an odd number of cache lines, so that rows spread over the sets of the cache.
OCTAVO_SHARED std::int64_t record_stride(int group, std::int64_t num_groups) {
    return (num_groups * record_bytes(group) + 63) / 64 / 2 * 128 + 64;
}

// A share of y = x w^T + bias for one thread.
struct QuantShare {
    QuantFormat format;
    const std::uint8_t* records;  // first row of the share
    std::int64_t record_stride;   // bytes
    std::int64_t num_rows;
    const std::uint8_t* panels;  // first panel of the share
    const QuantPanelLayout* layout;
    std::int64_t num_panels;
    std::int64_t num_columns;  // output columns of the share: num_panels * kQuantPanel, less in the weight's last panel
    const float* bias;         // of the share's first column, or null
    float* out;                // first row and column of the share
    std::int64_t out_stride;
    float* scratch;  // kQuantScratch floats of this thread
    const std::uint8_t* next = nullptr;  // a panel that this thread reads next, to ask for it in time; or null
    bool is_read_once = false;  // in this step: caches need not keep the panels, and have room for what other steps read again
};

constexpr std::int64_t kQuantRowBlock = 96;    // rows whose records of a depth block stay in the second-level cache
constexpr std::int64_t kQuantDepthGroups = 64;  // groups: a panel's codes of a depth block stay in the first-level cache
// Scales, minimums and sums of codes of one panel's depth block in float32.
constexpr std::int64_t kQuantScratch = 3 * kQuantDepthGroups * kQuantPanel;

}  // namespace octavo
