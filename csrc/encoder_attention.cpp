// encoder_attention: border checks, the split over threads, and the keys and values of a head laid out for kernels/attention.cpp.
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "attention.h"
#include "dispatch.h"
#include "scratch.h"
#include "thread_pool.h"

namespace octavo {
namespace {

// Some consecutive tokens of one sequence with the query heads of one key/value head: what one thread computes at a time.
struct Piece {
    std::int64_t start;  // of the sequence, within the step
    std::int64_t length;
    std::int64_t begin;  // of the piece, within the sequence
    std::int64_t end;
    std::int64_t head;
};

// Queries that share one layout of keys and values: enough to pay for it, few enough that threads share the work evenly.
constexpr std::int64_t kQueriesPerPiece = 384;
constexpr std::int64_t kQueriesPerTile = 96;  // of a piece that go through a partition of keys together

std::vector<Piece> make_pieces(const EncoderCall& call) {
    std::vector<Piece> pieces;
    const std::int64_t most = std::max<std::int64_t>(1, kQueriesPerPiece / call.heads_per_kv());
    for (std::int64_t sequence = 0; sequence < call.num_sequences; ++sequence) {
        const std::int64_t start = call.query_start[sequence];
        const std::int64_t length = call.query_start[sequence + 1] - start;
        const std::int64_t count = (length + most - 1) / most;
        for (std::int64_t i = 0; i < count; ++i) {
            const Range range = tile_range(length, count, i);
            for (std::int64_t head = 0; head < call.key.shape[1]; ++head) {
                pieces.push_back({start, length, range.begin, range.end, head});
            }
        }
    }
    return pieces;
}

// The keys of a sequence that some query of the piece sees.
Range seen_keys(const EncoderCall& call, const Piece& piece) {
    return {std::max<std::int64_t>(0, piece.begin - call.window + 1), std::min(piece.length, piece.end - 1 + call.window)};
}

// Computes a piece over a cache of its own, whose blocks are the partitions of keys. Positions in it are counted from the span that
// the first key lies in: the borders of partitions and spans stay where they are. `blocks`: 0, 1, 2 ...
void attend_piece(const EncoderCall& call, const Piece& piece, const std::int32_t* blocks) {
    const Range seen = seen_keys(call, piece);
    const std::int64_t base = seen.begin / kSpan * kSpan;
    const std::int64_t head_dim = call.query.shape[2];
    const std::int64_t num_heads = call.heads_per_kv();
    const std::int64_t plane = kPartition * head_dim;  // keys or values of a block
    const std::int64_t cache_size = (seen.end - base + kPartition - 1) / kPartition * 2 * plane;
    const std::int64_t most_tokens = std::max<std::int64_t>(1, kQueriesPerTile / num_heads);
    float* cache = thread_scratch(cache_size + attend_share_size(most_tokens * num_heads, head_dim));
    for (std::int64_t key = seen.begin; key < seen.end; ++key) {
        const std::int64_t offset = (key - base) % kPartition;
        auto* keys = reinterpret_cast<std::uint8_t*>(cache + (key - base) / kPartition * 2 * plane);
        kernels().store_kv(KvType::float32, call.key.row(piece.start + key, piece.head), call.value.row(piece.start + key, piece.head),
                           head_dim, kPartition, offset, keys, keys + plane * static_cast<std::int64_t>(sizeof(float)));
    }

    AttentionShare share;
    share.token_stride = call.query.stride[0];
    share.head_stride = call.query.stride[1];
    share.num_heads = num_heads;
    share.head_dim = head_dim;
    share.num_keys = seen.end - base;
    share.type = KvType::float32;
    share.keys = reinterpret_cast<const std::uint8_t*>(cache);
    share.block_stride = 2 * plane * static_cast<std::int64_t>(sizeof(float));
    share.value_offset = plane * static_cast<std::int64_t>(sizeof(float));
    share.block_size = kPartition;
    share.block_table = blocks;
    share.scale = call.scale;
    share.softcap = 0.0f;
    share.slopes = nullptr;
    share.window = call.window;
    share.ahead = call.window - 1;
    if (call.distance_bias.data != nullptr) {
        share.distance_bias = call.distance_bias.row(piece.head * num_heads) + reach_of(call.distance_bias) - 1;
        share.distance_stride = call.distance_bias.row_stride;
    }
    share.next = nullptr;
    const std::int64_t out_stride = call.query.shape[1] * head_dim;
    const std::int64_t num_tiles = (piece.end - piece.begin + most_tokens - 1) / most_tokens;
    for (std::int64_t tile = 0; tile < num_tiles; ++tile) {
        const Range tokens = tile_range(piece.end - piece.begin, num_tiles, tile);
        const std::int64_t token = piece.begin + tokens.begin;
        share.num_tokens = tokens.end - tokens.begin;
        share.query = call.query.row(piece.start + token, piece.head * num_heads);
        share.first_position = token - base;
        const std::int64_t first_key = std::max(seen.begin, token - call.window + 1) - base;
        const std::int64_t end_key = std::min(seen.end, token + share.num_tokens - 1 + call.window) - base;
        float* out = call.out + (piece.start + token) * out_stride + piece.head * num_heads * head_dim;
        attend_share(share, first_key / kSpan, (end_key - 1) / kSpan + 1, {out, out_stride, head_dim, nullptr, false}, cache + cache_size);
    }
}

}  // namespace

Matrix<const float> read_distance_bias(const std::optional<nb::object>& array, std::int64_t num_heads) {
    if (!array) return {};
    const Matrix<const float> bias = read_matrix<float>(*array, "distance_bias", num_heads);
    if (bias.columns % 2 == 1) return bias;
    raise_value_error("distance_bias must have an odd number of columns, got %lld", static_cast<long long>(bias.columns));
}

void run_encoder_attention(const EncoderCall& call) {
    const std::vector<Piece> pieces = make_pieces(call);
    if (pieces.empty()) return;
    std::int64_t most_blocks = 0;
    double total_ns = 0;  // rough: laying out a key's element, and two multiply-adds for each query
    for (const Piece& piece : pieces) {
        const Range seen = seen_keys(call, piece);
        most_blocks = std::max(most_blocks, seen.end / kPartition + 1);
        const double queries = static_cast<double>((piece.end - piece.begin) * call.heads_per_kv());
        total_ns += static_cast<double>((seen.end - seen.begin) * call.query.shape[2]) * (1.0 + 0.06 * queries);
    }
    std::vector<std::int32_t> blocks(static_cast<std::size_t>(most_blocks));
    std::iota(blocks.begin(), blocks.end(), 0);
    const std::int64_t num_pieces = static_cast<std::int64_t>(pieces.size());
    const std::int64_t num_chunks = choose_num_tiles(num_pieces, total_ns / static_cast<double>(num_pieces));
    parallel_for(num_chunks, [&](std::int64_t chunk) {
        const Range range = tile_range(num_pieces, num_chunks, chunk);
        for (std::int64_t i = range.begin; i < range.end; ++i) attend_piece(call, pieces[static_cast<std::size_t>(i)], blocks.data());
    });
}

namespace {

nb::object encoder_attention(nb::handle query_array, nb::handle key_array, nb::handle value_array, nb::handle query_start_array,
                             float scale, std::optional<std::int64_t> sliding_window, std::optional<nb::object> distance_bias) {
    EncoderCall call;
    call.query = read_tensor3(query_array, "query");
    const auto [num_tokens, num_heads, head_dim] = call.query.shape;
    call.key = read_tensor3(key_array, "key", num_tokens, kAnySize, head_dim);
    call.value = read_tensor3(value_array, "value", num_tokens, call.key.shape[1], head_dim);
    if (call.key.shape[1] == 0 || num_heads % call.key.shape[1] != 0) {
        raise_value_error("query must have a multiple of %lld heads, got %lld", static_cast<long long>(call.key.shape[1]),
                          static_cast<long long>(num_heads));
    }
    const Vector<const std::int32_t> query_start = read_vector<std::int32_t>(query_start_array, "query_start");
    if (query_start.size == 0) raise_value_error("query_start must have at least 1 number, got none");
    call.query_start = query_start.data;
    call.num_sequences = query_start.size - 1;
    call.scale = scale;
    call.window = window_or_none(sliding_window);
    call.distance_bias = read_distance_bias(distance_bias, num_heads);
    check_query_start(call.query_start, call.num_sequences, num_tokens, reach_of(call.distance_bias));

    NewArray<float> out = new_array<float>({num_tokens, num_heads * head_dim});
    call.out = out.data;
    nb::gil_scoped_release nogil;
    run_encoder_attention(call);
    return std::move(out.object);
}

}  // namespace

void bind_encoder_attention(nb::module_& m) {
    m.def("encoder_attention", &encoder_attention, nb::arg("query"), nb::arg("key"), nb::arg("value"), nb::arg("query_start"),
          nb::arg("scale"), nb::arg("sliding_window").none(), nb::arg("distance_bias").none());
}

}  // namespace octavo
