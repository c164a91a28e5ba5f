// Low-rank adapters (LoRA) on rows; see ShrinkShare, ExpandShare and QuantExpandShare in kernels.h.
#pragma once

#include "kernels/kernels.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {

void shrink(const ShrinkShare& share);
void expand_adapter(const ExpandShare& share);
void expand_quantized(const QuantExpandShare& share);

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
