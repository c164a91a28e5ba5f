// Checks the matrices of a weight at the border and packs neighbours of one format into one part.
#include "weight_builder.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <cstring>
#include <utility>

#include "gguf_blocks.h"

namespace octavo {
namespace {

class BlockRows final : public QuantRowSource {
  public:
    BlockRows(const BlockType& type, const Matrix<const std::uint8_t>& blocks) : type_(type), blocks_(blocks) {}
    QuantFormat format() const override { return type_.format; }
    std::int64_t num_rows() const override { return blocks_.rows; }
    std::int64_t num_columns() const override { return num_blocks() * type_.block_size; }
    void read(std::int64_t index, const QuantRow& row) const override { type_.read(blocks_.row(index), num_blocks(), row); }

  private:
    std::int64_t num_blocks() const { return blocks_.columns / type_.block_bytes; }

    const BlockType& type_;
    Matrix<const std::uint8_t> blocks_;
};

// Elements of 2 or 4 bytes.
struct ScaleArray {
    const std::uint8_t* data;
    std::int64_t row_stride;  // bytes
};

class GroupRows final : public QuantRowSource {
  public:
    GroupRows(const QuantFormat& format, const Matrix<const std::uint8_t>& codes, ScaleArray scales, ScaleArray minimums)
        : format_(format), codes_(codes), scales_(scales), minimums_(minimums) {}
    QuantFormat format() const override { return format_; }
    std::int64_t num_rows() const override { return codes_.rows; }
    std::int64_t num_columns() const override { return codes_.columns; }

    void read(std::int64_t index, const QuantRow& row) const override {
        const std::uint8_t* codes = codes_.row(index);
        const std::uint8_t mask = format_.bits == 8 ? 255 : 15;  // a code of more bits would spoil its neighbour
        for (std::int64_t k = 0; k < codes_.columns; ++k) row.codes[k] = codes[k] & mask;
        const std::int64_t num_groups = (codes_.columns + format_.group - 1) / format_.group;
        const std::size_t size = static_cast<std::size_t>(num_groups * scale_bytes(format_.scales));
        std::memcpy(row.scales, scales_.data + index * scales_.row_stride, size);
        if (format_.has_minimums) std::memcpy(row.minimums, minimums_.data + index * minimums_.row_stride, size);
    }

