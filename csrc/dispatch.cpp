#include "dispatch.h"

#include <atomic>

namespace octavo {
namespace {

const Kernels* table_of(Isa isa) {
    switch (isa) {
#if defined(OCTAVO_WITH_AVX512_VNNI)
        case Isa::avx512_vnni: return &avx512_vnni::kernels;
#endif
#if defined(OCTAVO_WITH_AVX512)
        case Isa::avx512: return &avx512::kernels;
#endif
#if defined(OCTAVO_WITH_AVX_VNNI)
        case Isa::avx_vnni: return &avx_vnni::kernels;
#endif
#if defined(OCTAVO_WITH_AVX2)
        case Isa::avx2: return &avx2::kernels;
#endif
        default: return &portable::kernels;
    }
}

std::atomic<const Kernels*> active{table_of(best_isa())};

}  // namespace

const Kernels& kernels() { return *active.load(std::memory_order_relaxed); }

bool set_isa(Isa isa) {
    if (!supports(isa)) return false;
    active.store(table_of(isa));
    return true;
}

}  // namespace octavo
