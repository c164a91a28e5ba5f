// Attention over a paged cache, with the online softmax (Milakov and Gimelshein, arXiv:1805.02867).
//
// For each partition of 64 keys: scores = queries x keys, a score's sum running over the head's elements in order; turn scores
// into exponentials, rescaling what was summed before when a larger score appears; add exponentials x values, each output's sum
// running over the keys in order. All queries of the share (tokens x heads of the group) use one partition together.
//
// A query's operations depend on its position and its keys alone: partitions that it does not see are skipped for it, keys
// inside a partition that it does not see get an exponential of 0 and are left out of its sum over values. So nothing outside
// what the query sees is ever multiplied in, whatever it holds.
//
// With few queries, keys and values are read from the cache as they are; with many, they are widened to float32 in scratch
// first. Both give the same bits, as widening is exact. With few queries memory is the limit, and blocks lie anywhere: while a
// partition is computed, each load also asks for the same place of the next one. The scales of int8 multiply a key's score and a
// value's exponential.
#include "kernels/attention.h"

#include "kernels/kv_cache.h"
#include "kernels/math.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {
namespace {

constexpr int kVectors = kPartition / kLanes;  // of keys in a partition
constexpr int kTileVectors = 4;  // side by side in a tile, of keys or of a value's elements
#if defined(OCTAVO_ISA_AVX512)
constexpr int kTileRows = 6;  // 24 of 32 registers for sums
#else
constexpr int kTileRows = 3;  // 12 of 16
#endif
constexpr std::int64_t kWidenFrom = 4 * kTileRows;  // queries for which widening once pays
constexpr int kMaxStretches = kPartition;

struct KeyRange {
    std::int64_t begin;
    std::int64_t end;

    bool empty() const { return begin >= end; }
};

// How many of a row's first `count` tokens the cache has.
std::int64_t num_dealt(const DealtTokens& dealt, std::int64_t count) {
    if (dealt.num_parts == 1) return count;
    const std::int64_t round = dealt.run * dealt.num_parts;
    const std::int64_t rest = count % round - dealt.part * dealt.run;
    return count / round * dealt.run + (rest < 0 ? 0 : rest < dealt.run ? rest : dealt.run);
}

// Where a key of the cache stands in its row.
std::int64_t position_of(const DealtTokens& dealt, std::int64_t key) {
    return (key / dealt.run * dealt.num_parts + dealt.part) * dealt.run + key % dealt.run;
}

// The keys of [begin, end) that the share's token sees.
KeyRange visible_keys(const AttentionShare& share, std::int64_t token, KeyRange partition) {
    const std::int64_t position = share.first_position + token;
    const std::int64_t first = position - share.window + 1;
    std::int64_t end = num_dealt(share.dealt, position + 1 + share.ahead);
    if (end > share.num_keys) end = share.num_keys;
    return {first > partition.begin ? first : partition.begin, end < partition.end ? end : partition.end};
}

// Keys that lie in one block: their first, their number, and the first's place in the block.
struct Stretch {
    std::int64_t key;
    std::int64_t count;
    std::int64_t offset;
    const std::uint8_t* keys;  // of the block
};

struct Stretches {
    Stretch items[kMaxStretches];
    int count = 0;
};

// 64 keys, where those that the share sees lie, and where those of the partition do that the thread comes to next.
struct Partition {
    KeyRange keys;
    Stretches here;
    std::int64_t next_begin;
    Stretches next;
};

void find_stretches(const AttentionShare& share, KeyRange keys, Stretches& found) {
    found.count = 0;
    for (std::int64_t key = keys.begin; key < keys.end;) {
        const std::int64_t block = key / share.block_size;
        const std::int64_t offset = key - block * share.block_size;
        std::int64_t count = share.block_size - offset;
        if (count > keys.end - key) count = keys.end - key;
        found.items[found.count++] = {key, count, offset, share.keys + share.block_table[block] * share.block_stride};
        key += count;
    }
}

// Behind the last key that the share sees.
std::int64_t end_key(const AttentionShare& share) { return visible_keys(share, share.num_tokens - 1, {0, share.num_keys}).end; }

// Finds what follows a partition: the keys after it or, behind the last, the first that the next share sees.
void find_next(const AttentionShare& share, Partition& partition) {
    const std::int64_t end = partition.keys.end;
    if (end < end_key(share) || share.next == nullptr) {
        partition.next_begin = end;
        return find_stretches(share, visible_keys(share, share.num_tokens - 1, {end, end + kPartition}), partition.next);
    }
    const AttentionShare& next = *share.next;
    const std::int64_t first_key = visible_keys(next, 0, {0, next.first_position + 1}).begin;
    partition.next_begin = first_key / kPartition * kPartition;
    const KeyRange seen = visible_keys(next, next.num_tokens - 1, {partition.next_begin, partition.next_begin + kPartition});
    find_stretches(next, {first_key, seen.end}, partition.next);
}

// -- scores ------------------------------------------------------------------------------------------------------------

// Vectors of keys: columns[v] + k * depth_stride is element k of vector v. `ahead`: the same of keys that come next, to be asked
// for meanwhile, or null.
template <class T>
struct Columns {
    const T* const* columns;
    const T* const* ahead;
    std::int64_t depth_stride;
};

// scores[R][V vectors of keys] = queries[R][depth] x keys[depth][...], vectors from `first` on.
template <int R, int V, bool kAhead, class T>
void score_tile(const float* queries, std::int64_t head_dim, const Columns<T>& keys_of, int first, float* scores) {
    Vec sums[R][V];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) sums[r][v] = set(0.0f);
    }
    const T* from[V];
    const T* ahead[V];
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) {
        from[v] = keys_of.columns[first + v];
        ahead[v] = kAhead ? keys_of.ahead[first + v] : nullptr;
    }
    for (std::int64_t k = 0; k < head_dim; ++k) {
        Vec keys[V];
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) {
            if (kAhead) __builtin_prefetch(ahead[v] + k * keys_of.depth_stride);
            keys[v] = load(from[v] + k * keys_of.depth_stride);
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const Vec query = set(queries[r * head_dim + k]);
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) sums[r][v] = fma(query, keys[v], sums[r][v]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) store(scores + r * kPartition + v * kLanes, sums[r][v]);
    }
}

