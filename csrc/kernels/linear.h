// The float32 linear kernel; see LinearShare in kernels.h.
#pragma once

#include "kernels/kernels.h"
#include "kernels/tile.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {

void linear(const LinearShare& share);

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
