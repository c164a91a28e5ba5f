// Fills this instruction set's table of kernels.
#include "kernels/adapters.h"
#include "kernels/attention.h"
#include "kernels/kernels.h"
#include "kernels/kv_cache.h"
#include "kernels/linear.h"
#include "kernels/quant_linear.h"
#include "kernels/rows.h"

#define OCTAVO_QUOTE_(x) #x
#define OCTAVO_QUOTE(x) OCTAVO_QUOTE_(x)

namespace octavo::OCTAVO_ISA_NAMESPACE {

extern const Kernels kernels = {
    OCTAVO_QUOTE(OCTAVO_ISA_NAMESPACE),
    kPanelWidth,
    linear,
    kQuantProductsPerNs,
    quant_linear,
    quantize_row,
    interleave_codes,
    expand,
    rms_norm,
    add_rms_norm,
    layer_norm,
    add_rows,
    map,
    map_and_mul,
    rope,
    shrink,
    expand_adapter,
    expand_quantized,
    store_kv,
    attend_span,
    merge_attention,
    finish_attention,
};

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