  private:
    QuantFormat format_;
    Matrix<const std::uint8_t> codes_;
    ScaleArray scales_;
    ScaleArray minimums_;
};

ScaleArray read_scales(nb::handle array, const char* name, ScaleKind kind, std::int64_t rows, std::int64_t groups) {
    if (kind == ScaleKind::single) {
        const Matrix<const float> matrix = read_matrix<float>(array, name, rows, groups);
        return {reinterpret_cast<const std::uint8_t*>(matrix.data), matrix.row_stride * 4};
    }
    const Matrix<const std::uint16_t> matrix = read_matrix<std::uint16_t>(array, name, rows, groups);
    return {reinterpret_cast<const std::uint8_t*>(matrix.data), matrix.row_stride * 2};
}

}  // namespace

void WeightBuilder::add(Source source, std::int64_t num_rows, std::int64_t num_columns) {
    if (num_rows == 0 || num_columns == 0) raise_value_error("matrix must not be empty");
    if (!sources_.empty() && num_columns != num_columns_) {
        raise_value_error("matrix must have %lld input features like those before it, got %lld",
                          static_cast<long long>(num_columns_), static_cast<long long>(num_columns));
    }
    num_columns_ = num_columns;
    sources_.push_back(std::move(source));
}

void WeightBuilder::add_floats(nb::object array) {
    const Matrix<const float> matrix = read_matrix<float>(array, "matrix");
    add(matrix, matrix.rows, matrix.columns);
    arrays_.push_back(std::move(array));
}

void WeightBuilder::add_halves(nb::object array, bool is_bfloat) {
    const Matrix<const std::uint16_t> matrix = read_matrix<std::uint16_t>(array, "bits");
    add(Halves{is_bfloat ? ElementKind::bfloat16 : ElementKind::float16, matrix}, matrix.rows, matrix.columns);
    arrays_.push_back(std::move(array));
}

void WeightBuilder::add_blocks(const std::string& type_name, nb::object array) {
    const BlockType* type = find_block_type(type_name.c_str());
    if (type == nullptr) raise_value_error("blocks of type %s cannot be packed", type_name.c_str());
    const Matrix<const std::uint8_t> blocks = read_matrix<std::uint8_t>(array, "blocks");
    if (blocks.columns % type->block_bytes != 0) {
        raise_value_error("blocks of type %s must have rows of a multiple of %lld bytes, got %lld", type->name,
                          static_cast<long long>(type->block_bytes), static_cast<long long>(blocks.columns));
    }
    auto rows = std::make_unique<BlockRows>(*type, blocks);
    const std::int64_t num_columns = rows->num_columns();
    add(std::move(rows), blocks.rows, num_columns);
    arrays_.push_back(std::move(array));
}

void WeightBuilder::add_groups(int bits, int group, nb::object codes_array, nb::object scales_array, nb::object minimums_array) {
    if ((bits != 4 && bits != 8) || (group != 16 && group != 32)) {
        raise_value_error("bits must be 4 or 8 and group 16 or 32, got %d and %d", bits, group);
    }
    const Matrix<const std::uint8_t> codes = read_matrix<std::uint8_t>(codes_array, "codes");
    const std::int64_t num_groups = (codes.columns + group - 1) / group;
    QuantFormat format{bits, group, ScaleKind::half, !minimums_array.is_none()};
    if (format.has_minimums && codes.columns % group != 0) {
        // The features that fill the last group would weigh `minimum`, not nothing.
        raise_value_error("with minimums the input features must be a multiple of %d, got %lld", group,
                          static_cast<long long>(codes.columns));
    }
    if (nb::cast<std::string>(scales_array.attr("dtype").attr("name")) == "float32") format.scales = ScaleKind::single;
    const ScaleArray scales = read_scales(scales_array, "scales", format.scales, codes.rows, num_groups);
    ScaleArray minimums{};
    if (format.has_minimums) minimums = read_scales(minimums_array, "minimums", format.scales, codes.rows, num_groups);
    add(std::make_unique<GroupRows>(format, codes, scales, minimums), codes.rows, codes.columns);
    for (nb::object* array : {&codes_array, &scales_array, &minimums_array}) arrays_.push_back(std::move(*array));
}

bool WeightBuilder::same_part(const Source& a, const Source& b) {
    if (a.index() != b.index()) return false;
    if (const auto* halves = std::get_if<Halves>(&a)) return halves->kind == std::get<Halves>(b).kind;
    if (const auto* rows = std::get_if<std::unique_ptr<QuantRowSource>>(&a)) {
        return same_format((*rows)->format(), std::get<std::unique_ptr<QuantRowSource>>(b)->format());
    }
    return true;
}

// Packs sources that are all of one format.
std::unique_ptr<WeightPart> WeightBuilder::pack_part(const Source* first, const Source* last) {
    if (std::holds_alternative<Matrix<const float>>(*first)) {
        std::vector<Matrix<const float>> matrices;
        for (; first < last; ++first) matrices.push_back(std::get<Matrix<const float>>(*first));
        return pack_floats(matrices);
    }
    if (const auto* halves = std::get_if<Halves>(first)) {
        std::vector<Matrix<const std::uint16_t>> matrices;
        for (const Source* source = first; source < last; ++source) matrices.push_back(std::get<Halves>(*source).matrix);
        return pack_halves(halves->kind, matrices);
    }
    std::vector<const QuantRowSource*> matrices;
    for (; first < last; ++first) matrices.push_back(std::get<std::unique_ptr<QuantRowSource>>(*first).get());
    return pack_quantized(matrices);
}

std::unique_ptr<PackedWeight> WeightBuilder::pack() {
    if (sources_.empty()) raise_value_error("pack needs at least one matrix, got none");
    nb::gil_scoped_release nogil;
    std::vector<std::unique_ptr<WeightPart>> parts;
    for (std::size_t first = 0, last = 0; first < sources_.size(); first = last) {
        while (last < sources_.size() && same_part(sources_[first], sources_[last])) ++last;
        parts.push_back(pack_part(sources_.data() + first, sources_.data() + last));
    }
    return std::make_unique<PackedWeight>(std::move(parts));
}

void bind_weight_builder(nb::module_& m) {
    nb::class_<WeightBuilder>(m, "WeightBuilder", "Matrices of any format, stacked along the output axis, for one PackedWeight.")
        .def(nb::init<>())
        .def("add_floats", &WeightBuilder::add_floats, nb::arg("matrix"))
        .def("add_halves", &WeightBuilder::add_halves, nb::arg("bits"), nb::arg("is_bfloat"))
        .def("add_blocks", &WeightBuilder::add_blocks, nb::arg("type"), nb::arg("blocks"))
        .def("add_groups", &WeightBuilder::add_groups, nb::arg("bits"), nb::arg("group"), nb::arg("codes"), nb::arg("scales"),
             nb::arg("minimums").none())
        .def("pack", &WeightBuilder::pack);
}

}  // namespace octavo
