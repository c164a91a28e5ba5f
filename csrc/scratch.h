// Memory that a thread keeps between tiles, so that a kernel's working set stays warm and nothing is allocated per call.
#pragma once

#include <cstdint>

namespace octavo {

// At least `count` floats of the calling thread, aligned to a cache line; valid until its next call. Contents are arbitrary.
float* thread_scratch(std::int64_t count);

}  // namespace octavo
