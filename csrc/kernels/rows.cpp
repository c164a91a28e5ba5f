// Kernels that treat one row at a time: norms, element-wise functions, rotary embedding.
//
// Each walks its row in whole vectors and then once more in a padded one. A sum over the row keeps kLanes partial sums by the
// element's index modulo kLanes and adds them up as a fixed tree: its order depends on the row's length alone.
#include "kernels/rows.h"

#include "kernels/math.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {
namespace {

// Calls body(offset, load, store) over n elements, the last time with the padded forms.
template <class Body>
OCTAVO_INLINE void for_each_vector(std::int64_t n, const Body& body) {
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        body(
            i, [](const float* p) { return load(p); }, [](float* p, Vec v) { store(p, v); });
    }
    if (i < n) {
        const std::int64_t rest = n - i;
        body(
            i, [rest](const float* p) { return load_first(p, rest); },
            [rest](float* p, Vec v) { store_first(p, v, rest); });
    }
}

// 1 / sqrt(mean(x^2) + eps). Padded lanes add zeros.
float inverse_rms(const float* x, float eps, std::int64_t n) {
    Vec sums = set(0.0f);
    for_each_vector(n, [&](std::int64_t i, auto read, auto) {
        const Vec v = read(x + i);
        sums = fma(v, v, sums);
    });
    return 1.0f / __builtin_sqrtf(sum_lanes(sums) / static_cast<float>(n) + eps);
}

template <Function function>
OCTAVO_INLINE Vec apply(Vec x, Vec parameter) {
    const Vec zero = set(0.0f);
    const Vec one = set(1.0f);
    const Vec half = set(0.5f);
    switch (function) {
        case Function::silu: return div(x, add(one, exp(sub(zero, x))));
        case Function::gelu: return mul(x, mul(half, add(one, erf(mul(x, set(0.707106781f))))));
        case Function::gelu_tanh: {
            const Vec cube = mul(mul(x, x), x);
            const Vec inner = mul(set(0.797884561f), fma(set(0.044715f), cube, x));
            return mul(x, mul(half, add(one, tanh(inner))));
        }
        case Function::relu: return max(zero, x);
        case Function::relu2: return mul(max(zero, x), max(zero, x));
        case Function::scale: return mul(x, parameter);
        case Function::softcap: return mul(parameter, tanh(div(x, parameter)));
        case Function::clamped_swiglu: return x;  // see multiply_by_gate
    }
}

template <Function function>
OCTAVO_INLINE Vec multiply_by_gate(Vec gate, Vec up) {
    if constexpr (function == Function::clamped_swiglu) {
        // min(g, 7) sigmoid(1.702 min(g, 7)) (clamp(u, -7, 7) + 1); operands in the order in which NaNs come through
        const Vec one = set(1.0f);
        gate = min(set(7.0f), gate);
        up = max(set(-7.0f), min(set(7.0f), up));
        return mul(add(up, one), div(gate, add(one, exp(mul(gate, set(-1.702f))))));
    } else {
        return mul(apply<function>(gate, set(0.0f)), up);
    }
}

template <Function function>
void map_row(const float* x, float parameter, std::int64_t n, float* out) {
    const Vec p = set(parameter);
    for_each_vector(n, [&](std::int64_t i, auto read, auto write) { write(out + i, apply<function>(read(x + i), p)); });
}

template <Function function>
void map_and_mul_row(const float* gate, const float* up, std::int64_t n, float* out) {
    for_each_vector(n, [&](std::int64_t i, auto read, auto write) {
        write(out + i, multiply_by_gate<function>(read(gate + i), read(up + i)));
    });
}

}  // namespace

void rms_norm(const float* x, const float* weight, float eps, std::int64_t n, float* out) {
    const Vec inverse = set(inverse_rms(x, eps, n));
    for_each_vector(n, [&](std::int64_t i, auto read, auto write) {
        write(out + i, mul(mul(read(x + i), inverse), read(weight + i)));
    });
}

