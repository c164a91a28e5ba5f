// The table of kernels: one for every instruction set, each filled by csrc/kernels/table.cpp in its own namespace.
//
// A kernel computes a share of an op for one thread. It gets plain pointers that were checked before, allocates nothing and
// throws nothing. Everything in csrc/kernels lives in a namespace or has internal linkage, and calls no inline function of the
// standard library that the compiler may emit out of line: the linker keeps one copy of such a function for all, and it could
// be the one built for AVX-512.
#pragma once

#include <cstdint>

#include "kernels/quant_format.h"

namespace octavo {

// Element-wise functions of one argument; `parameter` of Kernels::map is the factor of scale and the cap of softcap.
// clamped_swiglu: only between a gate and what it is for.
enum class Function { silu, gelu, gelu_tanh, relu, relu2, clamped_swiglu, scale, softcap };

// How the elements of a float matrix are stored; products and sums are float32 with all of them.
enum class ElementKind { float32, float16, bfloat16 };

OCTAVO_SHARED std::int64_t element_bytes(ElementKind kind) { return kind == ElementKind::float32 ? 4 : 2; }

// A share of y = x w^T + bias. The weight lies in panels of `panel_width` output columns, each [in_features][panel_width],
// columns beyond out_features zero.
struct LinearShare {
    const float* x;  // first row of the share
    std::int64_t x_stride;
    std::int64_t num_rows;
    std::int64_t in_features;
    ElementKind kind;
    const void* panels;  // first panel of the share
    std::int64_t num_panels;
    std::int64_t num_columns;  // output columns of the share: num_panels * panel_width, less in the weight's last panel
    const float* bias;         // of the share's first column, or null
    float* out;                // first row and column of the share
    std::int64_t out_stride;
    float* scratch;  // kLinearScratch floats of this thread
};

constexpr std::int64_t kLinearRowBlock = 96;  // rows whose slice of inputs stays in the second-level cache
constexpr std::int64_t kLinearDepthBlock = 256;
constexpr std::int64_t kLinearScratchStride = kLinearDepthBlock + 16;  // not a power of two: rows spread over cache sets
constexpr std::int64_t kLinearScratch = kLinearRowBlock * kLinearScratchStride;

// Element type of a key/value cache; see kernels/kv_cache.h for the layout.
enum class KvType { float32, float16, int8 };

// Attention walks the keys in partitions of kPartition counted from position 0, and gathers partitions into spans of kSpan, whose
// results are merged in order. Both borders are absolute positions: they depend on nothing but the key's position.
constexpr std::int64_t kPartition = 64;
constexpr std::int64_t kSpan = 512;

// Which of a row's tokens a cache has: of runs of `run` tokens, dealt out in turn to num_parts caches, those of one part. As it
// stands: all.
struct DealtTokens {
    std::int64_t part = 0;
    std::int64_t num_parts = 1;
    std::int64_t run = 1;
};

// Consecutive tokens of one row, and the query heads that share one key/value head.
struct AttentionShare {
    const float* query;  // first token, first head
    std::int64_t token_stride;
    std::int64_t head_stride;
    std::int64_t num_tokens;
    std::int64_t num_heads;
    std::int64_t head_dim;
    std::int64_t first_position;  // of the first token; the others follow
    std::int64_t num_keys;        // of the row, as far as the cache has them
    DealtTokens dealt;            // where these are not all: causal, without window or slopes

    KvType type;
    const std::uint8_t* keys;    // of this head in block 0
    std::int64_t block_stride;   // bytes from block to block
    std::int64_t value_offset;   // bytes from a block's keys to its values
    std::int64_t block_size;
    const std::int32_t* block_table;  // of this row

    float scale;
    float softcap;        // 0: none
    const float* slopes;  // by which a head's scores fall with the distance of the key, [num_heads]; or null
    std::int64_t window;  // keys up to its own position that a query sees, itself included
    std::int64_t ahead;   // keys behind its own position that it sees: 0 where attention is causal
    const float* distance_bias = nullptr;  // [num_heads], distance_stride apart: what is added to the score of the query's own position;
    std::int64_t distance_stride = 0;      // that of other keys lies as far from there; or null

    float* scratch;  // attention_scratch(...) floats of this thread

    const AttentionShare* next;  // what this thread computes next, to ask for its first keys in time; or null

