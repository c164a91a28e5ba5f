#include "cpu_features.h"

namespace octavo {

const char* isa_name(Isa isa) {
    switch (isa) {
        case Isa::avx512: return "avx512";
        case Isa::avx2: return "avx2";
        case Isa::portable: break;
    }
    return "portable";
}

Isa best_isa() {
#if defined(OCTAVO_WITH_AVX2) && defined(OCTAVO_WITH_AVX512)
    // The builtin also asks the operating system (XGETBV) whether it saves the wide registers.
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (avx512) return Isa::avx512;
    if (avx2) return Isa::avx2;
#endif
    return Isa::portable;
}

}  // namespace octavo
