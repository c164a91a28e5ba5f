// The instruction set in use, and its kernels.
#pragma once

#include "cpu_features.h"
#include "kernels/kernels.h"

namespace octavo {

// Kernels of the active instruction set: the best one until set_isa chooses a lower one.
const Kernels& kernels();

// Makes `isa` active for what is packed and computed from now on. False if this build or this machine lacks it.
bool set_isa(Isa isa);

}  // namespace octavo
