// store_kv, rope_and_store and paged_attention: border checks and the split over threads. The arithmetic is in kernels/attention.cpp.
#include "attention.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "dispatch.h"
#include "rows.h"
#include "scratch.h"
#include "thread_pool.h"

namespace octavo {
namespace {

// Calls body(token, block, offset) for every token that goes to a real block: the null block, number 0, is never read, and many
// tokens may go to one place of it.
template <class Body>
void for_each_stored_token(std::int64_t num_tokens, double token_ns, const KvCache& cache, const std::int64_t* slots,
                           const Body& body) {
    parallel_ranges(num_tokens, token_ns, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t token = begin; token < end; ++token) {
            body(token, slots[token] / cache.block_size, slots[token] % cache.block_size);
        }
    });
}

}  // namespace

void run_store_kv(const Tensor3<const float>& key, const Tensor3<const float>& value, const KvCache& cache,
                  const std::int64_t* slots) {
    const auto kernel = kernels().store_kv;
    const double token_ns = static_cast<double>(cache.num_kv_heads * cache.head_dim);
    for_each_stored_token(key.shape[0], token_ns, cache, slots, [&](std::int64_t token, std::int64_t block, std::int64_t offset) {
        if (block == 0) return;
        for (std::int64_t head = 0; head < cache.num_kv_heads; ++head) {
            std::uint8_t* keys = cache.keys(block, head);
            kernel(cache.type, key.row(token, head), value.row(token, head), cache.head_dim, cache.block_size, offset, keys,
                   keys + cache.value_offset);
        }
    });
}

void run_rope_and_store(const RotatedHeads& heads, const KvCache& cache, const std::int64_t* slots, float* out) {
    const Kernels& table = kernels();
    const auto [query, key, value, positions, cos_sin] = heads;
    const std::int64_t head_dim = cache.head_dim;
    const std::int64_t query_size = query.shape[1] * head_dim;
    const double token_ns = static_cast<double>(cache.num_kv_heads * head_dim) + 0.3 * static_cast<double>(query_size);
    for_each_stored_token(query.shape[0], token_ns, cache, slots, [&](std::int64_t token, std::int64_t block, std::int64_t offset) {
        const float* rotation = cos_sin.row(positions[token]);
        table.rope(query.row(token, 0), query.stride[1], query.shape[1], head_dim, rotation, cos_sin.columns, out + token * query_size);
        if (block == 0) return;
        float* rotated = thread_scratch(cache.num_kv_heads * head_dim);
        table.rope(key.row(token, 0), key.stride[1], cache.num_kv_heads, head_dim, rotation, cos_sin.columns, rotated);
        for (std::int64_t head = 0; head < cache.num_kv_heads; ++head) {
            std::uint8_t* keys = cache.keys(block, head);
            table.store_kv(cache.type, rotated + head * head_dim, value.row(token, head), head_dim, cache.block_size, offset, keys,
                           keys + cache.value_offset);
        }
    });
}

StepRows read_step_rows(nb::handle query_start, nb::handle seq_lens_array, nb::handle block_table) {
    const Vector<const std::int32_t> seq_lens = read_vector<std::int32_t>(seq_lens_array, "seq_lens");
    return {read_vector<std::int32_t>(query_start, "query_start", seq_lens.size + 1).data, seq_lens.data,
            read_matrix<std::int32_t>(block_table, "block_table", seq_lens.size), seq_lens.size};
}

void check_query_start(const std::int32_t* query_start, std::int64_t count, std::int64_t num_tokens, std::int64_t longest) {
    if (query_start[0] != 0 || query_start[count] != num_tokens) {
        raise_value_error("query_start must rise from 0 to %lld, got %d .. %d", static_cast<long long>(num_tokens), query_start[0],
                          query_start[count]);
    }
    for (std::int64_t row = 0; row < count; ++row) {
        const std::int64_t length = std::int64_t{query_start[row + 1]} - query_start[row];
        if (length < 0) raise_value_error("query_start must not fall, got a fall at row %lld", static_cast<long long>(row));
        if (length <= longest) continue;
        raise_value_error("query_start must rise by at most %lld, got %lld at row %lld", static_cast<long long>(longest),
                          static_cast<long long>(length), static_cast<long long>(row));
    }
}

