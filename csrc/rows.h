// Ops that treat each row by itself.
#pragma once

#include "arrays.h"

namespace octavo {

// Binds take_rows, rms_norm, add_rms_norm, layer_norm, add, scale, softcap, activation, act_and_mul and rope.
void bind_rows(nb::module_& m);

}  // namespace octavo
