// Unpacks GGUF's blocks. Layouts and formulas: ggml-common.h and ggml-quants.c of ggml.
//
// Codes become unsigned bytes with the format's bias added (quant_format.h): 128 for 8-bit codes, 8 for signed 4-bit ones. Each
// reader makes the same products as ggml's dequantisation, so that the weights are the same to the bit.
#include "gguf_blocks.h"

#include <cstring>

namespace octavo {
namespace {

using Bytes = const std::uint8_t*;

template <class T>
T read_as(Bytes p) {
    T value;
    std::memcpy(&value, p, sizeof(value));
    return value;
}

void write_half(std::uint8_t* scales, std::int64_t index, Bytes half) { std::memcpy(scales + 2 * index, half, 2); }

// -- blocks of 32: one float16 scale, maybe a float16 minimum -------------------------------------------------------------------

void read_q4_0(Bytes block, std::int64_t num_blocks, const QuantRow& row) {
    for (std::int64_t b = 0; b < num_blocks; ++b, block += 18) {
        write_half(row.scales, b, block);
        std::uint8_t* codes = row.codes + 32 * b;
        for (int i = 0; i < 16; ++i) codes[i] = block[2 + i] & 15;
        for (int i = 0; i < 16; ++i) codes[16 + i] = block[2 + i] >> 4;
    }
}

void read_q4_1(Bytes block, std::int64_t num_blocks, const QuantRow& row) {
    for (std::int64_t b = 0; b < num_blocks; ++b, block += 20) {
        write_half(row.scales, b, block);
        write_half(row.minimums, b, block + 2);
        std::uint8_t* codes = row.codes + 32 * b;
        for (int i = 0; i < 16; ++i) codes[i] = block[4 + i] & 15;
        for (int i = 0; i < 16; ++i) codes[16 + i] = block[4 + i] >> 4;
    }
}

void read_five_bits(Bytes high, Bytes low, int bias, std::uint8_t* codes) {
    const std::uint32_t bits = read_as<std::uint32_t>(high);
    for (int i = 0; i < 16; ++i) {
        codes[i] = static_cast<std::uint8_t>((low[i] & 15) + (bits >> i & 1) * 16 + bias);
        codes[16 + i] = static_cast<std::uint8_t>((low[i] >> 4) + (bits >> (i + 16) & 1) * 16 + bias);
    }
}

void read_q5_0(Bytes block, std::int64_t num_blocks, const QuantRow& row) {
    for (std::int64_t b = 0; b < num_blocks; ++b, block += 22) {
        write_half(row.scales, b, block);
        read_five_bits(block + 2, block + 6, 128 - 16, row.codes + 32 * b);
    }
}

void read_q5_1(Bytes block, std::int64_t num_blocks, const QuantRow& row) {
    for (std::int64_t b = 0; b < num_blocks; ++b, block += 24) {
        write_half(row.scales, b, block);
        write_half(row.minimums, b, block + 2);
        read_five_bits(block + 4, block + 8, 128, row.codes + 32 * b);
    }
}

void read_q8_0(Bytes block, std::int64_t num_blocks, const QuantRow& row) {
    for (std::int64_t b = 0; b < num_blocks; ++b, block += 34) {
        write_half(row.scales, b, block);
        for (int i = 0; i < 32; ++i) row.codes[32 * b + i] = block[2 + i] ^ 0x80;
    }
}

// The non-linear 4-bit types index this table.
constexpr std::int8_t kNonLinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

void read_non_linear(Bytes packed, std::uint8_t* codes) {
    for (int i = 0; i < 16; ++i) {
        codes[i] = static_cast<std::uint8_t>(kNonLinear[packed[i] & 15] + 128);
        codes[16 + i] = static_cast<std::uint8_t>(kNonLinear[packed[i] >> 4] + 128);
    }
}

void read_iq4_nl(Bytes block, std::int64_t num_blocks, const QuantRow& row) {
    for (std::int64_t b = 0; b < num_blocks; ++b, block += 18) {
        write_half(row.scales, b, block);
        read_non_linear(block + 2, row.codes + 32 * b);
    }
}

// -- blocks of 256: float16 scale and minimum, times small integers per group ---------------------------------------------------

// ggml subtracts minimum * factor; here it is added.
std::uint16_t negated_half(Bytes half) { return read_as<std::uint16_t>(half) ^ 0x8000; }

// The 8 scales and 8 minimums of 6 bits in the 12 bytes of Q4_K and Q5_K.
void read_six_bit_pairs(Bytes packed, std::uint8_t* scales, std::uint8_t* minimums) {
    for (int j = 0; j < 4; ++j) {
        scales[j] = packed[j] & 63;
        minimums[j] = packed[j + 4] & 63;
        scales[j + 4] = static_cast<std::uint8_t>((packed[j + 8] & 15) | packed[j] >> 6 << 4);
        minimums[j + 4] = static_cast<std::uint8_t>(packed[j + 8] >> 4 | packed[j + 4] >> 6 << 4);
    }
}

void read_q2_k(Bytes block, std::int64_t num_blocks, const QuantRow& row) {
    for (std::int64_t b = 0; b < num_blocks; ++b, block += 84) {
        Bytes packed = block + 16;
        row.coarse_scales[b] = read_as<std::uint16_t>(block + 80);
        row.coarse_minimums[b] = negated_half(block + 82);
        for (int g = 0; g < 16; ++g) {
            row.scales[16 * b + g] = block[g] & 15;
            row.minimums[16 * b + g] = block[g] >> 4;
        }
        for (int i = 0; i < 256; ++i) row.codes[256 * b + i] = packed[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    }
}

void read_q3_k(Bytes block, std::int64_t num_blocks, const QuantRow& row) {
    for (std::int64_t b = 0; b < num_blocks; ++b, block += 110) {
        Bytes high = block, packed = block + 32, factors = block + 96;
        row.coarse_scales[b] = read_as<std::uint16_t>(block + 108);
        for (int g = 0; g < 16; ++g) {
            const int low_bits = g < 8 ? factors[g] & 15 : factors[g - 8] >> 4;
            const int high_bits = factors[8 + g % 4] >> (g / 4 * 2) & 3;
            row.scales[16 * b + g] = static_cast<std::uint8_t>((low_bits | high_bits << 4) - 32);
        }
        for (int i = 0; i < 256; ++i) {
            const int low = packed[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
            const int bit = high[i % 32] >> (i / 32) & 1;
            row.codes[256 * b + i] = static_cast<std::uint8_t>(low + bit * 4 - 4 + 8);
        }
    }
}

void read_q4_k(Bytes block, std::int64_t num_blocks, const QuantRow& row) {
    for (std::int64_t b = 0; b < num_blocks; ++b, block += 144) {
        row.coarse_scales[b] = read_as<std::uint16_t>(block);
        row.coarse_minimums[b] = negated_half(block + 2);
        read_six_bit_pairs(block + 4, row.scales + 8 * b, row.minimums + 8 * b);
        for (int pair = 0; pair < 4; ++pair) {
            Bytes packed = block + 16 + 32 * pair;
            std::uint8_t* codes = row.codes + 256 * b + 64 * pair;
            for (int i = 0; i < 32; ++i) codes[i] = packed[i] & 15;
            for (int i = 0; i < 32; ++i) codes[32 + i] = packed[i] >> 4;
        }
    }
}

void read_q5_k(Bytes block, std::int64_t num_blocks, const QuantRow& row) {
    for (std::int64_t b = 0; b < num_blocks; ++b, block += 176) {
        row.coarse_scales[b] = read_as<std::uint16_t>(block);
        row.coarse_minimums[b] = negated_half(block + 2);
        read_six_bit_pairs(block + 4, row.scales + 8 * b, row.minimums + 8 * b);
        Bytes high = block + 16;
        for (int pair = 0; pair < 4; ++pair) {
            Bytes packed = block + 48 + 32 * pair;
            std::uint8_t* codes = row.codes + 256 * b + 64 * pair;
            for (int i = 0; i < 32; ++i) {
                codes[i] = static_cast<std::uint8_t>(128 + (packed[i] & 15) + (high[i] >> (2 * pair) & 1) * 16);
                codes[32 + i] = static_cast<std::uint8_t>(128 + (packed[i] >> 4) + (high[i] >> (2 * pair + 1) & 1) * 16);
            }
        }
    }
}

void read_q6_k(Bytes block, std::int64_t num_blocks, const QuantRow& row) {
    for (std::int64_t b = 0; b < num_blocks; ++b, block += 210) {
        row.coarse_scales[b] = read_as<std::uint16_t>(block + 208);
        std::memcpy(row.scales + 16 * b, block + 192, 16);
        for (int half = 0; half < 2; ++half) {
            Bytes low = block + 64 * half, high = block + 128 + 32 * half;
            std::uint8_t* codes = row.codes + 256 * b + 128 * half;
            for (int i = 0; i < 32; ++i) {
                codes[i] = static_cast<std::uint8_t>(96 + ((low[i] & 15) | (high[i] & 3) << 4));
                codes[32 + i] = static_cast<std::uint8_t>(96 + ((low[32 + i] & 15) | (high[i] >> 2 & 3) << 4));
                codes[64 + i] = static_cast<std::uint8_t>(96 + (low[i] >> 4 | (high[i] >> 4 & 3) << 4));
                codes[96 + i] = static_cast<std::uint8_t>(96 + (low[32 + i] >> 4 | high[i] >> 6 << 4));
            }
        }
    }
}

void read_iq4_xs(Bytes block, std::int64_t num_blocks, const QuantRow& row) {
    for (std::int64_t b = 0; b < num_blocks; ++b, block += 136) {
        row.coarse_scales[b] = read_as<std::uint16_t>(block);
        const std::uint32_t high = read_as<std::uint16_t>(block + 2);
        for (int g = 0; g < 8; ++g) {
            const int low_bits = block[4 + g / 2] >> (g % 2 * 4) & 15;
            row.scales[8 * b + g] = static_cast<std::uint8_t>((low_bits | (high >> (2 * g) & 3) << 4) - 32);
            read_non_linear(block + 8 + 16 * g, row.codes + 256 * b + 32 * g);
        }
    }
}

// 4-bit floats, which twice their value makes whole, with an exponent of two for 32 of them.
void read_mxfp4(Bytes block, std::int64_t num_blocks, const QuantRow& row) {
    static constexpr std::int8_t kDoubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    for (std::int64_t b = 0; b < num_blocks; ++b, block += 17) {
        const std::uint32_t exponent = block[0];
        const std::uint32_t half_scale = exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23;
        std::memcpy(row.scales + 4 * b, &half_scale, 4);
        std::uint8_t* codes = row.codes + 32 * b;
        for (int i = 0; i < 16; ++i) codes[i] = static_cast<std::uint8_t>(128 + kDoubled[block[1 + i] & 15]);
        for (int i = 0; i < 16; ++i) codes[16 + i] = static_cast<std::uint8_t>(128 + kDoubled[block[1 + i] >> 4]);
    }
}

constexpr BlockType kBlockTypes[] = {
    {"Q4_0", 32, 18, {4, 32, ScaleKind::half, false}, read_q4_0},
    {"Q4_1", 32, 20, {4, 32, ScaleKind::half, true}, read_q4_1},
    {"Q5_0", 32, 22, {8, 32, ScaleKind::half, false}, read_q5_0},
    {"Q5_1", 32, 24, {8, 32, ScaleKind::half, true}, read_q5_1},
    {"Q8_0", 32, 34, {8, 32, ScaleKind::half, false}, read_q8_0},
    {"Q2_K", 256, 84, {4, 16, ScaleKind::coarse, true}, read_q2_k},
    {"Q3_K", 256, 110, {4, 16, ScaleKind::coarse, false}, read_q3_k},
    {"Q4_K", 256, 144, {4, 32, ScaleKind::coarse, true}, read_q4_k},
    {"Q5_K", 256, 176, {8, 32, ScaleKind::coarse, true}, read_q5_k},
    {"Q6_K", 256, 210, {8, 16, ScaleKind::coarse, false}, read_q6_k},
    {"IQ4_NL", 32, 18, {8, 32, ScaleKind::half, false}, read_iq4_nl},
    {"MXFP4", 32, 17, {8, 32, ScaleKind::single, false}, read_mxfp4},
    {"IQ4_XS", 256, 136, {8, 32, ScaleKind::coarse, false}, read_iq4_xs},
};

}  // namespace

const BlockType* find_block_type(const char* name) {
    for (const BlockType& type : kBlockTypes) {
        if (std::strcmp(type.name, name) == 0) return &type;
    }
    return nullptr;
}

}  // namespace octavo
