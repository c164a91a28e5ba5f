#include "cpu_features.h"

#if defined(OCTAVO_WITH_AVX2)
#include <cpuid.h>
#endif

namespace octavo {
namespace {

#if defined(OCTAVO_WITH_AVX2)

// Leaf 7, subleaf 1, EAX bit 4; GCC 12's builtin does not know it.
bool has_avx_vnni() {
    unsigned int eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax >> 4 & 1) != 0;
}

#endif

}  // namespace

const char* isa_name(Isa isa) {
    switch (isa) {
        case Isa::avx512_vnni: return "avx512_vnni";
        case Isa::avx512: return "avx512";
        case Isa::avx_vnni: return "avx_vnni";
        case Isa::avx2: return "avx2";
        case Isa::portable: break;
    }
    return "portable";
}

bool supports(Isa isa) {
#if defined(OCTAVO_WITH_AVX2)
    // The builtin also asks the operating system (XGETBV) whether it saves the wide registers.
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    switch (isa) {
        case Isa::avx512_vnni: return avx512 && __builtin_cpu_supports("avx512vnni");
        case Isa::avx512: return avx512;
        case Isa::avx_vnni: return avx2 && has_avx_vnni();
        case Isa::avx2: return avx2;
        case Isa::portable: break;
    }
#endif
    return isa == Isa::portable;
}

Isa best_isa() {
    Isa best = Isa::portable;
    for (Isa isa : kIsas) {
        if (supports(isa)) best = isa;
    }
    return best;
}

}  // namespace octavo