    std::int64_t num_queries() const { return num_tokens * num_heads; }
};

// Unnormalised result over some keys, for every query (token-major, then head): the largest score, the sum of exp(score - largest)
// (0: saw no key), and the values weighted by the same exponentials.
struct AttentionState {
    float* largest;  // [num_queries]
    float* sum;      // [num_queries]
    float* values;   // [num_queries][head_dim]
};

constexpr std::int64_t attention_state_size(std::int64_t num_queries, std::int64_t head_dim) {
    return num_queries * (head_dim + 2);
}

// Queries, scores, and one partition of keys or values.
constexpr std::int64_t attention_scratch_size(std::int64_t num_queries, std::int64_t head_dim) {
    return num_queries * (head_dim + kPartition) + head_dim * kPartition;
}

// Low-rank adapters lie in memory as their products read them: see csrc/adapters.h.
constexpr int kAdapterRows = 4;
constexpr std::int64_t kAdapterColumns = 16;
constexpr std::int64_t kAdapterOutputs = 64;

// The first product for kAdapterColumns of one adapter's ranks: hidden = scale * (down x).
struct ShrinkShare {
    ElementKind kind;
    const float* x[kAdapterRows];  // each row's inputs [in_features]
    int num_rows;                  // 1 .. kAdapterRows
    std::int64_t in_features;
    const void* down;     // [in_features][kAdapterColumns]
    const float* scales;  // [kAdapterColumns]
    float* hidden;        // [num_rows][kAdapterColumns], rows at hidden_stride
    std::int64_t hidden_stride;
};

// The second product for up to kAdapterOutputs outputs: y += up hidden.
struct ExpandShare {
    ElementKind kind;
    const float* hidden;  // [num_rows][rank], rows at hidden_stride
    std::int64_t hidden_stride;
    int num_rows;
    std::int64_t rank;
    const void* up;          // [rank][kAdapterOutputs]
    float* y[kAdapterRows];  // each row's outputs [num_outputs]
    std::int64_t num_outputs;
};

// The second product of an 8-bit adapter, of kAdapterGroup ranks or fewer: y += up hidden, where hidden was rounded. `up` lies in panels
// of kQuantPanel outputs, each like a group of a quantised weight (see quant_format.h) that ends with the last 4 ranks: codes, then
// float16 scales.
struct QuantExpandShare {
    const std::uint8_t* records;  // of the first row
    std::int64_t record_stride;   // bytes
    float scale;                  // of the adapter
    int num_rows;
    int num_ranks;
    const std::uint8_t* up;
    float* y[kAdapterRows];  // each row's outputs [num_outputs]
    std::int64_t num_outputs;
    const std::uint8_t* next;  // what this thread reads next, to ask for it in time; or null
    bool is_read_once;         // see QuantShare
};

constexpr int kAdapterGroup = 16;

OCTAVO_SHARED std::int64_t quant_up_panel_bytes(std::int64_t num_ranks) { return kQuantPanel * ((num_ranks + 3) / 4 * 4 + 2); }

struct Kernels {
    const char* isa;
    int panel_width;

    void (*linear)(const LinearShare& share);

    // See kernels/quant_linear.h.
    double quant_products_per_ns;  // about what one thread reaches with many rows
    void (*quant_linear)(const QuantShare& share);
    void (*quantize_row)(const float* x, std::int64_t size, int group, std::uint8_t* records);
    void (*interleave_codes)(const std::uint8_t* const* rows, std::int64_t size, int bits, std::uint8_t* panel);
    void (*expand)(ElementKind kind, const void* from, std::int64_t count, float* out);  // 16-bit numbers to float32

    // One row of n elements each.
    void (*rms_norm)(const float* x, const float* weight, float eps, std::int64_t n, float* out);
    // total = x + residual; out = rms_norm(total).
    void (*add_rms_norm)(const float* x, const float* residual, const float* weight, float eps, std::int64_t n, float* out,
                         float* total);
    void (*layer_norm)(const float* x, const float* weight, const float* bias, float eps, std::int64_t n, float* out);
    void (*add)(const float* x, const float* y, std::int64_t n, float* out);
    void (*map)(Function function, const float* x, float parameter, std::int64_t n, float* out);
    // out = function(gate) * up
    void (*map_and_mul)(Function function, const float* gate, const float* up, std::int64_t n, float* out);
    // One token: heads of x at head_stride, out contiguous [num_heads, head_dim].
    void (*rope)(const float* x, std::int64_t head_stride, std::int64_t num_heads, std::int64_t head_dim,
                 const float* cos_sin, std::int64_t rotary_dim, float* out);

    void (*shrink)(const ShrinkShare& share);
    void (*expand_adapter)(const ExpandShare& share);
    void (*expand_quantized)(const QuantExpandShare& share);

    // Writes the key and value [head_dim] of one token and head at `offset` of a block; `keys`, `values`: of that block and head.
    void (*store_kv)(KvType type, const float* key, const float* value, std::int64_t head_dim, std::int64_t block_size,
                     std::int64_t offset, std::uint8_t* keys, std::uint8_t* values);

    // Attends to the keys of one span (number `span`, keys kSpan * span onwards).
    void (*attend_span)(const AttentionShare& share, std::int64_t span, const AttentionState& state);
    // Adds a later span's result to `state`.
    void (*merge_attention)(const AttentionState& state, const AttentionState& later, std::int64_t num_queries,
                            std::int64_t head_dim);
    // out[head_dim] = values / sum of one query.
    void (*finish_attention)(const float* values, float sum, std::int64_t head_dim, float* out);
};

#if defined(OCTAVO_WITH_AVX2)
namespace avx2 {
extern const Kernels kernels;
}
namespace avx_vnni {
extern const Kernels kernels;
}
#endif
#if defined(OCTAVO_WITH_AVX512)
namespace avx512 {
extern const Kernels kernels;
}
namespace avx512_vnni {
extern const Kernels kernels;
}
#endif
namespace portable {
extern const Kernels kernels;
}

}  // namespace octavo