template <int R, bool kAhead, class T>
void score_rows(const float* queries, std::int64_t num_rows, std::int64_t head_dim, const Columns<T>& keys, int first, int end,
                float* scores) {
    if (num_rows < R) {
        if constexpr (R > 1) score_rows<R - 1, kAhead>(queries, num_rows, head_dim, keys, first, end, scores);
        return;
    }
    int v = first;
    for (; v + kTileVectors <= end; v += kTileVectors) {
        score_tile<R, kTileVectors, kAhead>(queries, head_dim, keys, v, scores + v * kLanes);
    }
    for (; v < end; ++v) score_tile<R, 1, kAhead>(queries, head_dim, keys, v, scores + v * kLanes);
}

// Scores of all rows for the vectors of keys first .. end - 1.
template <class T>
void score_all(const float* queries, std::int64_t num_rows, std::int64_t head_dim, const Columns<T>& keys, int first, int end,
               float* scores) {
    const std::int64_t num_tiles = (num_rows + kTileRows - 1) / kTileRows;
    for (std::int64_t tile = 0; tile < num_tiles; ++tile) {
        const std::int64_t row = num_rows * tile / num_tiles;  // even shares
        const std::int64_t rows = num_rows * (tile + 1) / num_tiles - row;
        if (tile == 0 && keys.ahead != nullptr) {
            score_rows<kTileRows, true>(queries, rows, head_dim, keys, first, end, scores);
        } else {
            score_rows<kTileRows, false>(queries + row * head_dim, rows, head_dim, keys, first, end, scores + row * kPartition);
        }
    }
}

