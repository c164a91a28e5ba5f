// Mixtures of experts: which experts a token goes to, and products in which rows have matrices of their own.
#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include "arrays.h"
#include "kernels/kernels.h"
#include "weight.h"

namespace octavo {

// See octavo/ops/interface.py, Routing.
struct Routing {
    std::int64_t top_k;
    bool is_sigmoid;
    bool renormalizes;
    float scale;
    std::vector<float> bias;  // of the choice, by expert; empty: none
};

// The same projection of every expert: matrices of one size, and their biases [experts, out_features] or null.
struct Experts {
    std::vector<const PackedWeight*> weights;
    const float* bias = nullptr;

    std::int64_t count() const { return static_cast<std::int64_t>(weights.size()); }
    std::int64_t out_features() const { return weights[0]->out_features(); }
    std::int64_t in_features() const { return weights[0]->in_features(); }
    const float* bias_of(std::int64_t expert) const { return bias == nullptr ? nullptr : bias + expert * out_features(); }
};

// (top_k, scores are sigmoids, renormalize, scale, bias or None)
using RoutingTuple = std::tuple<std::int64_t, bool, bool, float, nb::object>;

// Raise ValueError unless the arguments are good for logits [*, num_experts].
Routing read_routing(const RoutingTuple& routing, std::int64_t num_experts);
// The arrays of `weights` and `bias` must outlive the result.
Experts read_experts(const std::vector<nb::object>& weights, nb::handle bias);
// Raises ValueError unless inputs of these columns and logits fit; widths: the ranks' shares of a row's in_features.
void check_expert_inputs(const Experts& experts, std::int64_t x_columns, std::int64_t num_logits);
void check_expert_outputs(const Experts& experts, const Routing& routing, const std::vector<std::int64_t>& widths,
                          std::int64_t h_columns, std::int64_t num_logits);

// out [x.rows, top_k, out_features / 2]: each chosen expert's act(gate) * up.
void run_expert_inputs(const Matrix<const float>& x, const Matrix<const float>& logits, const Routing& routing,
                       const Experts& experts, Function function, float* out);

// out [h.rows, out_features]: the chosen experts' outputs times their weights, added in the order of choice.
void run_expert_outputs(const Matrix<const float>& h, const Matrix<const float>& logits, const Routing& routing,
                        const Experts& experts, const std::vector<std::int64_t>& widths, float* out);

// Binds expert_inputs and expert_outputs.
void bind_experts(nb::module_& m);

}  // namespace octavo
