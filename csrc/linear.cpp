// Linear and embedding: border checks and the split over threads. What a part computes is in float_weight.cpp
// and quant_weight.cpp.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "thread_pool.h"
#include "quant_weight.h"
#include "weight_builder.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace octavo {

namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kChunk = std::size_t{32} << 20;

// Zeroed pages that weights lie in one after another. All of a model's are read at every step, mostly from main memory: in huge
// pages the address cache misses less, and neighbours in one chunk leave no page half used.
struct Chunk {
    explicit Chunk(std::size_t wanted) : size((wanted + kHugePage - 1) / kHugePage * kHugePage) {
        memory.reset(static_cast<std::uint8_t*>(std::aligned_alloc(kHugePage, size)));
        if (memory == nullptr) throw std::bad_alloc();
#if defined(__linux__) && defined(MADV_HUGEPAGE)
        madvise(memory.get(), size, MADV_HUGEPAGE);  // only advice: refusal costs speed, not results
#endif
    }
    struct Free {
        void operator()(std::uint8_t* pages) const { std::free(pages); }
    };
    std::unique_ptr<std::uint8_t, Free> memory;
    std::size_t size;
    std::size_t used = 0;
};

std::mutex chunk_mutex;
std::shared_ptr<Chunk> open_chunk;  // the one that the next small weight goes into

}  // namespace

WeightMemory allocate_weight(std::int64_t size_bytes) {
    const std::size_t size = (static_cast<std::size_t>(std::max<std::int64_t>(size_bytes, 1)) + 63) / 64 * 64;
    std::shared_ptr<Chunk> chunk;
    std::size_t offset = 0;
    if (size >= kChunk) {
        chunk = std::make_shared<Chunk>(size);
    } else {
        std::lock_guard<std::mutex> lock(chunk_mutex);
        if (open_chunk == nullptr || open_chunk->used + size > open_chunk->size) open_chunk = std::make_shared<Chunk>(kChunk);
        chunk = open_chunk;
        offset = chunk->used;
        chunk->used += size;
    }
    std::uint8_t* memory = chunk->memory.get() + offset;
    std::memset(memory, 0, size);
    return WeightMemory(std::move(chunk), memory);
}

PackedWeight::PackedWeight(std::vector<std::unique_ptr<WeightPart>> parts) : parts_(std::move(parts)) {
    in_features_ = parts_[0]->in_features();
    for (const auto& part : parts_) out_features_ += part->out_features();
}

std::int64_t PackedWeight::size_bytes() const {
    std::int64_t size = 0;
    for (const auto& part : parts_) size += part->size_bytes();
    return size;
}

bool PackedWeight::rounds_inputs() const {
    return std::any_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->activation_group() != 0; });
}

void PackedWeight::read_row(std::int64_t index, float* out) const {
    std::size_t part = 0;
    while (index >= parts_[part]->out_features()) index -= parts_[part++]->out_features();
    parts_[part]->read_row(index, out);
}

namespace {

// The split of one part of a job over threads. Neighbouring tiles share their panels.
struct Split {
    const LinearJob* job;
    const WeightPart* part;
    std::int64_t first_column;
    std::int64_t row_tiles;
    std::int64_t panel_tiles;
    std::int64_t first_tile;
};

void choose_tiles(Split& split) {
    const WeightPart& part = *split.part;
    const std::int64_t num_rows = split.job->rows.end - split.job->rows.begin;
    split.row_tiles = (num_rows + part.row_block() - 1) / part.row_block();
    const double tile_ns = part.panel_ns(num_rows) / static_cast<double>(split.row_tiles);
    split.panel_tiles = choose_num_tiles(part.num_panels() * split.row_tiles, tile_ns);
    if (split.row_tiles == 1) return;
    // A tile copies its rows' inputs first: at least 8 panels pay for that. At most 16, so that the next tile finds them in a cache.
    const std::int64_t fewest =
        std::max((split.panel_tiles + split.row_tiles - 1) / split.row_tiles, part.num_panels() / 16);
    split.panel_tiles = std::max<std::int64_t>(1, std::min(fewest, (part.num_panels() + 7) / 8));
}

void multiply_tile(const LinearInput& input, const Split& split, std::int64_t tile) {
    const LinearJob& job = *split.job;
    const std::int64_t own = tile - split.first_tile;
    const Range panels = tile_range(split.part->num_panels(), split.panel_tiles, own / split.row_tiles);
    if (panels.begin == panels.end) return;
    const Range rows = tile_range(job.rows.end - job.rows.begin, split.row_tiles, own % split.row_tiles);
    split.part->multiply(input, {{job.rows.begin + rows.begin, job.rows.begin + rows.end}, panels,
                                 job.bias == nullptr ? nullptr : job.bias + split.first_column, job.out + split.first_column,
                                 job.weight->out_features()});
}

void round_input(LinearInput& input, int group) {
    QuantizedRows& rows = group == 32 ? input.by_32 : input.by_16;
    if (group != 0 && rows.records == nullptr) rows = quantize_rows(input.x, group);
}

}  // namespace

