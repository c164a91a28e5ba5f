// The sampling family of ops: has_nan, argmax, log_softmax, top_logprobs, apply_penalties, apply_bitmask, sample.
#pragma once

#include <nanobind/nanobind.h>

namespace octavo {

// Binds the family, with the names and the contract of octavo/ops/interface.py.
void bind_sampling(nanobind::module_& m);

}  // namespace octavo
