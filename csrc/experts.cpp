#include "experts.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "dispatch.h"
#include "rows.h"
#include "scratch.h"
#include "thread_pool.h"

namespace octavo {
namespace {

// Floats that a call keeps for the rows of all choices, of inputs and of outputs each: more rows are computed in turns. A turn has
// enough rows for each expert that its matrix is worth being read again.
constexpr std::int64_t kMemoryFloats = std::int64_t{8} << 20;

// Memory of the calling thread; contents are arbitrary.
float* call_memory(int which, std::int64_t size) {
    thread_local std::vector<float> memory[2];
    std::vector<float>& kept = memory[which];
    if (static_cast<std::int64_t>(kept.size()) < size) {
        kept = std::vector<float>();  // free before allocating
        kept.resize(static_cast<std::size_t>(size));
    }
    return kept.data();
}

// Where the rows of one turn go. A choice is a row's n-th best expert, number row * top_k + n; its place is the row that it has
// among all choices, ordered by expert.
struct Routes {
    std::int64_t top_k = 0;
    std::vector<std::int32_t> experts;  // of each choice
    std::vector<float> weights;         // of each choice
    std::vector<std::int64_t> places;   // of each choice
    std::vector<std::int64_t> starts;   // [experts + 1] first place of each

    std::int64_t num_choices() const { return static_cast<std::int64_t>(experts.size()); }
};

// Scores of one row, by expert.
void score(const float* logits, std::int64_t count, bool is_sigmoid, float* scores) {
    if (is_sigmoid) {
        for (std::int64_t e = 0; e < count; ++e) scores[e] = 1.0f / (1.0f + std::exp(-logits[e]));
        return;
    }
    const float largest = *std::max_element(logits, logits + count);
    float sum = 0.0f;
    for (std::int64_t e = 0; e < count; ++e) sum += scores[e] = std::exp(logits[e] - largest);
    for (std::int64_t e = 0; e < count; ++e) scores[e] /= sum;
}

// Chooses top_k experts of one row, best first, the lower number first among equals; NaNs are worse than all else.
// scratch: 2 * num_experts floats
void choose(const float* logits, const Routing& routing, std::int64_t num_experts, float* scratch, std::int32_t* experts,
            float* weights) {
    // What is taken ranks below all others, and a NaN just above it.
    constexpr float kTaken = -std::numeric_limits<float>::infinity();
    constexpr float kNan = std::numeric_limits<float>::lowest();
    float* scores = scratch;
    float* ranked = scratch + num_experts;
    score(logits, num_experts, routing.is_sigmoid, scores);
    for (std::int64_t e = 0; e < num_experts; ++e) {
        const float rank = routing.bias.empty() ? scores[e] : scores[e] + routing.bias[static_cast<std::size_t>(e)];
        ranked[e] = rank > kNan ? rank : kNan;
    }
    float sum = routing.is_sigmoid ? 1e-20f : 0.0f;  // all sigmoids may be 0
    for (std::int64_t n = 0; n < routing.top_k; ++n) {
        const std::int64_t best = std::max_element(ranked, ranked + num_experts) - ranked;
        ranked[best] = kTaken;
        experts[n] = static_cast<std::int32_t>(best);
        weights[n] = scores[best];
        sum += scores[best];
    }
    const float factor = routing.renormalizes ? routing.scale / sum : routing.scale;
    for (std::int64_t n = 0; n < routing.top_k; ++n) weights[n] *= factor;
}

Routes route(const Matrix<const float>& logits, const Routing& routing) {
    const std::int64_t num_experts = logits.columns, top_k = routing.top_k;
    const auto num_choices = static_cast<std::size_t>(logits.rows * top_k);
    Routes routes;
    routes.top_k = top_k;
    routes.experts.resize(num_choices);
    routes.weights.resize(num_choices);
    parallel_ranges(logits.rows, static_cast<double>(num_experts * (10 + top_k)), [&](std::int64_t begin, std::int64_t end) {
        float* scratch = thread_scratch(2 * num_experts);
        for (std::int64_t row = begin; row < end; ++row) {
            choose(logits.row(row), routing, num_experts, scratch, routes.experts.data() + row * top_k,
                   routes.weights.data() + row * top_k);
        }
    });
    routes.starts.assign(static_cast<std::size_t>(num_experts + 1), 0);
    for (const std::int32_t expert : routes.experts) ++routes.starts[static_cast<std::size_t>(expert) + 1];
    std::partial_sum(routes.starts.begin(), routes.starts.end(), routes.starts.begin());
    std::vector<std::int64_t> next(routes.starts.begin(), routes.starts.end() - 1);
    for (const std::int32_t expert : routes.experts) routes.places.push_back(next[static_cast<std::size_t>(expert)]++);
    return routes;
}

// Calls body(choice) for every choice, on the thread pool.
template <class Body>
void for_each_choice(const Routes& routes, double choice_ns, const Body& body) {
    parallel_ranges(routes.num_choices(), choice_ns, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t choice = begin; choice < end; ++choice) body(choice);
    });
}

