// Norms, element-wise functions, row gathering and rotary embedding: border checks and the split over threads.
#include "rows.h"

#include <cmath>
#include <cstring>

#include "dispatch.h"
#include "thread_pool.h"

namespace octavo {
namespace {

// Rough costs on one thread, for the choice whether to wake the others.
constexpr double kPlainElement_ns = 0.15;
constexpr double kExponentialElement_ns = 0.5;

double row_ns(std::int64_t n, double element_ns) { return static_cast<double>(n) * element_ns; }

// Calls body(row) for every row, split over threads.
template <class Body>
void for_each_row(std::int64_t num_rows, double cost_ns, const Body& body) {
    parallel_ranges(num_rows, cost_ns, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) body(row);
    });
}

double element_ns(Function function) {
    return function == Function::scale ? kPlainElement_ns : kExponentialElement_ns;
}

}  // namespace

// -- the ops -----------------------------------------------------------------------------------------------------------

void run_take_rows(const Matrix<const float>& x, const std::int32_t* rows, std::int64_t count, float* out) {
    for_each_row(count, row_ns(x.columns, kPlainElement_ns), [&](std::int64_t row) {
        std::memcpy(out + row * x.columns, x.row(rows[row]), static_cast<std::size_t>(x.columns) * sizeof(float));
    });
}

void run_rms_norm(const Rows& x, const float* weight, float eps, float* out) {
    const auto kernel = kernels().rms_norm;
    for_each_row(x.count(), row_ns(x.columns, kPlainElement_ns),
                 [&](std::int64_t row) { kernel(x.row(row), weight, eps, x.columns, out + row * x.columns); });
}

void run_add_rms_norm(const Matrix<const float>& x, const Matrix<const float>& residual, const float* weight, float eps,
                      float* out, float* total) {
    const auto kernel = kernels().add_rms_norm;
    for_each_row(x.rows, row_ns(x.columns, 2 * kPlainElement_ns), [&](std::int64_t row) {
        kernel(x.row(row), residual.row(row), weight, eps, x.columns, out + row * x.columns, total + row * x.columns);
    });
}

void run_layer_norm(const Matrix<const float>& x, const float* weight, const float* bias, float eps, float* out) {
    const auto kernel = kernels().layer_norm;
    for_each_row(x.rows, row_ns(x.columns, 3 * kPlainElement_ns),
                 [&](std::int64_t row) { kernel(x.row(row), weight, bias, eps, x.columns, out + row * x.columns); });
}

void run_add(const Matrix<const float>& x, const Matrix<const float>& y, float* out) {
    const auto kernel = kernels().add;
    for_each_row(x.rows, row_ns(x.columns, kPlainElement_ns),
                 [&](std::int64_t row) { kernel(x.row(row), y.row(row), x.columns, out + row * x.columns); });
}

void run_map(const Rows& x, Function function, float parameter, float* out) {
    const auto kernel = kernels().map;
    for_each_row(x.count(), row_ns(x.columns, element_ns(function)),
                 [&](std::int64_t row) { kernel(function, x.row(row), parameter, x.columns, out + row * x.columns); });
}

void run_act_and_mul(const Matrix<const float>& x, Function function, float* out) {
    const std::int64_t half = x.columns / 2;
    const auto kernel = kernels().map_and_mul;
    for_each_row(x.rows, row_ns(half, kExponentialElement_ns),
                 [&](std::int64_t row) { kernel(function, x.row(row), x.row(row) + half, half, out + row * half); });
}

void run_rope(const Tensor3<const float>& x, const std::int32_t* positions, const Matrix<const float>& cos_sin, float* out) {
    const std::int64_t num_heads = x.shape[1];
    const std::int64_t head_dim = x.shape[2];
    const auto kernel = kernels().rope;
    for_each_row(x.shape[0], row_ns(num_heads * head_dim, 2 * kPlainElement_ns), [&](std::int64_t token) {
        kernel(x.data + token * x.stride[0], x.stride[1], num_heads, head_dim, cos_sin.row(positions[token]),
               cos_sin.columns, out + token * num_heads * head_dim);
    });
}

// -- the border --------------------------------------------------------------------------------------------------------

Function activation_named(const char* name) {
    struct Named {
        const char* name;
        Function function;
    };
    static constexpr Named kActivations[] = {{"silu", Function::silu},
                                             {"gelu", Function::gelu},
                                             {"gelu_tanh", Function::gelu_tanh},
                                             {"relu", Function::relu},
                                             {"relu2", Function::relu2}};
    for (const Named& candidate : kActivations) {
        if (std::strcmp(candidate.name, name) == 0) return candidate.function;
    }
    raise_value_error("activation must be one of silu, gelu, gelu_tanh, relu, relu2, got '%.100s'", name);
}

Function gated_activation_named(const char* name) {
    return std::strcmp(name, "clamped_swiglu") == 0 ? Function::clamped_swiglu : activation_named(name);
}

Matrix<const float> read_cos_sin(nb::handle array, std::int64_t head_dim) {
    const Matrix<const float> cos_sin = read_matrix<float>(array, "cos_sin");
    if (cos_sin.columns % 2 != 0 || cos_sin.columns > head_dim) {
        raise_value_error("cos_sin must have an even number of columns up to %lld, got %lld",
                          static_cast<long long>(head_dim), static_cast<long long>(cos_sin.columns));
    }
    return cos_sin;
}