void add_rms_norm(const float* x, const float* residual, const float* weight, float eps, std::int64_t n, float* out,
                  float* total) {
    add_rows(x, residual, n, total);
    rms_norm(total, weight, eps, n, out);
}

void layer_norm(const float* x, const float* weight, const float* bias, float eps, std::int64_t n, float* out) {
    Vec sums = set(0.0f);
    for_each_vector(n, [&](std::int64_t i, auto read, auto) { sums = add(sums, read(x + i)); });
    const Vec mean = set(sum_lanes(sums) / static_cast<float>(n));
    // Centred values go through `out`: padded lanes must not add (0 - mean)^2.
    Vec squares = set(0.0f);
    for_each_vector(n, [&](std::int64_t i, auto read, auto write) { write(out + i, sub(read(x + i), mean)); });
    for_each_vector(n, [&](std::int64_t i, auto read, auto) {
        const Vec centred = read(out + i);
        squares = fma(centred, centred, squares);
    });
    const Vec inverse = set(1.0f / __builtin_sqrtf(sum_lanes(squares) / static_cast<float>(n) + eps));
    for_each_vector(n, [&](std::int64_t i, auto read, auto write) {
        const Vec normed = mul(mul(read(out + i), inverse), read(weight + i));
        write(out + i, bias == nullptr ? normed : add(normed, read(bias + i)));
    });
}

void add_rows(const float* x, const float* y, std::int64_t n, float* out) {
    for_each_vector(n, [&](std::int64_t i, auto read, auto write) {
        write(out + i, add(read(x + i), read(y + i)));
    });
}

void map(Function function, const float* x, float parameter, std::int64_t n, float* out) {
    switch (function) {
        case Function::silu: return map_row<Function::silu>(x, parameter, n, out);
        case Function::gelu: return map_row<Function::gelu>(x, parameter, n, out);
        case Function::gelu_tanh: return map_row<Function::gelu_tanh>(x, parameter, n, out);
        case Function::relu: return map_row<Function::relu>(x, parameter, n, out);
        case Function::relu2: return map_row<Function::relu2>(x, parameter, n, out);
        case Function::scale: return map_row<Function::scale>(x, parameter, n, out);
        case Function::softcap: return map_row<Function::softcap>(x, parameter, n, out);
        case Function::clamped_swiglu: return;  // the border refuses it
    }
}

void map_and_mul(Function function, const float* gate, const float* up, std::int64_t n, float* out) {
    switch (function) {
        case Function::silu: return map_and_mul_row<Function::silu>(gate, up, n, out);
        case Function::gelu: return map_and_mul_row<Function::gelu>(gate, up, n, out);
        case Function::gelu_tanh: return map_and_mul_row<Function::gelu_tanh>(gate, up, n, out);
        case Function::relu: return map_and_mul_row<Function::relu>(gate, up, n, out);
        case Function::relu2: return map_and_mul_row<Function::relu2>(gate, up, n, out);
        case Function::clamped_swiglu: return map_and_mul_row<Function::clamped_swiglu>(gate, up, n, out);
        case Function::scale:
        case Function::softcap: return;  // not activations: the border refuses them
    }
}

// Half-split pairing: (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin), the rest of the head copied.
void rope(const float* x, std::int64_t head_stride, std::int64_t num_heads, std::int64_t head_dim, const float* cos_sin,
          std::int64_t rotary_dim, float* out) {
    const std::int64_t half = rotary_dim / 2;
    for (std::int64_t head = 0; head < num_heads; ++head) {
        const float* in = x + head * head_stride;
        float* rotated = out + head * head_dim;
        for_each_vector(half, [&](std::int64_t i, auto read, auto write) {
            const Vec first = read(in + i);
            const Vec second = read(in + half + i);
            const Vec cosine = read(cos_sin + i);
            const Vec sine = read(cos_sin + half + i);
            write(rotated + i, sub(mul(first, cosine), mul(second, sine)));
            write(rotated + half + i, add(mul(second, cosine), mul(first, sine)));
        });
        for (std::int64_t i = rotary_dim; i < head_dim; ++i) rotated[i] = in[i];
    }
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
