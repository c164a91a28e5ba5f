// Which instruction sets this CPU has.
#pragma once

namespace octavo {

// Instruction sets in rising order; each has its own build of csrc/kernels.
enum class Isa { portable = 0, avx2 = 1, avx512 = 2 };

constexpr Isa kIsas[] = {Isa::portable, Isa::avx2, Isa::avx512};

const char* isa_name(Isa isa);

// The best instruction set that this build holds and that this CPU and operating system support.
Isa best_isa();

}  // namespace octavo
