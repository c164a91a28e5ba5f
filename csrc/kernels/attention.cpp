// Causal attention over a paged cache, with the online softmax (Milakov and Gimelshein, arXiv:1805.02867).
//
// For each partition of 64 keys: transpose the keys into scratch, so that scores = queries x keys is the loop of tile.h with
// the keys as columns and a score's sum running over the head's elements in order; turn scores into exponentials, rescaling
// what was summed before when a larger score appears; add exponentials x values, again the loop of tile.h, each output's sum
// running over the keys in order. All queries of the share (tokens x heads of the group) use one transposed partition.
//
// A query's operations depend on its position and its keys alone: partitions that it does not see are skipped for it, keys
// inside a partition that it does not see get an exponential of 0 and are left out of its sum over values. So nothing outside
// the query's window or behind its position is ever multiplied in, whatever it holds.
#include "kernels/attention.h"

#include <cstring>

#include "kernels/math.h"
#include "kernels/tile.h"
#include "kernels/transpose.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {
namespace {

struct KeyRange {
    std::int64_t begin;
    std::int64_t end;

    bool empty() const { return begin >= end; }
    bool operator==(const KeyRange& other) const { return begin == other.begin && end == other.end; }
};

// The keys of [begin, end) that the share's token sees.
KeyRange visible_keys(const AttentionShare& share, std::int64_t token, std::int64_t begin, std::int64_t end) {
    const std::int64_t position = share.first_position + token;
    const std::int64_t first = position - share.window + 1;
    return {first > begin ? first : begin, position + 1 < end ? position + 1 : end};
}

// out[rows][columns] (+)= x[rows][depth] * matrix[depth][columns]. padded: the matrix's rows may be read up to whole panels.
void multiply(const float* x, std::int64_t x_stride, std::int64_t num_rows, const float* matrix, std::int64_t matrix_stride,
              std::int64_t depth, std::int64_t num_columns, float* out, std::int64_t out_stride, bool resume, bool padded) {
    const std::int64_t num_tiles = (num_rows + kMaxRows - 1) / kMaxRows;
    for (std::int64_t tile = 0; tile < num_tiles; ++tile) {
        const std::int64_t first = num_rows * tile / num_tiles;
        const std::int64_t rows = num_rows * (tile + 1) / num_tiles - first;
        const std::int64_t wide_columns = kPanelWidth * panels_for(static_cast<int>(rows));
        for (std::int64_t column = 0; column < num_columns;) {
            const std::int64_t left = num_columns - column;
            const Panels panels = left >= wide_columns              ? Panels::wide
                                  : padded || left >= kPanelWidth ? Panels::single
                                                                    : Panels::cut;
            multiply_rows(Tile<float>{x + first * x_stride, x_stride, matrix + column, kPanelWidth, matrix_stride, depth,
                           out + first * out_stride + column, out_stride, left, nullptr, resume},
                          rows, panels);
            column += panels == Panels::wide ? wide_columns : kPanelWidth;
        }
    }
}

// Calls body(first key, number of keys, address of the first key's row) for each stretch of `keys` that is contiguous in memory.
template <class Body>
OCTAVO_INLINE void for_each_stretch(const AttentionShare& share, KeyRange keys, const Body& body) {
    for (std::int64_t key = keys.begin; key < keys.end;) {
        const std::int64_t block = key / share.block_size;
        const std::int64_t offset = key - block * share.block_size;
        std::int64_t count = share.block_size - offset;
        if (count > keys.end - key) count = keys.end - key;
        body(key, count, share.keys + share.block_table[block] * share.block_stride + offset * share.head_dim);
        key += count;
    }
}

// Turns one query's scores of a partition into exponentials, in place; columns outside [begin, end) become 0. Updates the
// query's largest score and sum, and returns the factor that earlier sums must be multiplied by.
float softmax_partition(float* scores, std::int64_t begin, std::int64_t end, float scale, float softcap, float* largest,
                        float* sum) {
    const Vec hidden = set(-__builtin_inff());
    const Vec lowest = set(static_cast<float>(begin));
    const Vec limit = set(static_cast<float>(end));
    float indices[kLanes];
    for (int i = 0; i < kLanes; ++i) indices[i] = static_cast<float>(i);
    const Vec lane = load(indices);

    Vec top = hidden;
    for (std::int64_t i = 0; i < kPartition; i += kLanes) {
        Vec score = mul(load(scores + i), set(scale));
        if (softcap != 0.0f) score = mul(set(softcap), tanh(div(score, set(softcap))));
        const Vec column = add(lane, set(static_cast<float>(i)));
        score = select(less(column, lowest), hidden, select(less(column, limit), score, hidden));
        store(scores + i, score);
        top = max(top, score);
    }
    const float previous = *largest;
    const float found = max_lanes(top);
    const float now = found > previous ? found : previous;
    Vec total = set(0.0f);
    for (std::int64_t i = 0; i < kPartition; i += kLanes) {
        const Vec weight = exp(sub(load(scores + i), set(now)));
        store(scores + i, weight);
        total = add(total, weight);
    }
    // e^(-infinity) is 0 at a query's first partition: nothing came before.
    float factors[kLanes];
    store(factors, exp(set(previous - now)));
    *largest = now;
    *sum = *sum * factors[0] + sum_lanes(total);
    return factors[0];
}

void rescale(float* values, float factor, std::int64_t n) {
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(values + i, mul(load(values + i), set(factor)));
    if (i < n) store_first(values + i, mul(load_first(values + i, n - i), set(factor)), n - i);
}

struct Workspace {
    float* queries;  // [num_queries][head_dim]
    float* scores;   // [num_queries][kPartition]
    float* keys;     // [head_dim][kPartition]
};

// Adds exponentials x values. Tokens that see the same keys of the partition, all but those near its borders, go together.
void add_values(const AttentionShare& share, const Workspace& work, KeyRange partition, std::int64_t first_token,
                std::int64_t last_token, float* values) {
    for (std::int64_t token = first_token; token < last_token;) {
        const KeyRange keys = visible_keys(share, token, partition.begin, partition.end);
        std::int64_t next = token + 1;
        while (next < last_token && visible_keys(share, next, partition.begin, partition.end) == keys) ++next;
        const std::int64_t query = token * share.num_heads;
        const std::int64_t num_queries = (next - token) * share.num_heads;
        for_each_stretch(share, keys, [&](std::int64_t key, std::int64_t count, const float* row) {
            multiply(work.scores + query * kPartition + key - partition.begin, kPartition, num_queries,
                     row + share.value_offset, share.head_dim, count, share.head_dim, values + query * share.head_dim,
                     share.head_dim, true, false);
        });
        token = next;
    }
}

void attend_partition(const AttentionShare& share, const Workspace& work, KeyRange partition, const AttentionState& state) {
    // Tokens that see something here: positions from the partition's first key to its last key's last viewer.
    std::int64_t first_token = partition.begin - share.first_position;
    if (first_token < 0) first_token = 0;
    std::int64_t last_token = share.num_tokens;
    if (share.window < last_token + share.first_position - partition.end + 1) {
        last_token = partition.end - 1 + share.window - share.first_position;
    }
    if (first_token >= last_token) return;

    const KeyRange earliest = visible_keys(share, first_token, partition.begin, partition.end);
    const KeyRange latest = visible_keys(share, last_token - 1, partition.begin, partition.end);
    for_each_stretch(share, {earliest.begin, latest.end}, [&](std::int64_t key, std::int64_t count, const float* row) {
        transpose(row, count, share.head_dim, work.keys + key - partition.begin, kPartition);
    });
    const std::int64_t first = first_token * share.num_heads;
    const std::int64_t last = last_token * share.num_heads;
    multiply(work.queries + first * share.head_dim, share.head_dim, last - first, work.keys, kPartition, share.head_dim,
             latest.end - partition.begin, work.scores + first * kPartition, kPartition, false, true);
    for (std::int64_t query = first; query < last; ++query) {
        const KeyRange keys = visible_keys(share, query / share.num_heads, partition.begin, partition.end);
        const float factor =
            softmax_partition(work.scores + query * kPartition, keys.begin - partition.begin, keys.end - partition.begin,
                              share.scale, share.softcap, state.largest + query, state.sum + query);
        rescale(state.values + query * share.head_dim, factor, share.head_dim);
    }
    add_values(share, work, partition, first_token, last_token, state.values);
}

}  // namespace

