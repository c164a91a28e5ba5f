// Ops that treat each row by itself.
#pragma once

#include "arrays.h"
#include "kernels/kernels.h"

namespace octavo {

// The ops on plain memory and on the thread pool: they need no GIL and check nothing. Outputs are contiguous rows.
void run_take_rows(const Matrix<const float>& x, const std::int32_t* rows, std::int64_t count, float* out);
void run_rms_norm(const Rows& x, const float* weight, float eps, float* out);
void run_add_rms_norm(const Matrix<const float>& x, const Matrix<const float>& residual, const float* weight, float eps,
                      float* out, float* total);
void run_layer_norm(const Matrix<const float>& x, const float* weight, const float* bias, float eps, float* out);
void run_add(const Matrix<const float>& x, const Matrix<const float>& y, float* out);
void run_map(const Rows& x, Function function, float parameter, float* out);
void run_act_and_mul(const Matrix<const float>& x, Function function, float* out);
void run_rope(const Tensor3<const float>& x, const std::int32_t* positions, const Matrix<const float>& cos_sin, float* out);

// Raise ValueError for an unknown name, and the first one for an activation that is of act_and_mul alone.
Function activation_named(const char* name);
Function gated_activation_named(const char* name);

// Raises ValueError unless the table's rows can rotate heads of head_dim.
Matrix<const float> read_cos_sin(nb::handle array, std::int64_t head_dim);

// Binds take_rows, rms_norm, add_rms_norm, layer_norm, add, scale, softcap, activation, act_and_mul and rope.
void bind_rows(nb::module_& m);

}  // namespace octavo