namespace {

nb::object take_rows(nb::handle x_array, nb::handle rows_array) {
    const Matrix<const float> x = read_matrix<float>(x_array, "x");
    const Vector<const std::int32_t> rows = read_vector<std::int32_t>(rows_array, "rows");
    check_range(rows, "rows", x.rows);
    NewArray<float> out = new_array<float>({rows.size, x.columns});
    nb::gil_scoped_release nogil;
    run_take_rows(x, rows.data, rows.size, out.data);
    return std::move(out.object);
}

nb::object rms_norm(nb::handle x_array, nb::handle weight_array, float eps) {
    const Rows x = read_rows(x_array, "x");
    const float* weight = read_vector<float>(weight_array, "weight", x.columns).data;
    NewArray<float> out = new_array_like(x_array);
    nb::gil_scoped_release nogil;
    run_rms_norm(x, weight, eps, out.data);
    return std::move(out.object);
}

nb::tuple add_rms_norm(nb::handle x_array, nb::handle residual_array, nb::handle weight_array, float eps) {
    const Matrix<const float> x = read_matrix<float>(x_array, "x");
    const Matrix<const float> residual = read_matrix<float>(residual_array, "residual", x.rows, x.columns);
    const float* weight = read_vector<float>(weight_array, "weight", x.columns).data;
    NewArray<float> out = new_array<float>({x.rows, x.columns});
    NewArray<float> total = new_array<float>({x.rows, x.columns});
    {
        nb::gil_scoped_release nogil;
        run_add_rms_norm(x, residual, weight, eps, out.data, total.data);
    }
    return nb::make_tuple(std::move(out.object), std::move(total.object));
}

nb::object layer_norm(nb::handle x_array, nb::handle weight_array, nb::handle bias_array, float eps) {
    const Matrix<const float> x = read_matrix<float>(x_array, "x");
    const float* weight = read_vector<float>(weight_array, "weight", x.columns).data;
    const float* bias = bias_array.is_none() ? nullptr : read_vector<float>(bias_array, "bias", x.columns).data;
    NewArray<float> out = new_array<float>({x.rows, x.columns});
    nb::gil_scoped_release nogil;
    run_layer_norm(x, weight, bias, eps, out.data);
    return std::move(out.object);
}

nb::object add(nb::handle x_array, nb::handle y_array) {
    const Matrix<const float> x = read_matrix<float>(x_array, "x");
    const Matrix<const float> y = read_matrix<float>(y_array, "y", x.rows, x.columns);
    NewArray<float> out = new_array<float>({x.rows, x.columns});
    nb::gil_scoped_release nogil;
    run_add(x, y, out.data);
    return std::move(out.object);
}

nb::object map(nb::handle x_array, Function function, float parameter) {
    const Rows x = read_rows(x_array, "x");
    NewArray<float> out = new_array_like(x_array);
    nb::gil_scoped_release nogil;
    run_map(x, function, parameter, out.data);
    return std::move(out.object);
}

nb::object scale(nb::handle x, float factor) { return map(x, Function::scale, factor); }

nb::object softcap(nb::handle x, float cap) {
    if (!(cap > 0)) raise_value_error("cap must be positive, got %g", static_cast<double>(cap));
    return map(x, Function::softcap, cap);
}

nb::object activation(nb::handle x_array, const char* kind) {
    const Function function = activation_named(kind);
    read_matrix<float>(x_array, "x");
    return map(x_array, function, 0.0f);
}

nb::object act_and_mul(nb::handle x_array, const char* kind) {
    const Function function = gated_activation_named(kind);
    const Matrix<const float> x = read_matrix<float>(x_array, "x");
    if (x.columns % 2 != 0) {
        raise_value_error("x must have an even number of columns (gate and up), got %lld", static_cast<long long>(x.columns));
    }
    NewArray<float> out = new_array<float>({x.rows, x.columns / 2});
    nb::gil_scoped_release nogil;
    run_act_and_mul(x, function, out.data);
    return std::move(out.object);
}

nb::object rope(nb::handle x_array, nb::handle positions_array, nb::handle cos_sin_array) {
    const Tensor3<const float> x = read_tensor3(x_array, "x");
    const Vector<const std::int32_t> positions = read_vector<std::int32_t>(positions_array, "positions", x.shape[0]);
    const Matrix<const float> cos_sin = read_cos_sin(cos_sin_array, x.shape[2]);
    check_range(positions, "positions", cos_sin.rows);
    NewArray<float> out = new_array<float>({x.shape[0], x.shape[1], x.shape[2]});
    nb::gil_scoped_release nogil;
    run_rope(x, positions.data, cos_sin, out.data);
    return std::move(out.object);
}

}  // namespace

void bind_rows(nb::module_& m) {
    m.def("take_rows", &take_rows, nb::arg("x"), nb::arg("rows"));
    m.def("rms_norm", &rms_norm, nb::arg("x"), nb::arg("weight"), nb::arg("eps"));
    m.def("add_rms_norm", &add_rms_norm, nb::arg("x"), nb::arg("residual"), nb::arg("weight"), nb::arg("eps"));
    m.def("layer_norm", &layer_norm, nb::arg("x"), nb::arg("weight"), nb::arg("bias").none(), nb::arg("eps"));
    m.def("add", &add, nb::arg("x"), nb::arg("y"));
    m.def("scale", &scale, nb::arg("x"), nb::arg("factor"));
    m.def("softcap", &softcap, nb::arg("x"), nb::arg("cap"));
    m.def("activation", &activation, nb::arg("x"), nb::arg("kind"));
    m.def("act_and_mul", &act_and_mul, nb::arg("x"), nb::arg("kind"));
    m.def("rope", &rope, nb::arg("x"), nb::arg("positions"), nb::arg("cos_sin"));
}

}  // namespace octavo
