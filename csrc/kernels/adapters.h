// Low-rank adapters (LoRA) on rows; see AdapterShare in kernels.h.
#pragma once

#include "kernels/kernels.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {

void adapt_rows(const AdapterShare& share);

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