// Finds where the vectors of a partition's keys are; only where no vector crosses a border of blocks.
template <class T>
void find_columns(const Stretches& stretches, std::int64_t partition_begin, const T** columns) {
    for (int i = 0; i < stretches.count; ++i) {
        const Stretch& stretch = stretches.items[i];
        const std::int64_t first = stretch.offset / kLanes;
        const std::int64_t end = (stretch.offset + stretch.count + kLanes - 1) / kLanes;
        const std::int64_t vector = (stretch.key - stretch.offset - partition_begin) / kLanes;  // of the block's first key
        for (std::int64_t v = first; v < end; ++v) {
            columns[vector + v] = reinterpret_cast<const T*>(stretch.keys) + v * kLanes;
        }
    }
}

template <class T>
void score_partition(const AttentionShare& share, const Partition& partition, const float* queries, std::int64_t num_rows,
                     float* widened, float* scores) {
    const Stretches& stretches = partition.here;
    const std::int64_t begin = partition.keys.begin;
    const Stretch& last = stretches.items[stretches.count - 1];
    const int first_vector = static_cast<int>((stretches.items[0].key - begin) / kLanes);
    const int end_vector = static_cast<int>((last.key + last.count - begin + kLanes - 1) / kLanes);
    const bool few = num_rows < kWidenFrom;
    if (share.block_size % kLanes == 0 && (sizeof(T) == sizeof(float) || few)) {
        const T* columns[kVectors] = {};
        const T* ahead[kVectors];
        find_columns(stretches, begin, columns);
        std::memcpy(ahead, columns, sizeof(columns));  // where nothing comes next
        find_columns(partition.next, partition.next_begin, ahead);
        return score_all<T>(queries, num_rows, share.head_dim, {columns, few ? ahead : nullptr, share.block_size}, first_vector,
                            end_vector, scores);
    }
    for (int i = 0; i < stretches.count; ++i) {
        const Stretch& stretch = stretches.items[i];
        const T* from = reinterpret_cast<const T*>(stretch.keys) + stretch.offset;
        float* to = widened + stretch.key - begin;
        for (std::int64_t k = 0; k < share.head_dim; ++k) widen(from + k * share.block_size, stretch.count, to + k * kPartition);
    }
    const float* columns[kVectors];
    for (int v = 0; v < kVectors; ++v) columns[v] = widened + v * kLanes;
    score_all<float>(queries, num_rows, share.head_dim, {columns, nullptr, kPartition}, first_vector, end_vector, scores);
}

// -- softmax -----------------------------------------------------------------------------------------------------------

// Scales of a partition's keys and values, 0 where the share sees none; null where the cache has no scales.
struct Scales {
    const float* keys;
    const float* values;
};

// How one query turns products with keys into scores.
struct Scoring {
    float scale;
    float softcap;   // 0: none
    float slope;     // 0: none
    float position;  // of the query, counted from the partition's first key
    const float* bias;  // of the keys from the partition's first on; or null
};

// A vector, of which no more than `count` numbers are there.
Vec load_most(const float* p, std::int64_t count) { return count < kLanes ? load_first(p, count) : load(p); }

// Turns one query's products with the keys of a partition into exponentials, in place, times the values' scales; columns outside
// [begin, end) become 0. Updates the query's largest score and sum, and returns the factor that earlier sums must be multiplied by.
float softmax_partition(float* scores, std::int64_t begin, std::int64_t end, const Scales& scales, const Scoring& scoring,
                        float* largest, float* sum) {
    const Vec hidden = set(-__builtin_inff());
    const Vec lowest = set(static_cast<float>(begin));
    const Vec limit = set(static_cast<float>(end));
    float indices[kLanes];
    for (int i = 0; i < kLanes; ++i) indices[i] = static_cast<float>(i);
    const Vec lane = load(indices);

    Vec top = hidden;
    for (std::int64_t i = 0; i < kPartition; i += kLanes) {
        Vec score = load(scores + i);
        if (scales.keys != nullptr) score = mul(score, load(scales.keys + i));
        score = mul(score, set(scoring.scale));
        if (scoring.softcap != 0.0f) score = mul(set(scoring.softcap), tanh(div(score, set(scoring.softcap))));
        const Vec column = add(lane, set(static_cast<float>(i)));
        if (scoring.slope != 0.0f) score = fma(set(-scoring.slope), abs(sub(column, set(scoring.position))), score);
        if (scoring.bias != nullptr && i < end) score = add(score, load_most(scoring.bias + i, end - i));
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
        total = add(total, weight);
        store(scores + i, scales.values == nullptr ? weight : mul(weight, load(scales.values + i)));
    }
    // e^(-infinity) is 0 at a query's first partition: nothing came before.
    float factors[kLanes];
    store(factors, exp(set(previous - now)));
    *largest = now;
    *sum = *sum * factors[0] + sum_lanes(total);
    return factors[0];
}

