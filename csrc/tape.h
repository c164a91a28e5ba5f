// A forward recorded as a flat list of op calls, replayed in one call per step.
//
// The recorder (octavo/ops/recording.py) decides which slot of the arena holds which intermediate result. A tape resolves slots
// to memory at each replay, for the rows of that step: slots lie side by side, so few rows touch little memory. It calls the
// same run_… functions as the ops one by one do, with the same results to the bit.
#pragma once

#include "arrays.h"

namespace octavo {

// Binds Tape.
void bind_tape(nb::module_& m);

}  // namespace octavo
