// What the calls of a tape are told: parts of rows when they are recorded, addresses and row counts when they are replayed.
#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include "arrays.h"
#include "attention.h"

namespace octavo {

// Part of each row of an intermediate result: `heads` times `columns` contiguous floats at `offset`.
struct View {
    std::int64_t slot;
    std::int64_t row_stride;
    std::int64_t offset;
    std::int64_t heads;
    std::int64_t columns;
};
using ViewTuple = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;

// One place of the arena (or, outside it, an argument of replay): rows of `width` floats, as many as the step has of `dimension`.
struct Slot {
    std::int64_t dimension;
    std::int64_t width;
};

// A step's argument that belongs to one KV cache group.
struct Group {
    StepRows rows;
    const std::int64_t* slot_mapping;
};

// What a replay knows: addresses and row counts.
struct Step {
    std::vector<std::int64_t> num_rows;  // by dimension
    mutable std::vector<float*> slots;
    mutable float* moved_slot = nullptr;  // where a slot lies that is elsewhere for two calls, see Tape::all_gather
    std::vector<Vector<const std::int32_t>> ids;
    std::vector<Group> groups;
};

}  // namespace octavo
