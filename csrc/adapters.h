// Linear layers and embeddings to which low-rank adapters (LoRA) add.
#pragma once

#include <string>
#include <vector>

#include "arrays.h"
#include "weight.h"

namespace octavo {

// The adapters of one linear layer, by slot; see AdapterSlots in octavo/ops/interface.py.
//
// A slot holds, in the type of the adapter's file: of all parts' first matrices, stacked by rank, [in][kAdapterColumns] for every
// kAdapterColumns ranks; then of each part's second matrix [rank][kAdapterOutputs] for every kAdapterOutputs outputs. Both are read
// from end to end in this order; what fills them up is zero.
class AdapterSlots {
  public:
    struct Slot {
        bool is_quantized = false;  // 8 bits: see quant_adapters.h
        ElementKind kind;           // otherwise
        WeightMemory memory;
        std::int64_t capacity = 0;  // bytes
        std::vector<std::int64_t> ranks;  // of each part; 0: no adapter
        std::vector<float> scales;        // of each rank of all parts, filled up to whole kAdapterColumns; empty: no adapter

        void reserve(std::int64_t size_bytes);
    };

    // Raises ValueError unless all sizes are positive.
    AdapterSlots(std::vector<std::int64_t> out_sizes, std::int64_t in_features, std::int64_t num_slots);

    // adapters: of each part None or (down [r, in], up [out, r], scale), of float32 or the bits of 16-bit numbers as `type_name` says; int8:
    // see pack_quantized.
    // Raises ValueError, having changed nothing, when they do not fit.
    void put(std::int64_t slot, const std::string& type_name, nb::list adapters);

    // Raises ValueError unless they are adapters of a layer of this size.
    void check_layer(std::int64_t out_features, std::int64_t in_features) const;

    const Slot& slot(std::int64_t index) const { return slots_[static_cast<std::size_t>(index)]; }
    const std::vector<std::int64_t>& out_sizes() const { return out_sizes_; }
    std::int64_t in_features() const { return in_features_; }
    std::int64_t out_features() const { return out_features_; }
    std::int64_t num_slots() const { return static_cast<std::int64_t>(slots_.size()); }

  private:
    template <class Element>
    void pack(Slot& slot, const nb::list& adapters);

    std::vector<std::int64_t> out_sizes_;
    std::int64_t in_features_;
    std::int64_t out_features_ = 0;
    std::vector<Slot> slots_;
};

// Rows of one adapter that are computed together. first: their place in the hidden values. is_alone: no other group has this adapter
struct RowGroup {
    const AdapterSlots::Slot* slot;
    std::int64_t rows[kAdapterRows];
    int count;
    std::int64_t first;
    bool is_alone;
};

// The values between the two products, [rows][stride], kept by the calling thread; of 8-bit adapters also rounded, behind them.
struct Hidden {
    float* data;
    std::int64_t stride;
};

// Raises ValueError unless every slot is -1 or one of the adapters'.
void check_adapter_slots(const Vector<const std::int32_t>& slots, std::int64_t num_slots);

// out [T, O] = x w^T + bias + scale * up(down(x)) of each row's adapter, none where its slot is -1. Needs no GIL.
void run_adapted_linear(const Matrix<const float>& x, const Weight& weight, const float* bias, const std::int32_t* slots,
                        const AdapterSlots& adapters, float* out);

// The same as run_embedding_share, plus what each row's adapter has for its id where the table has that. Needs no GIL.
void run_adapted_embedding(const std::int32_t* ids, std::int64_t count, const Weight& table, std::int64_t first_id,
                           const std::int32_t* slots, const AdapterSlots& adapters, float* out);

// Binds AdapterSlots, adapted_linear and adapted_embedding.
void bind_adapters(nb::module_& m);

}  // namespace octavo
