#include "scratch.h"

#include <memory>

namespace octavo {
namespace {

constexpr std::int64_t kAlignedFloats = 16;

struct Scratch {
    std::unique_ptr<float[]> memory;
    std::int64_t size = 0;
};

thread_local Scratch scratch;

}  // namespace

float* thread_scratch(std::int64_t count) {
    if (scratch.size < count) {
        scratch.memory.reset();  // free before allocating: the old contents are not needed
        scratch.memory.reset(new float[static_cast<std::size_t>(count + kAlignedFloats)]());
        scratch.size = count;
    }
    const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(scratch.memory.get());
    const std::uintptr_t aligned = (address + 63) & ~std::uintptr_t{63};
    return scratch.memory.get() + (aligned - address) / sizeof(float);
}

}  // namespace octavo