namespace {

// How many of a row's `count` tokens the cache has.
std::int64_t num_dealt(const DealtTokens& dealt, std::int64_t count) {
    const std::int64_t round = dealt.run * dealt.num_parts;
    return count / round * dealt.run + std::clamp<std::int64_t>(count % round - dealt.part * dealt.run, 0, dealt.run);
}

}  // namespace

void check_rows(const StepRows& rows, std::int64_t num_tokens, std::int64_t num_blocks, std::int64_t block_size,
                std::int64_t window, const DealtTokens& dealt) {
    check_query_start(rows.query_start, rows.count, num_tokens);
    for (std::int64_t row = 0; row < rows.count; ++row) {
        const std::int64_t num_queries = std::int64_t{rows.query_start[row + 1]} - rows.query_start[row];
        const std::int64_t seq_len = rows.seq_lens[row];
        const std::int64_t num_keys = num_dealt(dealt, seq_len);
        if (seq_len < num_queries || num_keys > rows.block_table.columns * block_size) {
            raise_value_error("seq_lens must lie between the row's queries (%lld) and its blocks (%lld of %lld keys), got %lld",
                              static_cast<long long>(num_queries), static_cast<long long>(rows.block_table.columns),
                              static_cast<long long>(block_size), static_cast<long long>(seq_len));
        }
        if (num_queries == 0) continue;
        // Only blocks that some query of the row sees are read, so only these are looked at.
        const std::int64_t first_key = std::max<std::int64_t>(0, seq_len - num_queries - window + 1);
        const std::int32_t* blocks = rows.block_table.row(row);
        for (std::int64_t i = first_key / block_size; i * block_size < num_keys; ++i) {
            if (blocks[i] < 0 || blocks[i] >= num_blocks) {
                raise_value_error("block_table must lie in 0..%lld, got %d in row %lld",
                                  static_cast<long long>(num_blocks - 1), blocks[i], static_cast<long long>(row));
            }
        }
    }
}

DealtTokens read_dealt(std::int64_t part, std::int64_t num_parts, std::int64_t run) {
    if (part < 0 || part >= num_parts || run < 1) raise_value_error("part must be below num_parts, and a run at least one token");
    return {part, num_parts, run};
}

std::vector<std::int64_t> first_heads(const std::optional<std::vector<std::int64_t>>& heads_of_kv, std::int64_t num_heads,
                                      std::int64_t num_kv_heads) {
    std::vector<std::int64_t> first{0};
    if (!heads_of_kv) {
        if (num_kv_heads == 0 || num_heads % num_kv_heads != 0) {
            raise_value_error("query must have a multiple of %lld heads, got %lld", static_cast<long long>(num_kv_heads),
                              static_cast<long long>(num_heads));
        }
        for (std::int64_t head = 0; head < num_kv_heads; ++head) first.push_back(first.back() + num_heads / num_kv_heads);
        return first;
    }
    bool is_empty = false;
    for (const std::int64_t count : *heads_of_kv) {
        is_empty = is_empty || count < 1;
        first.push_back(first.back() + count);
    }
    if (is_empty || static_cast<std::int64_t>(heads_of_kv->size()) != num_kv_heads || first.back() != num_heads) {
        raise_value_error("heads_of_kv must divide %lld query heads among %lld key/value heads", static_cast<long long>(num_heads),
                          static_cast<long long>(num_kv_heads));
    }
    return first;
}