// out [choices by place, out_features] = x [choices by place, in_features] times the matrix of each one's expert.
void multiply(const Routes& routes, const Experts& experts, const float* x, float* out) {
    std::vector<LinearJob> jobs;
    for (std::int64_t e = 0; e < experts.count(); ++e) {
        const auto index = static_cast<std::size_t>(e);
        if (routes.starts[index] == routes.starts[index + 1]) continue;
        jobs.push_back({experts.weights[index], {routes.starts[index], routes.starts[index + 1]}, experts.bias_of(e), out});
    }
    run_linears({x, routes.num_choices(), experts.in_features(), experts.in_features()}, jobs);
}

// Calls body(first row, routes) for turns of rows whose choices fit into the call's memory.
template <class Body>
void for_each_turn(const Matrix<const float>& logits, const Routing& routing, const Experts& experts, const Body& body) {
    const std::int64_t row_floats = routing.top_k * std::max(experts.in_features(), experts.out_features());
    const std::int64_t most = std::max<std::int64_t>(1, kMemoryFloats / row_floats);
    const std::int64_t num_turns = (logits.rows + most - 1) / most;
    for (std::int64_t turn = 0; turn < num_turns; ++turn) {
        const Range rows = tile_range(logits.rows, num_turns, turn);
        body(rows.begin, route({logits.row(rows.begin), rows.end - rows.begin, logits.columns, logits.row_stride}, routing));
    }
}

}  // namespace

void run_expert_inputs(const Matrix<const float>& x, const Matrix<const float>& logits, const Routing& routing,
                       const Experts& experts, Function function, float* out) {
    const std::int64_t width = x.columns, half = experts.out_features() / 2;
    const auto act_and_mul = kernels().map_and_mul;
    for_each_turn(logits, routing, experts, [&](std::int64_t first, const Routes& routes) {
        float* gathered = call_memory(0, routes.num_choices() * width);
        float* gate_up = call_memory(1, routes.num_choices() * 2 * half);
        for_each_choice(routes, 0.15 * static_cast<double>(width), [&](std::int64_t choice) {
            std::memcpy(gathered + routes.places[static_cast<std::size_t>(choice)] * width, x.row(first + choice / routes.top_k),
                        static_cast<std::size_t>(width) * sizeof(float));
        });
        multiply(routes, experts, gathered, gate_up);
        for_each_choice(routes, 0.5 * static_cast<double>(half), [&](std::int64_t choice) {
            const float* gate = gate_up + routes.places[static_cast<std::size_t>(choice)] * 2 * half;
            act_and_mul(function, gate, gate + half, half, out + (first * routes.top_k + choice) * half);
        });
    });
}

void run_expert_outputs(const Matrix<const float>& h, const Matrix<const float>& logits, const Routing& routing,
                        const Experts& experts, const std::vector<std::int64_t>& widths, float* out) {
    const std::int64_t in_features = experts.in_features(), out_features = experts.out_features();
    for_each_turn(logits, routing, experts, [&](std::int64_t first, const Routes& routes) {
        float* gathered = call_memory(0, routes.num_choices() * in_features);
        float* products = call_memory(1, routes.num_choices() * out_features);
        for_each_choice(routes, 0.15 * static_cast<double>(in_features), [&](std::int64_t choice) {
            // A row has all choices' features of the first rank, then those of the second.
            const float* from = h.row(first + choice / routes.top_k);
            float* to = gathered + routes.places[static_cast<std::size_t>(choice)] * in_features;
            for (const std::int64_t own : widths) {
                std::memcpy(to, from + choice % routes.top_k * own, static_cast<std::size_t>(own) * sizeof(float));
                from += routes.top_k * own;
                to += own;
            }
        });
        multiply(routes, experts, gathered, products);
        const std::int64_t num_rows = routes.num_choices() / routes.top_k;
        const double row_ns = 0.3 * static_cast<double>(routes.top_k * out_features);
        parallel_ranges(num_rows, row_ns, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t row = begin; row < end; ++row) {
                float* sum = out + (first + row) * out_features;
                std::fill_n(sum, out_features, 0.0f);
                for (std::int64_t n = 0; n < routes.top_k; ++n) {
                    const auto choice = static_cast<std::size_t>(row * routes.top_k + n);
                    const float* product = products + routes.places[choice] * out_features;
                    const float weight = routes.weights[choice];
                    for (std::int64_t i = 0; i < out_features; ++i) sum[i] += weight * product[i];
                }
            }
        });
    });
}

// -- the border --------------------------------------------------------------------------------------------------------

Routing read_routing(const RoutingTuple& routing, std::int64_t num_experts) {
    const auto& [top_k, is_sigmoid, renormalizes, scale, bias] = routing;
    if (top_k < 1 || top_k > num_experts) {
        raise_value_error("top_k must be in 1..%lld, got %lld", static_cast<long long>(num_experts), static_cast<long long>(top_k));
    }
    Routing result{top_k, is_sigmoid, renormalizes, scale, {}};
    if (!bias.is_none()) {
        const Vector<const float> values = read_vector<float>(bias, "routing bias", num_experts);
        result.bias.assign(values.data, values.data + values.size);
    }
    return result;
}

