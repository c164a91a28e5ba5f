// Elementary functions on Vec. Polynomials are weighted minimax fits made for this file; errors are checked against float64 by
// tests/ops/test_native_math.py. NaN in, NaN out.
#pragma once

#include "kernels/simd.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {

// Horner's rule, highest coefficient first.
template <int N>
OCTAVO_INLINE Vec polynomial(Vec x, const float (&coefficients)[N]) {
    Vec sum = set(coefficients[0]);
    for (int i = 1; i < N; ++i) sum = fma(sum, x, set(coefficients[i]));
    return sum;
}

// e^x within 1 ulp: x = n ln2 + r with |r| <= ln2 / 2, e^r = 1 + r + r^2 q(r). 0 below -104, infinity above 88.73.
OCTAVO_INLINE Vec exp(Vec x) {
    // Written with x second, max and min hand a NaN on.
    x = min(set(89.0f), max(set(-105.0f), x));
    const Vec n = round(mul(x, set(1.44269504f)));
    // ln2 in two parts: the first has 9 significant bits, so that n times it is exact even where fma is not fused.
    Vec r = fma(n, set(-0.693359375f), x);
    r = fma(n, set(2.12194440e-4f), r);
    const Vec q = polynomial(r, {1.39508334e-3f, 8.36908828e-3f, 4.16662007e-2f, 1.66665172e-1f, 5.0000001e-1f});
    const Vec power = add(fma(mul(r, r), q, r), set(1.0f));
    return scale_by_power(power, n);
}

// Within 2 ulp: x + x^3 p(x^2) below 0.625, else 1 - 2 / (e^2x + 1).
OCTAVO_INLINE Vec tanh(Vec x) {
    const Vec magnitude = abs(x);
    const Vec square = mul(x, x);
    const Vec p = polynomial(square, {-5.59100739e-3f, 2.0538811e-2f, -5.37096543e-2f, 1.33310922e-1f, -3.33332695e-1f});
    const Vec small = fma(mul(square, magnitude), p, magnitude);
    const Vec large = sub(set(1.0f), div(set(2.0f), add(exp(add(magnitude, magnitude)), set(1.0f))));
    return copy_sign(select(less(magnitude, set(0.625f)), small, large), x);
}

// Within 2 ulp: x p(x^2) below 0.92, else 1 - e^-p(x), which rounds to 1 from 3.93 on.
OCTAVO_INLINE Vec erf(Vec x) {
    const Vec magnitude = min(set(4.0f), abs(x));
    const Vec square = mul(magnitude, magnitude);
    const Vec p = polynomial(square, {7.85385432e-5f, -8.01019149e-4f, 5.18832744e-3f, -2.68538118e-2f, 1.12835851e-1f,
                                      -3.76126258e-1f, 1.12837917f});
    const Vec exponent = polynomial(magnitude, {2.11619193e-5f, -4.35219026e-4f, 4.17464366e-3f, -2.51286262e-2f,
                                                1.08293949e-1f, 6.33334651e-1f, 1.12952082f, -1.75874746e-4f});
    const Vec large = sub(set(1.0f), exp(sub(set(0.0f), exponent)));
    return copy_sign(select(less(magnitude, set(0.92f)), mul(magnitude, p), large), x);
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