void attend_span(const AttentionShare& share, std::int64_t span, const AttentionState& state) {
    const std::int64_t num_queries = share.num_queries();
    for (std::int64_t query = 0; query < num_queries; ++query) {
        state.largest[query] = -__builtin_inff();
        state.sum[query] = 0.0f;
    }
    std::memset(state.values, 0, static_cast<std::size_t>(num_queries * share.head_dim) * sizeof(float));

    const Workspace work{share.scratch, share.scratch + num_queries * share.head_dim,
                         share.scratch + num_queries * (share.head_dim + kPartition)};
    for (std::int64_t query = 0; query < num_queries; ++query) {
        const float* from = share.query + query / share.num_heads * share.token_stride + query % share.num_heads * share.head_stride;
        std::memcpy(work.queries + query * share.head_dim, from, static_cast<std::size_t>(share.head_dim) * sizeof(float));
    }
    for (std::int64_t begin = span * kSpan; begin < (span + 1) * kSpan; begin += kPartition) {
        attend_partition(share, work, {begin, begin + kPartition}, state);
    }
}

void merge_attention(const AttentionState& state, const AttentionState& later, std::int64_t num_queries,
                     std::int64_t head_dim) {
    for (std::int64_t query = 0; query < num_queries; ++query) {
        if (later.sum[query] == 0.0f) continue;  // it saw no key of that span; NaN is not equal to 0
        float* values = state.values + query * head_dim;
        const float* more = later.values + query * head_dim;
        if (state.sum[query] == 0.0f) {
            state.largest[query] = later.largest[query];
            state.sum[query] = later.sum[query];
            std::memcpy(values, more, static_cast<std::size_t>(head_dim) * sizeof(float));
            continue;
        }
        const float old_largest = state.largest[query];
        const float new_largest = later.largest[query] > old_largest ? later.largest[query] : old_largest;
        const Vec old_factor = exp(set(old_largest - new_largest));
        const Vec new_factor = exp(set(later.largest[query] - new_largest));
        std::int64_t i = 0;
        for (; i + kLanes <= head_dim; i += kLanes) {
            store(values + i, fma(load(more + i), new_factor, mul(load(values + i), old_factor)));
        }
        if (i < head_dim) {
            const std::int64_t rest = head_dim - i;
            const Vec kept = mul(load_first(values + i, rest), old_factor);
            store_first(values + i, fma(load_first(more + i, rest), new_factor, kept), rest);
        }
        const Vec sum = fma(set(later.sum[query]), new_factor, mul(set(state.sum[query]), old_factor));
        store_first(state.sum + query, sum, 1);
        state.largest[query] = new_largest;
    }
}

void finish_attention(const float* values, float sum, std::int64_t head_dim, float* out) {
    const Vec inverse = set(1.0f / sum);
    std::int64_t i = 0;
    for (; i + kLanes <= head_dim; i += kLanes) store(out + i, mul(load(values + i), inverse));
    if (i < head_dim) store_first(out + i, mul(load_first(values + i, head_dim - i), inverse), head_dim - i);
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
