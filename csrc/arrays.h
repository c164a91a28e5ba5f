// The border between NumPy and the kernels: every array argument becomes a plain view here, or raises ValueError.
//
// Uses NumPy's C interface rather than nanobind's ndarray: reading the fields of an array costs nanoseconds, and a forward
// makes thousands of these calls. Every function here needs the GIL; the views are used without it, while the caller's
// reference keeps the memory alive.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include "kernels/kernels.h"

namespace octavo {

namespace nb = nanobind;

// Strides count elements, not bytes; the last axis is always contiguous.
template <class T>
struct Vector {
    T* data;
    std::int64_t size;
};

template <class T>
struct Matrix {
    T* data;
    std::int64_t rows;
    std::int64_t columns;
    std::int64_t row_stride;

    T* row(std::int64_t index) const { return data + index * row_stride; }
};

template <class T>
struct Tensor3 {
    T* data;
    std::int64_t shape[3];
    std::int64_t stride[2];  // of axes 0 and 1

    T* row(std::int64_t i, std::int64_t j) const { return data + i * stride[0] + j * stride[1]; }
};

constexpr std::int64_t kAnySize = -1;

// Read arguments. `name` and the expected sizes (kAnySize: any) go into the error message. T: float, double, int32_t, int64_t;
// of matrices: float, int32_t, uint8_t, uint16_t.
template <class T>
Vector<const T> read_vector(nb::handle array, const char* name, std::int64_t size = kAnySize);
template <class T>
Matrix<const T> read_matrix(nb::handle array, const char* name, std::int64_t rows = kAnySize,
                            std::int64_t columns = kAnySize);
Tensor3<const float> read_tensor3(nb::handle array, const char* name, std::int64_t size0 = kAnySize,
                                  std::int64_t size1 = kAnySize, std::int64_t size2 = kAnySize);

// Read an argument that is changed in place: also refuses read-only arrays.
Matrix<float> read_writable_matrix(nb::handle array, const char* name, std::int64_t rows = kAnySize,
                                   std::int64_t columns = kAnySize);

Vector<float> read_writable_vector(nb::handle array, const char* name, std::int64_t size = kAnySize);

// Reads an array of 1 to 4 axes as rows of its last axis, when its leading axes can be walked with at most two strides
// (every view that a forward makes can): outer x inner rows.
struct Rows {
    const float* data;
    std::int64_t outer, inner, columns;
    std::int64_t outer_stride, inner_stride;

    std::int64_t count() const { return outer * inner; }
    const float* row(std::int64_t index) const {
        return inner == 1 ? data + index * outer_stride
                          : data + index / inner * outer_stride + index % inner * inner_stride;
    }
};
Rows read_rows(nb::handle array, const char* name);

// A cache of keys and values, [B, 2, K, S, D] float32 or float16, or [B, 2, K, S, D + 4] int8; writable, contiguous in its last
// two axes, which together hold what kernels/kv_cache.h says. Strides in bytes.
struct KvCache {
    KvType type;
    std::uint8_t* data;
    std::int64_t num_blocks, num_kv_heads, block_size, head_dim;
    std::int64_t block_stride, value_offset, head_stride;  // between blocks, from keys to values, and between heads

    std::uint8_t* keys(std::int64_t block, std::int64_t head) const { return data + block * block_stride + head * head_stride; }
    std::int64_t num_slots() const { return num_blocks * block_size; }
};
KvCache read_cache(nb::handle array);

// A new C-contiguous NumPy array and a pointer to its memory.
template <class T>
struct NewArray {
    nb::object object;
    T* data;
};
template <class T>
NewArray<T> new_array(std::initializer_list<std::int64_t> shape);
// A new float32 array shaped as `array`.
NewArray<float> new_array_like(nb::handle array);

// Raises ValueError unless every id lies in 0 .. limit-1.
template <class T>
void check_range(const Vector<const T>& ids, const char* name, std::int64_t limit);

[[noreturn]] void raise_value_error(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Loads NumPy's function table; called once, from the module's initialisation.
void import_numpy();

}  // namespace octavo