void rescale(float* values, float factor, std::int64_t n) {
    if (factor == 1.0f) return;
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(values + i, mul(load(values + i), set(factor)));
    if (i < n) store_first(values + i, mul(load_first(values + i, n - i), set(factor)), n - i);
}

// -- values ------------------------------------------------------------------------------------------------------------

// Rows of a partition's values, key after key.
template <class T>
struct ValueRun {
    const T* rows;
    const T* ahead;       // rows that come next, to be asked for meanwhile; or these
    std::int64_t column;  // of the first key in the weights
    std::int64_t count;
};

// out[R][V vectors] += weights[R][keys] x values[keys][...]; cut: one vector of num_columns (< kLanes) elements.
template <int R, int V, bool kCut, bool kAhead, class T>
void value_tile(const float* weights, const ValueRun<T>* runs, int num_runs, std::int64_t first_column, std::int64_t head_dim,
                float* out) {
    const std::int64_t rest = head_dim - first_column;
    Vec sums[R][V];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) {
            const float* from = out + r * head_dim + first_column + v * kLanes;
            sums[r][v] = kCut ? load_first(from, rest) : load(from);
        }
    }
    for (int i = 0; i < num_runs; ++i) {
        const T* row = runs[i].rows + first_column;
        const std::int64_t ahead = runs[i].ahead - runs[i].rows;
        const float* weight = weights + runs[i].column;
        for (std::int64_t key = 0; key < runs[i].count; ++key) {
            Vec values[V];
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) {
                if (kAhead) __builtin_prefetch(row + ahead + v * kLanes);
                values[v] = kCut ? load_first(row, rest) : load(row + v * kLanes);
            }
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
                const Vec factor = set(weight[r * kPartition + key]);
#pragma GCC unroll 16
                for (int v = 0; v < V; ++v) sums[r][v] = fma(factor, values[v], sums[r][v]);
            }
            row += head_dim;
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) {
            float* to = out + r * head_dim + first_column + v * kLanes;
            if (kCut) {
                store_first(to, sums[r][v], rest);
            } else {
                store(to, sums[r][v]);
            }
        }
    }
}

template <int R, bool kAhead, class T>
void value_rows(const float* weights, std::int64_t num_rows, const ValueRun<T>* runs, int num_runs, std::int64_t head_dim,
                float* out) {
    if (num_rows < R) {
        if constexpr (R > 1) value_rows<R - 1, kAhead>(weights, num_rows, runs, num_runs, head_dim, out);
        return;
    }
    std::int64_t column = 0;
    for (; column + kTileVectors * kLanes <= head_dim; column += kTileVectors * kLanes) {
        value_tile<R, kTileVectors, false, kAhead>(weights, runs, num_runs, column, head_dim, out);
    }
    for (; column + kLanes <= head_dim; column += kLanes) {
        value_tile<R, 1, false, kAhead>(weights, runs, num_runs, column, head_dim, out);
    }
    if (column < head_dim) value_tile<R, 1, true, kAhead>(weights, runs, num_runs, column, head_dim, out);
}

// The row of a key's value, or null if the key is in none of the stretches.
template <class T>
const T* value_row(const AttentionShare& share, const Stretches& stretches, std::int64_t key) {
    for (int i = 0; i < stretches.count; ++i) {
        const Stretch& stretch = stretches.items[i];
        if (key < stretch.key || key >= stretch.key + stretch.count) continue;
        return reinterpret_cast<const T*>(stretch.keys + share.value_offset) + (stretch.offset + key - stretch.key) * share.head_dim;
    }
    return nullptr;
}

