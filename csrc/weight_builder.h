// Collects the matrices of one weight, in whatever format they come, and packs them.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "quant_weight.h"
#include "weight.h"

namespace octavo {

// Matrices are stacked along the output axis in the order in which they were added. It keeps the arrays alive until `pack`.
class WeightBuilder {
  public:
    WeightBuilder() = default;
    WeightBuilder(const WeightBuilder&) = delete;
    WeightBuilder& operator=(const WeightBuilder&) = delete;

    // [rows, in_features] float32
    void add_floats(nb::object matrix);
    // [rows, in_features] uint16, the bits of float16 or (is_bfloat) bfloat16 numbers
    void add_halves(nb::object bits, bool is_bfloat);
    // Rows of GGUF blocks [rows, row_bytes] uint8
    void add_blocks(const std::string& type, nb::object blocks);
    // w = scale * code + minimum: codes [rows, in_features] uint8 with the bias added (128 for 8 bits; 8 for 4 bits without
    // minimums), scales [rows, groups] and minimums (or None) float32, or float16 as uint16.
    void add_groups(int bits, int group, nb::object codes, nb::object scales, nb::object minimums);
    // Needs the GIL, and releases it while packing.
    std::unique_ptr<PackedWeight> pack();

  private:
    struct Halves {
        ElementKind kind;
        Matrix<const std::uint16_t> matrix;
    };
    using Source = std::variant<Matrix<const float>, Halves, std::unique_ptr<QuantRowSource>>;

    void add(Source source, std::int64_t num_rows, std::int64_t num_columns);
    static bool same_part(const Source& a, const Source& b);
    static std::unique_ptr<WeightPart> pack_part(const Source* first, const Source* last);

    std::vector<nb::object> arrays_;
    std::vector<Source> sources_;
    std::int64_t num_columns_ = 0;
};

void bind_weight_builder(nb::module_& m);

}  // namespace octavo