std::int64_t window_or_none(std::optional<std::int64_t> sliding_window) {
    if (sliding_window.has_value() && *sliding_window < 1) {
        raise_value_error("sliding_window must be at least 1, got %lld", static_cast<long long>(*sliding_window));
    }
    return sliding_window.value_or(kNoWindow);
}

namespace {

// Some consecutive tokens of one row with the query heads of one key/value head, and the spans of keys that they see.
struct QueryTile {
    std::int64_t row;
    std::int64_t first_token;  // within the step
    std::int64_t num_tokens;
    std::int64_t head;
    std::int64_t first_position;
    std::int64_t first_span;
    std::int64_t end_span;
};

// Queries that go through a partition of keys together: enough to pay for reading it, few enough that threads share the work evenly
// and that little is computed beyond the diagonal.
constexpr std::int64_t kQueriesPerTile = 96;
constexpr std::int64_t kQueriesPerLongTile = 192;  // for rows with kLongRow keys or more
constexpr std::int64_t kLongRow = 1024;

std::vector<QueryTile> make_tiles(const AttentionCall& call) {
    std::vector<QueryTile> tiles;
    for (std::int64_t row = 0; row < call.rows.count; ++row) {
        const std::int64_t start = call.rows.query_start[row];
        const std::int64_t num_tokens = call.rows.query_start[row + 1] - start;
        const std::int64_t first_position = call.rows.seq_lens[row] - num_tokens;
        const std::int64_t tile_queries = call.rows.seq_lens[row] < kLongRow ? kQueriesPerTile : kQueriesPerLongTile;
        const std::int64_t most_heads = (call.query.shape[1] + call.cache.num_kv_heads - 1) / call.cache.num_kv_heads;
        const std::int64_t tile_tokens = std::max<std::int64_t>(1, tile_queries / most_heads);
        // The row's last tokens see the most keys: they go first, so that no long tile is left for the end.
        for (std::int64_t end = num_tokens; end > 0; end -= std::min(end, tile_tokens)) {
            const std::int64_t begin = std::max<std::int64_t>(0, end - tile_tokens);
            const std::int64_t position = first_position + begin;
            const std::int64_t first_key = std::max<std::int64_t>(0, position - call.window + 1);
            const std::int64_t end_span = (num_dealt(call.dealt, first_position + end) - 1) / kSpan + 1;
            for (std::int64_t head = 0; head < call.cache.num_kv_heads; ++head) {
                tiles.push_back({row, start + begin, end - begin, head, position, first_key / kSpan, end_span});
            }
        }
    }
    return tiles;
}

AttentionShare make_share(const AttentionCall& call, const QueryTile& tile) {
    AttentionShare share;
    share.query = call.query.data + tile.first_token * call.query.stride[0] +
                  call.first_head[tile.head] * call.query.stride[1];
    share.token_stride = call.query.stride[0];
    share.head_stride = call.query.stride[1];
    share.num_tokens = tile.num_tokens;
    share.num_heads = call.num_heads(tile.head);
    share.head_dim = call.cache.head_dim;
    share.first_position = tile.first_position;
    share.num_keys = num_dealt(call.dealt, call.rows.seq_lens[tile.row]);
    share.dealt = call.dealt;
    share.type = call.cache.type;
    share.keys = call.cache.keys(0, tile.head);
    share.block_stride = call.cache.block_stride;
    share.value_offset = call.cache.value_offset;
    share.block_size = call.cache.block_size;
    share.block_table = call.rows.block_table.row(tile.row);
    share.scale = call.scale;
    share.softcap = call.softcap;
    share.slopes = call.slopes == nullptr ? nullptr : call.slopes + call.first_head[tile.head];
    share.window = call.window;
    share.ahead = 0;
    share.scratch = nullptr;
    share.next = nullptr;
    return share;
}

AttentionState state_at(float* memory, std::int64_t num_queries) {
    return {memory, memory + num_queries, memory + 2 * num_queries};
}

AttentionOutput output_of(const AttentionCall& call, const QueryTile& tile) {
    const std::int64_t first_head = call.first_head[tile.head];
    const std::int64_t width = call.head_width();
    const std::int64_t token_stride = call.query.shape[1] * width;
    return {call.out + tile.first_token * token_stride + first_head * width, token_stride, width,
            call.sinks == nullptr ? nullptr : call.sinks + first_head, call.is_part};
}

void write_share(const AttentionShare& share, const AttentionState& state, const AttentionOutput& output) {
    for (std::int64_t query = 0; query < share.num_queries(); ++query) {
        const std::int64_t token = query / share.num_heads;
        const std::int64_t head = query % share.num_heads;
        float* out = output.out + token * output.token_stride + head * output.head_stride;
        if (output.is_part) {
            std::memcpy(out, state.values + query * share.head_dim, static_cast<std::size_t>(share.head_dim) * sizeof(float));
            out[share.head_dim] = state.largest[query];
            out[share.head_dim + 1] = state.sum[query];
            continue;
        }
        float sum = state.sum[query];
        if (output.sinks != nullptr) sum += std::exp(output.sinks[head] - state.largest[query]);
        kernels().finish_attention(state.values + query * share.head_dim, sum, share.head_dim, out);
    }
}

// One thread walks all spans of a tile. `next`: the tile that it takes afterwards, or null.
void attend_tile(const AttentionCall& call, const QueryTile& tile, const QueryTile* next) {
    AttentionShare share = make_share(call, tile);
    AttentionShare next_share;
    if (next != nullptr) {
        next_share = make_share(call, *next);
        share.next = &next_share;
    }
    float* memory = thread_scratch(attend_share_size(share.num_queries(), share.head_dim));
    attend_share(share, tile.first_span, tile.end_span, output_of(call, tile), memory);
}

// Threads share the spans of a tile, for a few rows with long contexts. The states are merged in the same order as in
// attend_tile, with the same result to the bit.
void attend_by_span(const AttentionCall& call, const std::vector<QueryTile>& tiles) {
    struct Piece {
        const QueryTile* tile;
        std::int64_t span;
        std::int64_t state;  // offset of its state
    };
    const std::int64_t head_dim = call.cache.head_dim;
    std::vector<Piece> pieces;
    std::vector<std::int64_t> first_piece;
    std::int64_t size = 0;
    for (const QueryTile& tile : tiles) {
        first_piece.push_back(static_cast<std::int64_t>(pieces.size()));
        for (std::int64_t span = tile.first_span; span < tile.end_span; ++span) {
            pieces.push_back({&tile, span, size});
            size += attention_state_size(tile.num_tokens * call.num_heads(tile.head), head_dim);
        }
    }
    std::vector<float> states(static_cast<std::size_t>(size));
    parallel_for(static_cast<std::int64_t>(pieces.size()), [&](std::int64_t index) {
        const Piece& piece = pieces[static_cast<std::size_t>(index)];
        const std::int64_t num_queries = piece.tile->num_tokens * call.num_heads(piece.tile->head);
        AttentionShare share = make_share(call, *piece.tile);
        share.scratch = thread_scratch(attention_scratch_size(num_queries, head_dim));
        kernels().attend_span(share, piece.span, state_at(states.data() + piece.state, num_queries));
    });
    for (std::size_t i = 0; i < tiles.size(); ++i) {
        const QueryTile& tile = tiles[i];
        const std::int64_t num_queries = tile.num_tokens * call.num_heads(tile.head);
        const Piece* piece = &pieces[static_cast<std::size_t>(first_piece[i])];
        const AttentionState state = state_at(states.data() + piece->state, num_queries);
        for (std::int64_t k = 1; k < tile.end_span - tile.first_span; ++k) {
            kernels().merge_attention(state, state_at(states.data() + piece[k].state, num_queries), num_queries, head_dim);
        }
        write_share(make_share(call, tile), state, output_of(call, tile));
    }
}

}  // namespace