void run_linears(const Matrix<const float>& x, const std::vector<LinearJob>& jobs, const Companion* companion) {
    if (x.rows == 0) return;
    LinearInput input{x, {}, {}};
    if (companion != nullptr) round_input(input, companion->activation_group);
    std::vector<Split> splits;
    std::int64_t num_tiles = 0;
    for (const LinearJob& job : jobs) {
        if (job.rows.begin == job.rows.end) continue;
        std::int64_t first_column = 0;
        for (const auto& part : job.weight->parts()) {
            round_input(input, part->activation_group());
            splits.push_back({&job, part.get(), first_column, 0, 0, num_tiles});
            choose_tiles(splits.back());
            num_tiles += splits.back().row_tiles * splits.back().panel_tiles;
            first_column += part->out_features();
        }
    }
    const std::int64_t num_others = companion == nullptr ? 0 : companion->num_tiles;
    parallel_for(num_tiles + num_others, [&](std::int64_t tile) {
        if (tile < num_others) return companion->run_tile(input, tile);
        tile -= num_others;
        const auto behind = std::upper_bound(splits.begin(), splits.end(), tile,
                                             [](std::int64_t wanted, const Split& split) { return wanted < split.first_tile; });
        multiply_tile(input, *(behind - 1), tile);
    });
}

void PackedWeight::linear(const Matrix<const float>& x, const float* bias, float* out, const Companion* companion) const {
    run_linears(x, {{this, {0, x.rows}, bias, out}}, companion);
}

void run_embedding(const std::int32_t* ids, std::int64_t count, const Weight& table, float* out) {
    const std::int64_t width = table.in_features();
    parallel_ranges(count, 4.0 * static_cast<double>(width), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) table.read_row(ids[i], out + i * width);
    });
}

void run_embedding_share(const std::int32_t* ids, std::int64_t count, const Weight& table, std::int64_t first_id, float* out) {
    const std::int64_t width = table.in_features();
    parallel_ranges(count, 4.0 * static_cast<double>(width), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t row = ids[i] - first_id;
            if (row >= 0 && row < table.out_features()) {
                table.read_row(row, out + i * width);
            } else {
                std::fill_n(out + i * width, width, 0.0f);
            }
        }
    });
}

namespace {

nb::object dequantized(const Weight& weight) {
    NewArray<float> out = new_array<float>({weight.out_features(), weight.in_features()});
    nb::gil_scoped_release nogil;
    parallel_ranges(weight.out_features(), static_cast<double>(weight.in_features()), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) weight.read_row(row, out.data + row * weight.in_features());
    });
    return std::move(out.object);
}

nb::object linear(nb::handle x_array, const Weight& weight, nb::handle bias_array) {
    const Matrix<const float> x = read_matrix<float>(x_array, "x", kAnySize, weight.in_features());
    const float* bias = bias_array.is_none() ? nullptr : read_vector<float>(bias_array, "bias", weight.out_features()).data;
    NewArray<float> out = new_array<float>({x.rows, weight.out_features()});
    nb::gil_scoped_release nogil;
    weight.linear(x, bias, out.data);
    return std::move(out.object);
}

nb::object embedding(nb::handle ids_array, const Weight& table) {
    const Vector<const std::int32_t> ids = read_vector<std::int32_t>(ids_array, "token_ids");
    check_range(ids, "token_ids", table.out_features());
    NewArray<float> out = new_array<float>({ids.size, table.in_features()});
    nb::gil_scoped_release nogil;
    run_embedding(ids.data, ids.size, table, out.data);
    return std::move(out.object);
}

nb::object embedding_share(nb::handle ids_array, const Weight& table, std::int64_t first_id, std::int64_t num_ids) {
    const Vector<const std::int32_t> ids = read_vector<std::int32_t>(ids_array, "token_ids");
    check_range(ids, "token_ids", num_ids);
    NewArray<float> out = new_array<float>({ids.size, table.in_features()});
    nb::gil_scoped_release nogil;
    run_embedding_share(ids.data, ids.size, table, first_id, out.data);
    return std::move(out.object);
}

}  // namespace

void bind_linear(nb::module_& m) {
    nb::class_<Weight>(m, "Weight", "A matrix [out_features, in_features] packed for `linear` and `embedding`.")
        .def_prop_ro("out_features", &Weight::out_features)
        .def_prop_ro("in_features", &Weight::in_features)
        .def_prop_ro("rounds_inputs", &Weight::rounds_inputs)
        .def("dequantized", &dequantized, "Return the matrix as float32 [out_features, in_features], a copy.");
    nb::class_<PackedWeight, Weight>(m, "PackedWeight", "Parts stacked along the output axis, each in its own format.")
        .def_prop_ro("size_bytes", &PackedWeight::size_bytes);
    bind_weight_builder(m);
    m.def("linear", &linear, nb::arg("x"), nb::arg("weight"), nb::arg("bias").none());
    m.def("embedding", &embedding, nb::arg("token_ids"), nb::arg("table"));
    m.def("embedding_share", &embedding_share, nb::arg("token_ids"), nb::arg("table"), nb::arg("first_id"), nb::arg("num_ids"));
}

}  // namespace octavo
