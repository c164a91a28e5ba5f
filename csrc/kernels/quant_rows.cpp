// Quantising activations, expanding scales, and putting codes into the order of the panels.
#include "kernels/half.h"
#include "kernels/quant_linear.h"
#include "kernels/simd.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {
namespace {

constexpr float kSteps = 254.0f;
constexpr float kMaxCode = 127.0f;
constexpr float kTiny = 1e-30f;  // below it kSteps / x overflows; such a group counts as constant

// 16 or 32 activations, all there.
template <int kGroup>
OCTAVO_INLINE void quantize_group(const float* x, std::uint8_t* record) {
    constexpr int kVectors = kGroup / kLanes;
    Vec values[kVectors];
    Vec largest = set(-3.4e38f), negated = set(-3.4e38f), poison = set(0.0f);
    for (int v = 0; v < kVectors; ++v) {
        values[v] = load(x + v * kLanes);
        largest = max(values[v], largest);  // passes over NaN ...
        negated = max(sub(set(0.0f), values[v]), negated);
        poison = fma(values[v], set(0.0f), poison);  // ... which stays here, as infinity * 0 does
    }
    const float high = max_lanes(largest), low = -max_lanes(negated);
    const float range = high - low;
    const bool constant = !(range >= kTiny);
    const float zero = 0.5f * (high + low);
    const Vec inverse = set(constant ? 0.0f : kSteps / range);
    float codes[kGroup];
    for (int v = 0; v < kVectors; ++v) {
        // max and min return the second operand for NaN: the code of a NaN is a number.
        store(codes + v * kLanes, round(min(max(mul(sub(values[v], set(zero)), inverse), set(-kMaxCode)), set(kMaxCode))));
    }
    std::int32_t sum = 0;
    for (int i = 0; i < kGroup; ++i) {
        const std::int32_t code = static_cast<std::int32_t>(codes[i]);
        record[i] = static_cast<std::uint8_t>(code);
        sum += code;
    }
    RecordTail tail;
    tail.scale = constant ? 0.0f : range / kSteps;
    tail.zero = zero + sum_lanes(poison);
    tail.sum = tail.scale * static_cast<float>(sum) + static_cast<float>(kGroup) * tail.zero;
    tail.minus_128 = -128 * sum;
    std::memcpy(record + kGroup, &tail, sizeof(tail));
}

template <int kGroup>
void quantize(const float* x, std::int64_t size, std::uint8_t* records) {
    for (; size >= kGroup; size -= kGroup, x += kGroup, records += record_bytes(kGroup)) quantize_group<kGroup>(x, records);
    if (size > 0) {
        float padded[kGroup] = {};
        std::memcpy(padded, x, static_cast<std::size_t>(size) * sizeof(float));
        quantize_group<kGroup>(padded, records);
    }
}

OCTAVO_INLINE std::uint32_t read_four(const std::uint8_t* p) {
    std::uint32_t four;
    std::memcpy(&four, p, sizeof(four));
    return four;
}

}  // namespace

void quantize_row(const float* x, std::int64_t size, int group, std::uint8_t* records) {
    group == 32 ? quantize<32>(x, size, records) : quantize<16>(x, size, records);
}

void interleave_codes(const std::uint8_t* const* rows, std::int64_t size, int bits, std::uint8_t* panel) {
    const std::int64_t step = bits == 8 ? 4 : 8;
    for (std::int64_t k = 0; k < size; k += step) {
        for (std::int64_t c = 0; c < kQuantPanel; ++c, panel += 4) {
            std::uint32_t four = read_four(rows[c] + k);
            if (bits == 4) four |= read_four(rows[c] + k + 4) << 4;
            std::memcpy(panel, &four, sizeof(four));
        }
    }
}

void expand_scales(ScaleKind kind, int group, const std::uint8_t* fine, const std::uint8_t* coarse, std::int64_t first,
                   std::int64_t num_groups, float* out) {
    const std::int64_t start = first * kQuantPanel, count = num_groups * kQuantPanel;
    if (kind == ScaleKind::single) {
        std::memcpy(out, fine + start * 4, static_cast<std::size_t>(count) * sizeof(float));
    } else if (kind == ScaleKind::half) {
        const Half* halves = reinterpret_cast<const Half*>(fine) + start;
        for (std::int64_t i = 0; i < count; i += kLanes) store(out + i, load(halves + i));
    } else {
        const std::int8_t* factors = reinterpret_cast<const std::int8_t*>(fine) + start;
        const Half* halves = reinterpret_cast<const Half*>(coarse);
        for (std::int64_t g = 0; g < num_groups; ++g) {
            const Half* super = halves + (first + g) * group / kQuantSuperGroup * kQuantPanel;
            float* to = out + g * kQuantPanel;
            for (int c = 0; c < kQuantPanel; c += kLanes) store(to + c, load(super + c));
            for (int c = 0; c < kQuantPanel; ++c) to[c] *= static_cast<float>(factors[g * kQuantPanel + c]);
        }
    }
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
