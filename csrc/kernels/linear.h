// The float32 linear kernel; see LinearShare in kernels.h.
#pragma once

#include "kernels/kernels.h"
#include "kernels/tile.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {

void linear(const LinearShare& share);

void expand(ElementKind kind, const void* from, std::int64_t count, float* out);

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