// The runs of values that hold the keys of `range`, a part of the partition.
template <class T>
int find_runs(const AttentionShare& share, const Partition& partition, KeyRange range, const float* widened, ValueRun<T>* runs) {
    int count = 0;
    for (int i = 0; i < partition.here.count; ++i) {
        const Stretch& stretch = partition.here.items[i];
        const std::int64_t begin = range.begin > stretch.key ? range.begin : stretch.key;
        const std::int64_t stretch_end = stretch.key + stretch.count;
        const std::int64_t end = range.end < stretch_end ? range.end : stretch_end;
        if (begin >= end) continue;
        const T* rows = reinterpret_cast<const T*>(stretch.keys + share.value_offset) +
                        (stretch.offset + begin - stretch.key) * share.head_dim;
        if (widened != nullptr) rows = reinterpret_cast<const T*>(widened) + (begin - partition.keys.begin) * share.head_dim;
        const T* ahead = value_row<T>(share, partition.next, partition.next_begin + begin - partition.keys.begin);
        runs[count++] = {rows, ahead == nullptr ? rows : ahead, begin - partition.keys.begin, end - begin};
    }
    return count;
}

template <class T>
void add_range(const AttentionShare& share, const Partition& partition, KeyRange range, const float* widened,
               const float* weights, std::int64_t first_query, std::int64_t end_query, float* values) {
    if (range.empty()) return;
    ValueRun<T> runs[kMaxStretches];
    const int num_runs = find_runs<T>(share, partition, range, widened, runs);
    const std::int64_t num_rows = end_query - first_query;
    const std::int64_t num_tiles = (num_rows + kTileRows - 1) / kTileRows;
    for (std::int64_t tile = 0; tile < num_tiles; ++tile) {
        const std::int64_t first = first_query + num_rows * tile / num_tiles;
        const std::int64_t rows = first_query + num_rows * (tile + 1) / num_tiles - first;
        if (tile == 0 && num_rows < kWidenFrom && widened == nullptr) {
            value_rows<kTileRows, true>(weights + first * kPartition, rows, runs, num_runs, share.head_dim,
                                        values + first * share.head_dim);
        } else {
            value_rows<kTileRows, false>(weights + first * kPartition, rows, runs, num_runs, share.head_dim,
                                         values + first * share.head_dim);
        }
    }
}

// Adds exponentials x values. The keys that all tokens see go together; those near the borders of what a token sees go token by
// token, before and after, so that every sum runs over its keys in order.
template <class T>
void add_values(const AttentionShare& share, const Partition& partition, const float* widened, const float* weights,
                std::int64_t first_token, std::int64_t end_token, float* values) {
    const std::int64_t heads = share.num_heads;
    const KeyRange first = visible_keys(share, first_token, partition.keys);
    const KeyRange last = visible_keys(share, end_token - 1, partition.keys);
    KeyRange common{last.begin, first.end};
    if (common.empty()) common = {last.begin, last.begin};
    for (std::int64_t token = first_token; token < end_token && first.begin < common.begin; ++token) {
        const KeyRange seen = visible_keys(share, token, partition.keys);
        const std::int64_t end = seen.end < common.begin ? seen.end : common.begin;
        add_range<T>(share, partition, {seen.begin, end}, widened, weights, token * heads, (token + 1) * heads, values);
    }
    add_range<T>(share, partition, common, widened, weights, first_token * heads, end_token * heads, values);
    for (std::int64_t token = first_token; token < end_token && common.end < last.end; ++token) {
        const KeyRange seen = visible_keys(share, token, partition.keys);
        const std::int64_t begin = seen.begin > common.end ? seen.begin : common.end;
        add_range<T>(share, partition, {begin, seen.end}, widened, weights, token * heads, (token + 1) * heads, values);
    }
}

// -- a partition -------------------------------------------------------------------------------------------------------

struct Workspace {
    float* queries;  // [num_queries][head_dim]
    float* scores;   // [num_queries][kPartition]
    float* widened;  // [kPartition][head_dim] or [head_dim][kPartition]
};

