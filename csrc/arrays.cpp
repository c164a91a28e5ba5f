#include "arrays.h"

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_1_23_API_VERSION
#include <numpy/arrayobject.h>

#include <nanobind/stl/string.h>

#include <cstdarg>
#include <cstdio>
#include <string>

namespace octavo {
namespace {

template <class T>
struct NumpyType;
template <>
struct NumpyType<float> {
    static constexpr int number = NPY_FLOAT32;
    static constexpr const char* name = "float32";
};
template <>
struct NumpyType<double> {
    static constexpr int number = NPY_FLOAT64;
    static constexpr const char* name = "float64";
};
template <>
struct NumpyType<std::int32_t> {
    static constexpr int number = NPY_INT32;
    static constexpr const char* name = "int32";
};
template <>
struct NumpyType<std::int64_t> {
    static constexpr int number = NPY_INT64;
    static constexpr const char* name = "int64";
};
template <>
struct NumpyType<std::uint8_t> {
    static constexpr int number = NPY_UINT8;
    static constexpr const char* name = "uint8";
};
template <>
struct NumpyType<std::uint16_t> {
    static constexpr int number = NPY_UINT16;
    static constexpr const char* name = "uint16";
};
template <>
struct NumpyType<bool> {
    static constexpr int number = NPY_BOOL;
    static constexpr const char* name = "bool";
};

std::string describe(nb::handle array) {
    if (!PyArray_Check(array.ptr())) return Py_TYPE(array.ptr())->tp_name;
    auto* numpy_array = reinterpret_cast<PyArrayObject*>(array.ptr());
    std::string text = nb::cast<std::string>(nb::str(nb::handle(reinterpret_cast<PyObject*>(PyArray_DESCR(numpy_array)))));
    text += " [";
    for (int axis = 0; axis < PyArray_NDIM(numpy_array); ++axis) {
        if (axis > 0) text += ", ";
        text += std::to_string(PyArray_DIM(numpy_array, axis));
    }
    return text + "]";
}

[[noreturn]] void raise_mismatch(nb::handle array, const char* name, const char* type, const std::int64_t* sizes, int ndim) {
    std::string expected;
    for (int axis = 0; axis < ndim; ++axis) {
        if (axis > 0) expected += ", ";
        expected += sizes[axis] == kAnySize ? "*" : std::to_string(sizes[axis]);
    }
    raise_value_error("%s must be a %s array [%s] whose last axis is contiguous, got %s", name, type, expected.c_str(),
                      describe(array).c_str());
}

// Returns the array if its type, sizes and layout are as asked. Where nothing is read the strides may be anything: NumPy keeps
// odd ones for axes of size 1 and for empty arrays.
template <class T>
PyArrayObject* checked(nb::handle array, const char* name, const std::int64_t* sizes, int ndim, bool writable = false) {
    auto* numpy_array = reinterpret_cast<PyArrayObject*>(array.ptr());
    bool good = PyArray_Check(array.ptr()) && PyArray_TYPE(numpy_array) == NumpyType<T>::number &&
                PyArray_NDIM(numpy_array) == ndim && PyArray_ISALIGNED(numpy_array) && PyArray_ISNOTSWAPPED(numpy_array);
    const bool empty = good && PyArray_SIZE(numpy_array) == 0;
    for (int axis = 0; good && axis < ndim; ++axis) {
        const std::int64_t size = PyArray_DIM(numpy_array, axis);
        const std::int64_t stride = PyArray_STRIDE(numpy_array, axis);
        good = (sizes[axis] == kAnySize || sizes[axis] == size) &&
               (empty || (axis < ndim - 1 ? stride % static_cast<std::int64_t>(sizeof(T)) == 0
                                          : size <= 1 || stride == static_cast<std::int64_t>(sizeof(T))));
    }
    if (!good) raise_mismatch(array, name, NumpyType<T>::name, sizes, ndim);
    if (writable && !PyArray_ISWRITEABLE(numpy_array)) raise_value_error("%s must be writable, got a read-only array", name);
    return numpy_array;
}

std::int64_t element_stride(PyArrayObject* array, int axis) { return PyArray_STRIDE(array, axis) / PyArray_ITEMSIZE(array); }

template <class T>
Matrix<T> matrix_view(PyArrayObject* array) {
    return {static_cast<T*>(PyArray_DATA(array)), PyArray_DIM(array, 0), PyArray_DIM(array, 1), element_stride(array, 0)};
}

}  // namespace

void raise_value_error(const char* format, ...) {
    char message[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(message, sizeof(message), format, arguments);
    va_end(arguments);
    throw nb::value_error(message);
}

void import_numpy() {
    if (_import_array() < 0) throw nb::python_error();
}

template <class T>
Vector<const T> read_vector(nb::handle array, const char* name, std::int64_t size) {
    PyArrayObject* numpy_array = checked<T>(array, name, &size, 1);
    return {static_cast<const T*>(PyArray_DATA(numpy_array)), PyArray_DIM(numpy_array, 0)};
}
template Vector<const float> read_vector(nb::handle, const char*, std::int64_t);
template Vector<const double> read_vector(nb::handle, const char*, std::int64_t);
template Vector<const std::int32_t> read_vector(nb::handle, const char*, std::int64_t);
template Vector<const std::int64_t> read_vector(nb::handle, const char*, std::int64_t);

template <class T>
Matrix<const T> read_matrix(nb::handle array, const char* name, std::int64_t rows, std::int64_t columns) {
    const std::int64_t sizes[] = {rows, columns};
    return matrix_view<const T>(checked<T>(array, name, sizes, 2));
}
template Matrix<const float> read_matrix(nb::handle, const char*, std::int64_t, std::int64_t);
template Matrix<const std::int32_t> read_matrix(nb::handle, const char*, std::int64_t, std::int64_t);
template Matrix<const std::uint8_t> read_matrix(nb::handle, const char*, std::int64_t, std::int64_t);
template Matrix<const std::uint16_t> read_matrix(nb::handle, const char*, std::int64_t, std::int64_t);

Matrix<float> read_writable_matrix(nb::handle array, const char* name, std::int64_t rows, std::int64_t columns) {
    const std::int64_t sizes[] = {rows, columns};
    return matrix_view<float>(checked<float>(array, name, sizes, 2, true));
}

Vector<float> read_writable_vector(nb::handle array, const char* name, std::int64_t size) {
    PyArrayObject* numpy_array = checked<float>(array, name, &size, 1, true);
    return {static_cast<float*>(PyArray_DATA(numpy_array)), PyArray_DIM(numpy_array, 0)};
}

Tensor3<const float> read_tensor3(nb::handle array, const char* name, std::int64_t size0, std::int64_t size1,
                                  std::int64_t size2) {
    const std::int64_t sizes[] = {size0, size1, size2};
    PyArrayObject* numpy_array = checked<float>(array, name, sizes, 3);
    return {static_cast<const float*>(PyArray_DATA(numpy_array)),
            {PyArray_DIM(numpy_array, 0), PyArray_DIM(numpy_array, 1), PyArray_DIM(numpy_array, 2)},
            {element_stride(numpy_array, 0), element_stride(numpy_array, 1)}};
}

Rows read_rows(nb::handle array, const char* name) {
    const std::int64_t sizes[] = {kAnySize, kAnySize, kAnySize};
    const int ndim = PyArray_Check(array.ptr()) ? PyArray_NDIM(reinterpret_cast<PyArrayObject*>(array.ptr())) : 2;
    if (ndim < 1 || ndim > 3) {
        raise_value_error("%s must be a float32 array of 1 to 3 axes, got %s", name, describe(array).c_str());
    }
    PyArrayObject* numpy_array = checked<float>(array, name, sizes, ndim);
    Rows rows{static_cast<const float*>(PyArray_DATA(numpy_array)), 1, 1, PyArray_DIM(numpy_array, ndim - 1), 0, 0};
    if (ndim >= 2) {
        rows.outer = PyArray_DIM(numpy_array, 0);
        rows.outer_stride = element_stride(numpy_array, 0);
    }
    if (ndim == 3) {
        rows.inner = PyArray_DIM(numpy_array, 1);
        rows.inner_stride = element_stride(numpy_array, 1);
    }
    return rows;
}

KvCache read_cache(nb::handle array) {
    auto* numpy_array = reinterpret_cast<PyArrayObject*>(array.ptr());
    const bool is_cache = PyArray_Check(array.ptr()) && PyArray_NDIM(numpy_array) == 5 && PyArray_DIM(numpy_array, 1) == 2 &&
                          PyArray_ISNOTSWAPPED(numpy_array);
    const int number = is_cache ? PyArray_TYPE(numpy_array) : NPY_NOTYPE;
    if (number != NPY_FLOAT32 && number != NPY_FLOAT16 && number != NPY_INT8) {
        raise_value_error("cache must be a float32, float16 or int8 array [*, 2, *, *, *], got %s", describe(array).c_str());
    }
    const std::int64_t item_size = PyArray_ITEMSIZE(numpy_array);
    const std::int64_t width = PyArray_DIM(numpy_array, 4);
    if (PyArray_SIZE(numpy_array) > 0 &&
        ((width > 1 && PyArray_STRIDE(numpy_array, 4) != item_size) ||
         (PyArray_DIM(numpy_array, 3) > 1 && PyArray_STRIDE(numpy_array, 3) != width * item_size))) {
        raise_value_error("cache must be contiguous in its last two axes");
    }
    if (!PyArray_ISALIGNED(numpy_array)) raise_value_error("cache must be aligned to its element type");
    if (!PyArray_ISWRITEABLE(numpy_array)) raise_value_error("cache must be writable, got a read-only array");
    const std::int64_t scale_bytes = number == NPY_INT8 ? 4 : 0;
    if (width <= scale_bytes) raise_value_error("cache of int8 must have more than %d columns", static_cast<int>(scale_bytes));
    return {number == NPY_FLOAT32   ? KvType::float32
            : number == NPY_FLOAT16 ? KvType::float16
                                    : KvType::int8,
            static_cast<std::uint8_t*>(PyArray_DATA(numpy_array)),
            PyArray_DIM(numpy_array, 0),
            PyArray_DIM(numpy_array, 2),
            PyArray_DIM(numpy_array, 3),
            width - scale_bytes,
            PyArray_STRIDE(numpy_array, 0),
            PyArray_STRIDE(numpy_array, 1),
            PyArray_STRIDE(numpy_array, 2)};
}

template <class T>
NewArray<T> new_array(std::initializer_list<std::int64_t> shape) {
    npy_intp dimensions[8];
    int ndim = 0;
    for (const std::int64_t size : shape) dimensions[ndim++] = static_cast<npy_intp>(size);
    PyObject* made = PyArray_SimpleNew(ndim, dimensions, NumpyType<T>::number);
    if (made == nullptr) throw nb::python_error();
    return {nb::steal(made), static_cast<T*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(made)))};
}
template NewArray<float> new_array(std::initializer_list<std::int64_t>);
template NewArray<std::int32_t> new_array(std::initializer_list<std::int64_t>);
template NewArray<bool> new_array(std::initializer_list<std::int64_t>);

NewArray<float> new_array_like(nb::handle array) {
    auto* numpy_array = reinterpret_cast<PyArrayObject*>(array.ptr());
    PyObject* made = PyArray_SimpleNew(PyArray_NDIM(numpy_array), PyArray_DIMS(numpy_array), NPY_FLOAT32);
    if (made == nullptr) throw nb::python_error();
    return {nb::steal(made), static_cast<float*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(made)))};
}

template <class T>
void check_range(const Vector<const T>& ids, const char* name, std::int64_t limit) {
    for (std::int64_t i = 0; i < ids.size; ++i) {
        const std::int64_t id = ids.data[i];
        if (id < 0 || id >= limit) {
            raise_value_error("%s must lie in 0..%lld, got %lld at index %lld", name, static_cast<long long>(limit - 1),
                              static_cast<long long>(id), static_cast<long long>(i));
        }
    }
}
template void check_range(const Vector<const std::int32_t>&, const char*, std::int64_t);
template void check_range(const Vector<const std::int64_t>&, const char*, std::int64_t);

}  // namespace octavo
