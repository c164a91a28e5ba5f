// Which instruction sets this CPU has.
#pragma once

namespace octavo {

// Instruction sets; each has its own build of csrc/kernels. A later one is better where a machine has both, but need not contain
// the earlier ones.
enum class Isa { portable = 0, avx2 = 1, avx_vnni = 2, avx512 = 3, avx512_vnni = 4 };

constexpr Isa kIsas[] = {Isa::portable, Isa::avx2, Isa::avx_vnni, Isa::avx512, Isa::avx512_vnni};

const char* isa_name(Isa isa);

// True if this build holds it, and this CPU and operating system support it.
bool supports(Isa isa);

// The best instruction set that is supported.
Isa best_isa();

}  // namespace octavo
