// Ops on the paged key/value cache.
#pragma once

#include <optional>
#include <vector>

#include "arrays.h"

namespace octavo {

// The step's rows; see AttentionMetadata in octavo/ops/interface.py.
struct StepRows {
    const std::int32_t* query_start;
    const std::int32_t* seq_lens;
    Matrix<const std::int32_t> block_table;
    std::int64_t count;
};

// Reads the step's rows; sizes are checked here, values by check_rows.
StepRows read_step_rows(nb::handle query_start, nb::handle seq_lens, nb::handle block_table);

constexpr std::int64_t kAnyLength = std::int64_t{1} << 62;

// Raises ValueError unless count + 1 numbers rise from 0 to num_tokens, each time by no more than `longest`.
void check_query_start(const std::int32_t* query_start, std::int64_t count, std::int64_t num_tokens,
                       std::int64_t longest = kAnyLength);

// Raises ValueError unless the rows' queries, keys and blocks are consistent and lie within a cache of these sizes, which has
// the tokens that are dealt to it.
void check_rows(const StepRows& rows, std::int64_t num_tokens, std::int64_t num_blocks, std::int64_t block_size,
                std::int64_t window, const DealtTokens& dealt = {});

// Raises ValueError unless there is such a part.
DealtTokens read_dealt(std::int64_t part, std::int64_t num_parts, std::int64_t run);

// The first query head of each key/value head, and the end [K + 1]. heads_of_kv: how many each has; none: equally many.
std::vector<std::int64_t> first_heads(const std::optional<std::vector<std::int64_t>>& heads_of_kv, std::int64_t num_heads,
                                      std::int64_t num_kv_heads);

constexpr std::int64_t kNoWindow = std::int64_t{1} << 62;

struct AttentionCall {
    Tensor3<const float> query;
    KvCache cache;
    StepRows rows;
    const std::int64_t* first_head;  // [K + 1], see first_heads
    float scale;
    float softcap;        // 0: none
    std::int64_t window;  // kNoWindow: none
    const float* slopes;  // [Q], or null
    const float* sinks;   // [Q], or null
    float* out;           // [T, Q * D]; of a part [T, Q * (D + 2)]: a head's values, largest score and sum of an AttentionState
    DealtTokens dealt{};
    bool is_part = false;

    std::int64_t num_heads(std::int64_t kv_head) const { return first_head[kv_head + 1] - first_head[kv_head]; }
    std::int64_t head_width() const { return cache.head_dim + (is_part ? 2 : 0); }
};

// Joins what ranks have attended to: x [T, num_parts * Q * (D + 2)], of each head of [first_head, end_head) all parts.
struct PartsToMerge {
    Matrix<const float> x;
    std::int64_t num_parts;
    std::int64_t num_heads;
    std::int64_t first_head;
    std::int64_t end_head;
    std::int64_t head_dim;
};

// Attention in both directions within packed sequences.
struct EncoderCall {
    Tensor3<const float> query, key, value;
    const std::int32_t* query_start;  // [num_sequences + 1]
    std::int64_t num_sequences;
    float scale;
    std::int64_t window;  // a token sees those less than this away; kNoWindow: all of its sequence
    float* out;           // [T, Q * D]
    Matrix<const float> distance_bias{};  // [Q, 2 * reach - 1], see Ops.encoder_attention; or nothing

    std::int64_t heads_per_kv() const { return query.shape[1] / key.shape[1]; }
};

// Where the results of a share go: out + token * token_stride + head * head_stride. sinks: of its heads, or null. is_part: see
// AttentionCall.
struct AttentionOutput {
    float* out;
    std::int64_t token_stride;
    std::int64_t head_stride;
    const float* sinks;
    bool is_part;
};

// Floats that attend_share needs.
constexpr std::int64_t attend_share_size(std::int64_t num_queries, std::int64_t head_dim) {
    return 2 * attention_state_size(num_queries, head_dim) + attention_scratch_size(num_queries, head_dim);
}
// Computes a share in this thread, which walks the spans that it sees; `memory` becomes the share's scratch too.
void attend_share(AttentionShare share, std::int64_t first_span, std::int64_t end_span, const AttentionOutput& output, float* memory);

// Reads EncoderCall::distance_bias of so many heads.
Matrix<const float> read_distance_bias(const std::optional<nb::object>& array, std::int64_t num_heads);
// Tokens of the longest sequence that it is for.
inline std::int64_t reach_of(const Matrix<const float>& distance_bias) {
    return distance_bias.data == nullptr ? kAnyLength : (distance_bias.columns + 1) / 2;
}
// Raises ValueError for a window that is there and below 1.
std::int64_t window_or_none(std::optional<std::int64_t> sliding_window);

// The ops on plain memory and on the thread pool: they need no GIL and check nothing.
void run_store_kv(const Tensor3<const float>& key, const Tensor3<const float>& value, const KvCache& cache,
                  const std::int64_t* slots);
// run_rope of query into `out` and of key into the cache, in one pass.
struct RotatedHeads {
    Tensor3<const float> query, key, value;
    const std::int32_t* positions;
    Matrix<const float> cos_sin;
};
void run_rope_and_store(const RotatedHeads& heads, const KvCache& cache, const std::int64_t* slots, float* out);
void run_attention(const AttentionCall& call);
// out [T, (end_head - first_head) * D]
void run_merge_attention(const PartsToMerge& parts, float* out);
// Raises ValueError unless x has such parts.
void check_parts(const PartsToMerge& parts);
void run_encoder_attention(const EncoderCall& call);

// Binds store_kv, rope_and_store, paged_attention, partial_attention and merge_attention.
void bind_attention(nb::module_& m);
// Binds encoder_attention.
void bind_encoder_attention(nb::module_& m);

}  // namespace octavo