void attend_share(AttentionShare share, std::int64_t first_span, std::int64_t end_span, const AttentionOutput& output, float* memory) {
    const std::int64_t num_queries = share.num_queries();
    const std::int64_t state_size = attention_state_size(num_queries, share.head_dim);
    share.scratch = memory + 2 * state_size;
    const AttentionState state = state_at(memory, num_queries);
    const AttentionState later = state_at(memory + state_size, num_queries);
    kernels().attend_span(share, first_span, state);
    for (std::int64_t span = first_span + 1; span < end_span; ++span) {
        kernels().attend_span(share, span, later);
        kernels().merge_attention(state, later, num_queries, share.head_dim);
    }
    write_share(share, state, output);
}

void run_attention(const AttentionCall& call) {
    const std::vector<QueryTile> tiles = make_tiles(call);
    const std::int64_t num_tiles = static_cast<std::int64_t>(tiles.size());
    std::int64_t num_pieces = 0;
    for (const QueryTile& tile : tiles) num_pieces += tile.end_span - tile.first_span;
    const std::int64_t enough = 4 * std::int64_t{num_threads()};
    if (num_threads() > 1 && num_tiles < enough && num_pieces > num_tiles) return attend_by_span(call, tiles);

    // Rough cost of a key's element: reading it, and two multiply-adds for each query.
    double total_ns = 0;
    for (const QueryTile& tile : tiles) {
        const double keys = static_cast<double>(std::min(tile.first_position + tile.num_tokens, call.window + tile.num_tokens));
        const double queries = static_cast<double>(tile.num_tokens * call.num_heads(tile.head));
        total_ns += keys / static_cast<double>(call.dealt.num_parts) * static_cast<double>(call.cache.head_dim) * (0.3 + 0.06 * queries);
    }
    const std::int64_t num_chunks = choose_num_tiles(num_tiles, total_ns / static_cast<double>(std::max<std::int64_t>(num_tiles, 1)));
    parallel_for(num_chunks, [&](std::int64_t chunk) {
        const Range range = tile_range(num_tiles, num_chunks, chunk);
        for (std::int64_t i = range.begin; i < range.end; ++i) {
            const QueryTile* tile = &tiles[static_cast<std::size_t>(i)];
            attend_tile(call, *tile, i + 1 < range.end ? tile + 1 : nullptr);
        }
    });
}

