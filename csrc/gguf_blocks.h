// The block formats of GGUF that the quantised linear kernel can hold without rounding the weights again.
#pragma once

#include <cstdint>

#include "quant_weight.h"

namespace octavo {

struct BlockType {
    const char* name;  // GGML's
    std::int64_t block_size;
    std::int64_t block_bytes;
    QuantFormat format;
    void (*read)(const std::uint8_t* blocks, std::int64_t num_blocks, const QuantRow& row);
};

// Null if there is none of this name.
const BlockType* find_block_type(const char* name);

}  // namespace octavo
