// The table of kernels: one for every instruction set, each filled by csrc/kernels/table.cpp in its own namespace.
//
// A kernel computes a share of an op for one thread. It gets plain pointers that were checked before, allocates nothing and
// throws nothing. Everything in csrc/kernels lives in a namespace or has internal linkage, and calls no inline function of the
// standard library that the compiler may emit out of line: the linker keeps one copy of such a function for all, and it could
// be the one built for AVX-512.
#pragma once

#include <cstdint>

namespace octavo {

struct Kernels {
    const char* isa;
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
