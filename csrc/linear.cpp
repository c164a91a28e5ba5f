// Packing, linear and embedding: border checks and the split over threads. The arithmetic is in kernels/linear.cpp.
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "dispatch.h"
#include "scratch.h"
#include "thread_pool.h"
#include "weight.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace octavo {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Zeroed memory, aligned to a cache line; large blocks are aligned to huge pages and ask for them, as a weight is read front to
// back at every step and would miss the address cache at every small page.
float* allocate(std::size_t count) {
    std::size_t size = std::max<std::size_t>(count * sizeof(float), 1);
    const std::size_t alignment = size >= 4 * kHugePage ? kHugePage : 64;
    size = (size + alignment - 1) / alignment * alignment;
    void* memory = std::aligned_alloc(alignment, size);
    if (memory == nullptr) throw std::bad_alloc();
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (alignment == kHugePage) madvise(memory, size, MADV_HUGEPAGE);  // only advice: refusal costs speed, not results
#endif
    std::memset(memory, 0, size);
    return static_cast<float*>(memory);
}

}  // namespace

void PackedWeight::Free::operator()(float* memory) const { std::free(memory); }

PackedWeight::PackedWeight(const Matrix<const float>* matrices, std::int64_t num_matrices)
    : kernels_(&octavo::kernels()) {
    in_features_ = matrices[0].columns;
    for (std::int64_t i = 0; i < num_matrices; ++i) out_features_ += matrices[i].rows;
    data_.reset(allocate(static_cast<std::size_t>(num_panels() * panel_width() * in_features_)));
    std::int64_t first = 0;
    for (std::int64_t i = 0; i < num_matrices; ++i) {
        const Matrix<const float>& matrix = matrices[i];
        // Whole groups of panel_width rows a tile, so that threads seldom write to one cache line.
        const std::int64_t num_groups = (matrix.rows + panel_width() - 1) / panel_width();
        const double group_ns = static_cast<double>(in_features_ * panel_width());
        parallel_ranges(num_groups, group_ns, [&](std::int64_t begin, std::int64_t end) {
            const std::int64_t last = std::min(end * panel_width(), matrix.rows);
            for (std::int64_t row = begin * panel_width(); row < last; ++row) pack_row(matrix.row(row), first + row);
        });
        first += matrix.rows;
    }
}

void PackedWeight::pack_row(const float* row, std::int64_t index) {
    float* column = data_.get() + index / panel_width() * in_features_ * panel_width() + index % panel_width();
    for (std::int64_t k = 0; k < in_features_; ++k) column[k * panel_width()] = row[k];
}

void PackedWeight::read_row(std::int64_t index, float* out) const {
    const std::int64_t width = panel_width();
    const float* column = panel(index / width) + index % width;
    for (std::int64_t k = 0; k < in_features_; ++k) out[k] = column[k * width];
}

namespace {

// A tile of the split of linear over threads: some rows by some panels. Neighbouring tiles share their panels.
struct Split {
    std::int64_t row_tiles;
    std::int64_t panel_tiles;
};

Split choose_split(const PackedWeight& weight, std::int64_t num_rows) {
    const double size = static_cast<double>(weight.in_features() * weight.panel_width());
    const double flops_per_ns = 10.0 * static_cast<double>(weight.panel_width());
    const double panel_ns = std::max(4.0 * size / 20.0, 2.0 * size * static_cast<double>(num_rows) / flops_per_ns);
    const std::int64_t row_tiles = (num_rows + kLinearRowBlock - 1) / kLinearRowBlock;
    const std::int64_t num_tiles = choose_num_tiles(weight.num_panels() * row_tiles, panel_ns / static_cast<double>(row_tiles));
    if (row_tiles == 1) return {1, num_tiles};
    // A tile copies its rows' inputs first: at least 8 panels pay for that. At most 16, so that the next tile finds them in a cache.
    const std::int64_t fewest = std::max((num_tiles + row_tiles - 1) / row_tiles, weight.num_panels() / 16);
    return {row_tiles, std::max<std::int64_t>(1, std::min(fewest, (weight.num_panels() + 7) / 8))};
}

}  // namespace

void PackedWeight::linear(const Matrix<const float>& x, const float* bias, float* out) const {
    if (x.rows == 0) return;
    const Split split = choose_split(*this, x.rows);
    const std::int64_t width = panel_width();
    parallel_for(split.row_tiles * split.panel_tiles, [&](std::int64_t tile) {
        const Range rows = tile_range(x.rows, split.row_tiles, tile % split.row_tiles);
        const Range panels = tile_range(num_panels(), split.panel_tiles, tile / split.row_tiles);
        if (panels.begin == panels.end) return;
        const std::int64_t column = panels.begin * width;
        LinearShare share;
        share.x = x.row(rows.begin);
        share.x_stride = x.row_stride;
        share.num_rows = rows.end - rows.begin;
        share.in_features = in_features();
        share.panels = panel(panels.begin);
        share.num_panels = panels.end - panels.begin;
        share.num_columns = std::min(panels.end * width, out_features()) - column;
        share.bias = bias == nullptr ? nullptr : bias + column;
        share.out = out + rows.begin * out_features() + column;
        share.out_stride = out_features();
        share.scratch = thread_scratch(kLinearScratch);
        kernels().linear(share);
    });
}

void run_embedding(const std::int32_t* ids, std::int64_t count, const Weight& table, float* out) {
    const std::int64_t width = table.in_features();
    parallel_ranges(count, 4.0 * static_cast<double>(width), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) table.read_row(ids[i], out + i * width);
    });
}

namespace {

PackedWeight pack(const std::vector<nb::object>& arrays) {
    if (arrays.empty()) raise_value_error("pack needs at least one matrix, got none");
    std::vector<Matrix<const float>> matrices;
    for (const nb::object& array : arrays) {
        matrices.push_back(
            read_matrix<float>(array, "matrix", kAnySize, matrices.empty() ? kAnySize : matrices[0].columns));
        if (matrices.back().rows == 0 || matrices.back().columns == 0) raise_value_error("matrix must not be empty");
    }
    nb::gil_scoped_release nogil;
    return PackedWeight(matrices.data(), static_cast<std::int64_t>(matrices.size()));
}

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

}  // namespace

void bind_linear(nb::module_& m) {
    nb::class_<Weight>(m, "Weight", "A matrix [out_features, in_features] packed for `linear` and `embedding`.")
        .def_prop_ro("out_features", &Weight::out_features)
        .def_prop_ro("in_features", &Weight::in_features)
        .def("dequantized", &dequantized, "Return the matrix as float32 [out_features, in_features], a copy.");
    nb::class_<PackedWeight, Weight>(m, "PackedWeight", "A float32 matrix.");
    m.def("pack", &pack, nb::arg("matrices"));
    m.def("linear", &linear, nb::arg("x"), nb::arg("weight"), nb::arg("bias").none());
    m.def("embedding", &embedding, nb::arg("token_ids"), nb::arg("table"));
}

}  // namespace octavo