void read_scales(const AttentionShare& share, const Stretches& stretches, KeyRange partition, float* keys, float* values) {
    for (int i = 0; i < kPartition; ++i) keys[i] = values[i] = 0.0f;
    for (int i = 0; i < stretches.count; ++i) {
        const Stretch& stretch = stretches.items[i];
        const std::int64_t at = share.block_size * share.head_dim + stretch.offset * static_cast<std::int64_t>(sizeof(float));
        const std::size_t size = static_cast<std::size_t>(stretch.count) * sizeof(float);
        std::memcpy(keys + stretch.key - partition.begin, stretch.keys + at, size);
        std::memcpy(values + stretch.key - partition.begin, stretch.keys + share.value_offset + at, size);
    }
}

template <class T>
void attend_partition(const AttentionShare& share, const Workspace& work, KeyRange keys, const AttentionState& state) {
    // Tokens that see something here: positions from the first viewer of the partition's first key to its last key's last viewer.
    std::int64_t first_token = position_of(share.dealt, keys.begin) - share.ahead - share.first_position;
    if (first_token < 0) first_token = 0;
    std::int64_t end_token = share.num_tokens;
    if (share.window < end_token + share.first_position - keys.end + 1) {
        end_token = keys.end - 1 + share.window - share.first_position;
    }
    if (first_token >= end_token) return;

    Partition partition;
    partition.keys = keys;
    find_stretches(share, {visible_keys(share, first_token, keys).begin, visible_keys(share, end_token - 1, keys).end},
                   partition.here);
    find_next(share, partition);
    const Stretches& stretches = partition.here;
    const std::int64_t first = first_token * share.num_heads;
    const std::int64_t last = end_token * share.num_heads;
    score_partition<T>(share, partition, work.queries + first * share.head_dim, last - first, work.widened,
                       work.scores + first * kPartition);
    float key_scales[kPartition];
    float value_scales[kPartition];
    Scales scales{nullptr, nullptr};
    if (share.type == KvType::int8) {
        read_scales(share, stretches, keys, key_scales, value_scales);
        scales = {key_scales, value_scales};
    }
    for (std::int64_t query = first; query < last; ++query) {
        const std::int64_t token = query / share.num_heads;
        const KeyRange seen = visible_keys(share, token, keys);
        const float slope = share.slopes == nullptr ? 0.0f : share.slopes[query % share.num_heads];
        const std::int64_t position = share.first_position + token - keys.begin;
        const float* bias = share.distance_bias;
        if (bias != nullptr) bias += query % share.num_heads * share.distance_stride - position;
        const Scoring scoring{share.scale, share.softcap, slope, static_cast<float>(position), bias};
        const float factor = softmax_partition(work.scores + query * kPartition, seen.begin - keys.begin, seen.end - keys.begin,
                                               scales, scoring, state.largest + query, state.sum + query);
        rescale(state.values + query * share.head_dim, factor, share.head_dim);
    }
    if (sizeof(T) == sizeof(float) || last - first < kWidenFrom) {
        return add_values<T>(share, partition, nullptr, work.scores, first_token, end_token, state.values);
    }
    for (int i = 0; i < stretches.count; ++i) {
        const Stretch& stretch = stretches.items[i];
        widen(reinterpret_cast<const T*>(stretch.keys + share.value_offset) + stretch.offset * share.head_dim,
              stretch.count * share.head_dim, work.widened + (stretch.key - keys.begin) * share.head_dim);
    }
    add_values<float>(share, partition, work.widened, work.scores, first_token, end_token, state.values);
}

template <class T>
void attend_partitions(const AttentionShare& share, const Workspace& work, std::int64_t span, const AttentionState& state) {
    const std::int64_t end = end_key(share);
    for (std::int64_t begin = span * kSpan; begin < (span + 1) * kSpan && begin < end; begin += kPartition) {
        attend_partition<T>(share, work, {begin, begin + kPartition}, state);
    }
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
    switch (share.type) {
        case KvType::float32: return attend_partitions<float>(share, work, span, state);
        case KvType::float16: return attend_partitions<Half>(share, work, span, state);
        case KvType::int8: return attend_partitions<std::int8_t>(share, work, span, state);
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