void check_parts(const PartsToMerge& parts) {
    if (parts.num_parts > 0 && parts.head_dim > 0 && parts.first_head >= 0 && parts.first_head <= parts.end_head &&
        parts.end_head <= parts.num_heads && parts.x.columns == parts.num_parts * parts.num_heads * (parts.head_dim + 2)) {
        return;
    }
    raise_value_error("x of %lld columns does not hold %lld parts of %lld heads of %lld + 2, or heads %lld..%lld are not among these",
                      static_cast<long long>(parts.x.columns), static_cast<long long>(parts.num_parts),
                      static_cast<long long>(parts.num_heads), static_cast<long long>(parts.head_dim),
                      static_cast<long long>(parts.first_head), static_cast<long long>(parts.end_head));
}

void run_merge_attention(const PartsToMerge& parts, float* out) {
    const std::int64_t width = parts.head_dim + 2;
    const std::int64_t num_heads = parts.end_head - parts.first_head;
    const auto state_of = [&](float* values) { return AttentionState{values + parts.head_dim, values + parts.head_dim + 1, values}; };
    parallel_ranges(parts.x.rows, 0.5 * static_cast<double>(parts.num_parts * num_heads * width), [&](std::int64_t begin, std::int64_t end) {
        float* memory = thread_scratch(2 * width);
        for (std::int64_t i = begin * num_heads; i < end * num_heads; ++i) {
            const float* from = parts.x.row(i / num_heads) + (parts.first_head + i % num_heads) * width;
            std::memcpy(memory, from, static_cast<std::size_t>(width) * sizeof(float));
            for (std::int64_t part = 1; part < parts.num_parts; ++part) {
                std::memcpy(memory + width, from + part * parts.num_heads * width, static_cast<std::size_t>(width) * sizeof(float));
                kernels().merge_attention(state_of(memory), state_of(memory + width), 1, parts.head_dim);
            }
            kernels().finish_attention(memory, memory[parts.head_dim + 1], parts.head_dim, out + i * parts.head_dim);
        }
    });
}

