// Low-rank adapters (LoRA) added to the outputs of linear layers.
#pragma once

#include "arrays.h"

namespace octavo {

// The adapters of one linear layer, by slot; see AdapterWeights in octavo/ops/interface.py.
struct AdapterWeights {
    Tensor3<const float> down;       // [slots, parts * max_rank, in]
    Tensor3<const float> up;         // [slots, max_rank, out]
    Matrix<const std::int32_t> ranks;  // [slots, parts]
    Vector<const std::int32_t> starts;  // [parts + 1]

    std::int64_t num_slots() const { return ranks.rows; }
};

// Raises ValueError unless the arrays fit each other and a layer of these sizes.
AdapterWeights read_adapter_weights(nb::handle down, nb::handle up, nb::handle ranks, nb::handle starts,
                                    std::int64_t in_features, std::int64_t out_features);

// Raises ValueError unless every slot is -1 or one of the adapters'.
void check_adapter_slots(const Vector<const std::int32_t>& slots, std::int64_t num_slots);

// y [T, O] += up(down(x [T, I])) of each row's adapter; rows whose slot is -1 stay as they are. Needs no GIL.
void run_add_adapters(const Matrix<float>& y, const Matrix<const float>& x, const std::int32_t* slots,
                      const AdapterWeights& weights);

// Binds add_adapters.
void bind_adapters(nb::module_& m);

}  // namespace octavo
