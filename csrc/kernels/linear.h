// The float32 linear kernel; see LinearShare in kernels.h.
#pragma once

#include "kernels/kernels.h"
#include "kernels/simd.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {

constexpr int kPanelVectors = 2;
constexpr int kPanelWidth = kPanelVectors * kLanes;

void linear(const LinearShare& share);

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