namespace {

void store_kv(nb::handle key_array, nb::handle value_array, nb::handle cache_array, nb::handle slots_array) {
    const KvCache cache = read_cache(cache_array);
    const Tensor3<const float> key = read_tensor3(key_array, "key", kAnySize, cache.num_kv_heads, cache.head_dim);
    const Tensor3<const float> value =
        read_tensor3(value_array, "value", key.shape[0], cache.num_kv_heads, cache.head_dim);
    const Vector<const std::int64_t> slots = read_vector<std::int64_t>(slots_array, "slot_mapping", key.shape[0]);
    check_range(slots, "slot_mapping", cache.num_slots());
    nb::gil_scoped_release nogil;
    run_store_kv(key, value, cache, slots.data);
}

nb::object rope_and_store(nb::handle query_array, nb::handle key_array, nb::handle value_array, nb::handle positions_array,
                          nb::handle cos_sin_array, nb::handle cache_array, nb::handle slots_array) {
    const KvCache cache = read_cache(cache_array);
    RotatedHeads heads;
    heads.query = read_tensor3(query_array, "query", kAnySize, kAnySize, cache.head_dim);
    const std::int64_t num_tokens = heads.query.shape[0];
    heads.key = read_tensor3(key_array, "key", num_tokens, cache.num_kv_heads, cache.head_dim);
    heads.value = read_tensor3(value_array, "value", num_tokens, cache.num_kv_heads, cache.head_dim);
    const Vector<const std::int32_t> positions = read_vector<std::int32_t>(positions_array, "positions", num_tokens);
    heads.positions = positions.data;
    heads.cos_sin = read_cos_sin(cos_sin_array, cache.head_dim);
    check_range(positions, "positions", heads.cos_sin.rows);
    const Vector<const std::int64_t> slots = read_vector<std::int64_t>(slots_array, "slot_mapping", num_tokens);
    check_range(slots, "slot_mapping", cache.num_slots());
    NewArray<float> out = new_array<float>({num_tokens, heads.query.shape[1], cache.head_dim});
    nb::gil_scoped_release nogil;
    run_rope_and_store(heads, cache, slots.data, out.data);
    return std::move(out.object);
}

nb::object paged_attention(nb::handle query_array, nb::handle cache_array, nb::handle query_start_array,
                           nb::handle seq_lens_array, nb::handle block_table_array, float scale,
                           std::optional<std::int64_t> sliding_window, std::optional<float> softcap,
                           std::optional<nb::object> slopes, std::optional<nb::object> sinks,
                           const std::optional<std::vector<std::int64_t>>& heads_of_kv) {
    AttentionCall call;
    call.cache = read_cache(cache_array);
    call.query = read_tensor3(query_array, "query", kAnySize, kAnySize, call.cache.head_dim);
    const std::int64_t num_tokens = call.query.shape[0];
    const std::vector<std::int64_t> first_head = first_heads(heads_of_kv, call.query.shape[1], call.cache.num_kv_heads);
    call.first_head = first_head.data();
    call.rows = read_step_rows(query_start_array, seq_lens_array, block_table_array);
    if (softcap.has_value() && !(*softcap > 0)) raise_value_error("softcap must be positive, got %g", static_cast<double>(*softcap));
    call.window = window_or_none(sliding_window);
    call.slopes = slopes ? read_vector<float>(*slopes, "alibi_slopes", call.query.shape[1]).data : nullptr;
    call.sinks = sinks ? read_vector<float>(*sinks, "sinks", call.query.shape[1]).data : nullptr;
    call.softcap = softcap.value_or(0.0f);
    call.scale = scale;
    check_rows(call.rows, num_tokens, call.cache.num_blocks, call.cache.block_size, call.window);

    NewArray<float> out = new_array<float>({num_tokens, call.query.shape[1] * call.cache.head_dim});
    call.out = out.data;
    nb::gil_scoped_release nogil;
    run_attention(call);
    return std::move(out.object);
}

nb::object partial_attention(nb::handle query_array, nb::handle cache_array, nb::handle query_start_array, nb::handle seq_lens_array,
                             nb::handle block_table_array, float scale, std::int64_t part, std::int64_t num_parts, std::int64_t run) {
    AttentionCall call{};
    call.cache = read_cache(cache_array);
    call.query = read_tensor3(query_array, "query", kAnySize, kAnySize, call.cache.head_dim);
    const std::int64_t num_tokens = call.query.shape[0];
    const std::vector<std::int64_t> first_head = first_heads(std::nullopt, call.query.shape[1], call.cache.num_kv_heads);
    call.first_head = first_head.data();
    call.rows = read_step_rows(query_start_array, seq_lens_array, block_table_array);
    call.scale = scale;
    call.window = kNoWindow;
    call.dealt = read_dealt(part, num_parts, run);
    call.is_part = true;
    check_rows(call.rows, num_tokens, call.cache.num_blocks, call.cache.block_size, call.window, call.dealt);
    NewArray<float> out = new_array<float>({num_tokens, call.query.shape[1] * call.head_width()});
    call.out = out.data;
    nb::gil_scoped_release nogil;
    run_attention(call);
    return std::move(out.object);
}

nb::object merge_attention(nb::handle x_array, std::int64_t num_parts, std::int64_t num_heads, std::int64_t first_head,
                           std::int64_t end_head, std::int64_t head_dim) {
    const PartsToMerge parts{read_matrix<float>(x_array, "x"), num_parts, num_heads, first_head, end_head, head_dim};
    check_parts(parts);
    NewArray<float> out = new_array<float>({parts.x.rows, (end_head - first_head) * head_dim});
    nb::gil_scoped_release nogil;
    run_merge_attention(parts, out.data);
    return std::move(out.object);
}

}  // namespace

