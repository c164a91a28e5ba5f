// The table of kernels: one for every instruction set, each filled by csrc/kernels/table.cpp in its own namespace.
//
// A kernel computes a share of an op for one thread. It gets plain pointers that were checked before, allocates nothing and
// throws nothing. Everything in csrc/kernels lives in a namespace or has internal linkage, and calls no inline function of the
// standard library that the compiler may emit out of line: the linker keeps one copy of such a function for all, and it could
// be the one built for AVX-512.
#pragma once

#include <cstdint>

namespace octavo {

// Element-wise functions of one argument; `parameter` of Kernels::map is the factor of scale and the cap of softcap.
enum class Function { silu, gelu, gelu_tanh, relu, relu2, scale, softcap };

// A share of y = x w^T + bias. The weight lies in panels of `panel_width` output columns, each [in_features][panel_width],
// columns beyond out_features zero.
struct LinearShare {
    const float* x;  // first row of the share
    std::int64_t x_stride;
    std::int64_t num_rows;
    std::int64_t in_features;
    const float* panels;  // first panel of the share
    std::int64_t num_panels;
    std::int64_t num_columns;  // output columns of the share: num_panels * panel_width, less in the weight's last panel
    const float* bias;         // of the share's first column, or null
    float* out;                // first row and column of the share
    std::int64_t out_stride;
    float* scratch;  // kLinearScratch floats of this thread
};

constexpr std::int64_t kLinearRowBlock = 96;  // rows whose slice of inputs stays in the second-level cache
constexpr std::int64_t kLinearDepthBlock = 256;
constexpr std::int64_t kLinearScratchStride = kLinearDepthBlock + 16;  // not a power of two: rows spread over cache sets
constexpr std::int64_t kLinearScratch = kLinearRowBlock * kLinearScratchStride;

struct Kernels {
    const char* isa;
    int panel_width;

    void (*linear)(const LinearShare& share);

    // One row of n elements each.
    void (*rms_norm)(const float* x, const float* weight, float eps, std::int64_t n, float* out);
    // total = x + residual; out = rms_norm(total).
    void (*add_rms_norm)(const float* x, const float* residual, const float* weight, float eps, std::int64_t n, float* out,
                         float* total);
    void (*layer_norm)(const float* x, const float* weight, const float* bias, float eps, std::int64_t n, float* out);
    void (*add)(const float* x, const float* y, std::int64_t n, float* out);
    void (*map)(Function function, const float* x, float parameter, std::int64_t n, float* out);
    // out = function(gate) * up
    void (*map_and_mul)(Function function, const float* gate, const float* up, std::int64_t n, float* out);
    // One token: heads of x at head_stride, out contiguous [num_heads, head_dim].
    void (*rope)(const float* x, std::int64_t head_stride, std::int64_t num_heads, std::int64_t head_dim,
                 const float* cos_sin, std::int64_t rotary_dim, float* out);
};

#if defined(OCTAVO_WITH_AVX2)
namespace avx2 {
extern const Kernels kernels;
}
#endif
#if defined(OCTAVO_WITH_AVX512)
namespace avx512 {
extern const Kernels kernels;
}
#endif
namespace portable {
extern const Kernels kernels;
}

}  // namespace octavo
