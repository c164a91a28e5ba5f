// Ops on the paged key/value cache.
#pragma once

#include "arrays.h"

namespace octavo {

// Binds store_kv and paged_attention.
void bind_attention(nb::module_& m);

}  // namespace octavo
