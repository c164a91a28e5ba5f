// Low-rank adapters: border checks, and the split of rows over threads.
#include "adapters.h"

#include <vector>

#include "dispatch.h"
#include "scratch.h"
#include "thread_pool.h"

namespace octavo {
namespace {

constexpr double kProduct_ns = 0.08;  // of a multiply-add on one thread, whose weights come from a cache

// Largest ranks of the slots' parts, for the split only.
double row_ns(const AdapterWeights& weights) {
    const double floats = static_cast<double>(weights.down.shape[1] * weights.down.shape[2] + weights.up.shape[1] * weights.up.shape[2]);
    return floats * kProduct_ns;
}

// The rows that have an adapter, by slot: neighbours share the loads of its weights.
std::vector<std::int64_t> rows_by_slot(const std::int32_t* slots, std::int64_t count, std::int64_t num_slots) {
    std::vector<std::int64_t> places(static_cast<std::size_t>(num_slots) + 1, 0);
    for (std::int64_t row = 0; row < count; ++row) {
        if (slots[row] >= 0) ++places[static_cast<std::size_t>(slots[row]) + 1];
    }
    for (std::size_t slot = 1; slot < places.size(); ++slot) places[slot] += places[slot - 1];
    std::vector<std::int64_t> rows(static_cast<std::size_t>(places.back()));
    for (std::int64_t row = 0; row < count; ++row) {
        if (slots[row] >= 0) rows[static_cast<std::size_t>(places[static_cast<std::size_t>(slots[row])]++)] = row;
    }
    return rows;
}

}  // namespace

void run_add_adapters(const Matrix<float>& y, const Matrix<const float>& x, const std::int32_t* slots,
                      const AdapterWeights& weights) {
    const auto kernel = kernels().adapt_rows;
    const std::int64_t max_rank = weights.up.shape[1];
    const std::int64_t num_parts = weights.starts.size - 1;
    const std::vector<std::int64_t> rows = rows_by_slot(slots, x.rows, weights.num_slots());
    if (rows.empty()) return;
    parallel_ranges(static_cast<std::int64_t>(rows.size()), row_ns(weights), [&](std::int64_t begin, std::int64_t end) {
        float* scratch = thread_scratch(kAdapterRows * max_rank);
        while (begin < end) {
            const std::int32_t slot = slots[rows[static_cast<std::size_t>(begin)]];
            const float* inputs[kAdapterRows];
            float* outputs[kAdapterRows];
            int count = 0;
            for (; begin < end && count < kAdapterRows; ++begin, ++count) {
                const std::int64_t row = rows[static_cast<std::size_t>(begin)];
                if (slots[row] != slot) break;
                inputs[count] = x.row(row);
                outputs[count] = y.row(row);
            }
            kernel({inputs, outputs, count, x.columns, y.columns, weights.down.row(slot, 0), weights.up.row(slot, 0),
                    weights.ranks.row(slot), weights.starts.data, num_parts, max_rank, scratch});
        }
    });
}

AdapterWeights read_adapter_weights(nb::handle down_array, nb::handle up_array, nb::handle ranks_array, nb::handle starts_array,
                                    std::int64_t in_features, std::int64_t out_features) {
    const Vector<const std::int32_t> starts = read_vector<std::int32_t>(starts_array, "starts");
    const std::int64_t num_parts = starts.size - 1;
    const Tensor3<const float> up = read_tensor3(up_array, "up", kAnySize, kAnySize, out_features);
    const Tensor3<const float> down = read_tensor3(down_array, "down", up.shape[0], num_parts * up.shape[1], in_features);
    const Matrix<const std::int32_t> ranks = read_matrix<std::int32_t>(ranks_array, "ranks", up.shape[0], num_parts);
    if (num_parts < 1 || starts.data[0] != 0 || starts.data[num_parts] != out_features) {
        raise_value_error("starts must lead from 0 to the %lld outputs", static_cast<long long>(out_features));
    }
    for (std::int64_t part = 0; part < num_parts; ++part) {
        if (starts.data[part] > starts.data[part + 1]) raise_value_error("starts must not fall");
    }
    const bool contiguous = down.stride[1] == in_features && up.stride[1] == out_features;
    if (!contiguous) raise_value_error("down and up must be contiguous");
    return {down, up, ranks, starts};
}

void check_adapter_slots(const Vector<const std::int32_t>& slots, std::int64_t num_slots) {
    for (std::int64_t i = 0; i < slots.size; ++i) {
        if (slots.data[i] < -1 || slots.data[i] >= num_slots) {
            raise_value_error("slots must be from -1 to %lld, got %d", static_cast<long long>(num_slots - 1), slots.data[i]);
        }
    }
}

namespace {

void add_adapters(nb::handle y_array, nb::handle x_array, nb::handle slots_array, nb::handle down, nb::handle up, nb::handle ranks,
                  nb::handle starts) {
    const Matrix<const float> x = read_matrix<float>(x_array, "x");
    const Matrix<float> y = read_writable_matrix(y_array, "y", x.rows);
    const Vector<const std::int32_t> slots = read_vector<std::int32_t>(slots_array, "slots", x.rows);
    const AdapterWeights weights = read_adapter_weights(down, up, ranks, starts, x.columns, y.columns);
    check_adapter_slots(slots, weights.num_slots());
    nb::gil_scoped_release nogil;
    run_add_adapters(y, x, slots.data, weights);
}

}  // namespace

void bind_adapters(nb::module_& m) {
    m.def("add_adapters", &add_adapters, nb::arg("y"), nb::arg("x"), nb::arg("slots"), nb::arg("down"), nb::arg("up"),
          nb::arg("ranks"), nb::arg("starts"));
}

}  // namespace octavo