void bind_attention(nb::module_& m) {
    m.def("store_kv", &store_kv, nb::arg("key"), nb::arg("value"), nb::arg("cache"), nb::arg("slot_mapping"));
    m.def("rope_and_store", &rope_and_store, nb::arg("query"), nb::arg("key"), nb::arg("value"), nb::arg("positions"),
          nb::arg("cos_sin"), nb::arg("cache"), nb::arg("slot_mapping"));
    m.def("paged_attention", &paged_attention, nb::arg("query"), nb::arg("cache"), nb::arg("query_start"),
          nb::arg("seq_lens"), nb::arg("block_table"), nb::arg("scale"), nb::arg("sliding_window").none(),
          nb::arg("softcap").none(), nb::arg("alibi_slopes").none(), nb::arg("sinks").none(), nb::arg("heads_of_kv").none());
    m.def("partial_attention", &partial_attention, nb::arg("query"), nb::arg("cache"), nb::arg("query_start"), nb::arg("seq_lens"),
          nb::arg("block_table"), nb::arg("scale"), nb::arg("part"), nb::arg("num_parts"), nb::arg("run"));
    m.def("merge_attention", &merge_attention, nb::arg("x"), nb::arg("num_parts"), nb::arg("num_heads"), nb::arg("first_head"),
          nb::arg("end_head"), nb::arg("head_dim"));
}

}  // namespace octavo