Experts read_experts(const std::vector<nb::object>& weights, nb::handle bias) {
    if (weights.empty()) raise_value_error("weights must be of one expert at least, got none");
    Experts experts;
    for (const nb::object& weight : weights) {
        if (weight.is_none()) raise_value_error("weights must be packed, got None");
        experts.weights.push_back(nb::cast<const PackedWeight*>(weight));
        if (experts.weights.back()->out_features() == experts.out_features() &&
            experts.weights.back()->in_features() == experts.in_features()) {
            continue;
        }
        raise_value_error("the weights of all experts must have one shape");
    }
    if (!bias.is_none()) {
        const Matrix<const float> matrix = read_matrix<float>(bias, "bias", experts.count(), experts.out_features());
        if (matrix.row_stride != matrix.columns) raise_value_error("bias must be contiguous");
        experts.bias = matrix.data;
    }
    return experts;
}

namespace {

void check_num_logits(const Experts& experts, std::int64_t num_logits) {
    if (num_logits == experts.count()) return;
    raise_value_error("logits must have %lld columns, one for each expert, got %lld", static_cast<long long>(experts.count()),
                      static_cast<long long>(num_logits));
}

}  // namespace

void check_expert_inputs(const Experts& experts, std::int64_t x_columns, std::int64_t num_logits) {
    check_num_logits(experts, num_logits);
    if (x_columns != experts.in_features() || experts.out_features() % 2 != 0) {
        raise_value_error("x has %lld columns, and experts take %lld and give %lld (gate and up)", static_cast<long long>(x_columns),
                          static_cast<long long>(experts.in_features()), static_cast<long long>(experts.out_features()));
    }
}

void check_expert_outputs(const Experts& experts, const Routing& routing, const std::vector<std::int64_t>& widths,
                          std::int64_t h_columns, std::int64_t num_logits) {
    check_num_logits(experts, num_logits);
    std::int64_t total = 0;
    for (const std::int64_t width : widths) {
        if (width < 0 || width > experts.in_features()) raise_value_error("widths must be in 0..%lld", static_cast<long long>(experts.in_features()));
        total += width;
    }
    if (total != experts.in_features() || h_columns != routing.top_k * total) {
        raise_value_error("h must have %lld columns, in parts of widths that sum to %lld, got %lld and %lld",
                          static_cast<long long>(routing.top_k * experts.in_features()),
                          static_cast<long long>(experts.in_features()), static_cast<long long>(h_columns),
                          static_cast<long long>(total));
    }
}

namespace {

nb::object expert_inputs(nb::handle x_array, nb::handle logits_array, const RoutingTuple& routing_tuple,
                         const std::vector<nb::object>& weights, nb::handle bias, const char* kind) {
    const Matrix<const float> x = read_matrix<float>(x_array, "x");
    const Matrix<const float> logits = read_matrix<float>(logits_array, "logits", x.rows);
    const Experts experts = read_experts(weights, bias);
    check_expert_inputs(experts, x.columns, logits.columns);
    const Routing routing = read_routing(routing_tuple, experts.count());
    const Function function = gated_activation_named(kind);
    NewArray<float> out = new_array<float>({x.rows, routing.top_k * experts.out_features() / 2});
    nb::gil_scoped_release nogil;
    run_expert_inputs(x, logits, routing, experts, function, out.data);
    return std::move(out.object);
}

nb::object expert_outputs(nb::handle h_array, nb::handle logits_array, const RoutingTuple& routing_tuple,
                          const std::vector<nb::object>& weights, nb::handle bias, const std::vector<std::int64_t>& widths) {
    const Matrix<const float> h = read_matrix<float>(h_array, "h");
    const Matrix<const float> logits = read_matrix<float>(logits_array, "logits", h.rows);
    const Experts experts = read_experts(weights, bias);
    const Routing routing = read_routing(routing_tuple, experts.count());
    check_expert_outputs(experts, routing, widths, h.columns, logits.columns);
    NewArray<float> out = new_array<float>({h.rows, experts.out_features()});
    nb::gil_scoped_release nogil;
    run_expert_outputs(h, logits, routing, experts, widths, out.data);
    return std::move(out.object);
}

}  // namespace

void bind_experts(nb::module_& m) {
    m.def("expert_inputs", &expert_inputs, nb::arg("x"), nb::arg("logits"), nb::arg("routing"), nb::arg("weights"),
          nb::arg("bias").none(), nb::arg("kind"));
    m.def("expert_outputs", &expert_outputs, nb::arg("h"), nb::arg("logits"), nb::arg("routing"), nb::arg("weights"),
          nb::arg("bias").none(), nb::arg("widths"));
}

}  // namespace octavo
