// Low-rank adapters: border checks, packing, and the split over threads.
#include "adapters.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include "dispatch.h"
#include "quant_adapters.h"
#include "thread_pool.h"

namespace octavo {
namespace {

std::int64_t round_up(std::int64_t size, std::int64_t unit) { return (size + unit - 1) / unit * unit; }

// One part's adapter as it was handed in.
template <class Element>
struct Pair {
    Matrix<const Element> down, up;
    float scale;
};

template <class Element>
Pair<Element> read_pair(nb::handle adapter, std::int64_t in_features, std::int64_t out_features) {
    const auto [down_array, up_array, scale] = nb::cast<std::tuple<nb::object, nb::object, float>>(adapter);
    const Matrix<const Element> down = read_matrix<Element>(down_array, "down", kAnySize, in_features);
    return {down, read_matrix<Element>(up_array, "up", out_features, down.rows), scale};
}

}  // namespace

AdapterSlots::AdapterSlots(std::vector<std::int64_t> out_sizes, std::int64_t in_features, std::int64_t num_slots)
    : out_sizes_(std::move(out_sizes)), in_features_(in_features), slots_(static_cast<std::size_t>(std::max<std::int64_t>(num_slots, 0))) {
    bool positive = in_features > 0 && num_slots > 0 && !out_sizes_.empty();
    for (const std::int64_t size : out_sizes_) {
        positive = positive && size > 0;
        out_features_ += size;
    }
    if (!positive) raise_value_error("adapters need at least one slot, input feature and output of each part");
}

void AdapterSlots::Slot::reserve(std::int64_t size_bytes) {
    if (capacity >= size_bytes) return;
    memory = allocate_weight(size_bytes);
    capacity = size_bytes;
}

template <class Element>
void AdapterSlots::pack(Slot& slot, const nb::list& adapters) {
    std::vector<Pair<Element>> pairs;
    std::vector<std::int64_t> ranks;
    std::vector<float> scales;
    std::int64_t num_up = 0;
    for (std::size_t part = 0; part < out_sizes_.size(); ++part) {
        pairs.push_back({});
        if (!adapters[part].is_none()) pairs.back() = read_pair<Element>(adapters[part], in_features_, out_sizes_[part]);
        ranks.push_back(pairs.back().down.rows);
        scales.insert(scales.end(), static_cast<std::size_t>(ranks.back()), pairs.back().scale);
        num_up += round_up(out_sizes_[part], kAdapterOutputs) * ranks.back();
    }
    scales.resize(static_cast<std::size_t>(round_up(static_cast<std::int64_t>(scales.size()), kAdapterColumns)));
    const std::int64_t num_down = static_cast<std::int64_t>(scales.size()) * in_features_;
    const std::int64_t size = (num_down + num_up) * static_cast<std::int64_t>(sizeof(Element));
    slot.reserve(size);
    slot.ranks = std::move(ranks);
    slot.scales = std::move(scales);
    Element* down = reinterpret_cast<Element*>(slot.memory.get());
    Element* up = down + num_down;
    std::fill(down, up + num_up, Element{0});
    std::int64_t column = 0;
    for (const Pair<Element>& pair : pairs) {
        for (std::int64_t r = 0; r < pair.down.rows; ++r, ++column) {
            Element* to = down + column / kAdapterColumns * kAdapterColumns * in_features_ + column % kAdapterColumns;
            for (std::int64_t i = 0; i < in_features_; ++i) to[i * kAdapterColumns] = pair.down.row(r)[i];
        }
        for (std::int64_t o = 0; o < pair.up.rows; ++o) {
            Element* to = up + o / kAdapterOutputs * kAdapterOutputs * pair.up.columns + o % kAdapterOutputs;
            for (std::int64_t r = 0; r < pair.up.columns; ++r) to[r * kAdapterOutputs] = pair.up.row(o)[r];
        }
        up += round_up(pair.up.rows, kAdapterOutputs) * pair.up.columns;
    }
}

void AdapterSlots::check_layer(std::int64_t out_features, std::int64_t in_features) const {
    if (in_features == in_features_ && out_features == out_features_) return;
    raise_value_error("the adapters are of a layer [%lld, %lld], not [%lld, %lld]", static_cast<long long>(out_features_),
                      static_cast<long long>(in_features_), static_cast<long long>(out_features),
                      static_cast<long long>(in_features));
}

void AdapterSlots::put(std::int64_t index, const std::string& type_name, nb::list adapters) {
    if (index < 0 || index >= num_slots()) raise_value_error("slot must be from 0 to %lld", static_cast<long long>(num_slots() - 1));
    if (nb::len(adapters) != out_sizes_.size()) raise_value_error("adapters must have %zu parts", out_sizes_.size());
    Slot& slot = slots_[static_cast<std::size_t>(index)];
    if (type_name == "int8") {
        pack_quantized(slot, adapters, out_sizes_, in_features_);
    } else if (type_name == "float32") {
        pack<float>(slot, adapters);
        slot.kind = ElementKind::float32;
    } else if (type_name == "float16" || type_name == "bfloat16") {
        pack<std::uint16_t>(slot, adapters);
        slot.kind = type_name == "float16" ? ElementKind::float16 : ElementKind::bfloat16;
    } else {
        raise_value_error("adapters must be float32, float16, bfloat16 or int8, got %s", type_name.c_str());
    }
    slot.is_quantized = type_name == "int8";
}

void check_adapter_slots(const Vector<const std::int32_t>& slots, std::int64_t num_slots) {
    for (std::int64_t i = 0; i < slots.size; ++i) {
        if (slots.data[i] < -1 || slots.data[i] >= num_slots) {
            raise_value_error("slots must be from -1 to %lld, got %d", static_cast<long long>(num_slots - 1), slots.data[i]);
        }
    }
}

namespace {

// The rows that have an adapter with anything for this layer, by slot: neighbours share what a cache holds of its weights.
std::vector<RowGroup> group_rows(const std::int32_t* slots, std::int64_t num_rows, const AdapterSlots& adapters) {
    std::vector<std::int64_t> places(static_cast<std::size_t>(adapters.num_slots()) + 1, 0);
    for (std::int64_t row = 0; row < num_rows; ++row) {
        if (slots[row] >= 0) ++places[static_cast<std::size_t>(slots[row]) + 1];
    }
    for (std::size_t slot = 1; slot < places.size(); ++slot) places[slot] += places[slot - 1];
    std::vector<std::int64_t> rows(static_cast<std::size_t>(places.back()));
    for (std::int64_t row = 0; row < num_rows; ++row) {
        if (slots[row] >= 0) rows[static_cast<std::size_t>(places[static_cast<std::size_t>(slots[row])]++)] = row;
    }
    std::vector<RowGroup> groups;
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const AdapterSlots::Slot* slot = &adapters.slot(slots[rows[i]]);
        if (slot->scales.empty()) continue;
        if (groups.empty() || groups.back().slot != slot || groups.back().count == kAdapterRows) {
            const bool is_alone = groups.empty() || groups.back().slot != slot;
            if (!is_alone) groups.back().is_alone = false;
            groups.push_back({slot, {}, 0, static_cast<std::int64_t>(i), is_alone});
        }
        groups.back().rows[groups.back().count++] = rows[i];
    }
    return groups;
}

Hidden hidden_memory(const std::vector<RowGroup>& groups) {
    thread_local std::vector<float> memory;
    std::size_t stride = 0;
    for (const RowGroup& group : groups) {
        const std::size_t records = group.slot->is_quantized ? static_cast<std::size_t>(hidden_record_floats(*group.slot)) : 0;
        stride = std::max(stride, group.slot->scales.size() + records);
    }
    const std::size_t size = static_cast<std::size_t>(groups.back().first + kAdapterRows) * stride;
    if (memory.size() < size) memory.resize(size);
    return {memory.data(), static_cast<std::int64_t>(stride)};
}

void shrink_group(const RowGroup& group, const LinearInput& input, const Hidden& hidden, const RowGroup* next) {
    const Matrix<const float>& x = input.x;
    if (group.slot->is_quantized) {
        return shrink_quantized(group, input.by_32, x.columns, hidden, next == nullptr ? nullptr : next->slot->memory.get());
    }
    const std::int64_t bytes = element_bytes(group.slot->kind) * kAdapterColumns * x.columns;
    ShrinkShare share{group.slot->kind, {}, group.count, x.columns, nullptr, nullptr, nullptr, hidden.stride};
    for (int k = 0; k < group.count; ++k) share.x[k] = x.row(group.rows[k]);
    const std::int64_t num_columns = static_cast<std::int64_t>(group.slot->scales.size());
    for (std::int64_t column = 0; column < num_columns; column += kAdapterColumns) {
        share.down = group.slot->memory.get() + column / kAdapterColumns * bytes;
        share.scales = group.slot->scales.data() + column;
        share.hidden = hidden.data + group.first * hidden.stride + column;
        kernels().shrink(share);
    }
}

// Blocks of kAdapterOutputs outputs of a layer's parts.
std::int64_t count_blocks(const AdapterSlots& adapters) {
    std::int64_t count = 0;
    for (const std::int64_t size : adapters.out_sizes()) count += round_up(size, kAdapterOutputs) / kAdapterOutputs;
    return count;
}

void expand_group(const RowGroup& group, const AdapterSlots& adapters, const Hidden& hidden, const Range& blocks, float* out,
                  const RowGroup* next) {
    const AdapterSlots::Slot& slot = *group.slot;
    if (slot.is_quantized) {
        const std::uint8_t* after = next == nullptr ? nullptr : quantized_up(*next->slot, adapters.in_features());
        return expand_quantized(group, adapters, hidden, blocks, out, after);
    }
    const std::int64_t bytes = element_bytes(slot.kind);
    const std::uint8_t* up = slot.memory.get() + static_cast<std::int64_t>(slot.scales.size()) * adapters.in_features() * bytes;
    ExpandShare share{slot.kind, hidden.data + group.first * hidden.stride, hidden.stride, group.count, 0, nullptr, {}, 0};
    std::int64_t start = 0, block = 0;
    for (std::size_t part = 0; part < slot.ranks.size(); start += adapters.out_sizes()[part++]) {
        share.rank = slot.ranks[part];
        const std::int64_t end = start + adapters.out_sizes()[part];
        for (std::int64_t column = start; column < end; column += kAdapterOutputs, ++block) {
            if (share.rank == 0 || block < blocks.begin || block >= blocks.end) continue;
            share.up = up + (column - start) * share.rank * bytes;
            share.num_outputs = std::min(kAdapterOutputs, end - column);
            for (int k = 0; k < group.count; ++k) share.y[k] = out + group.rows[k] * adapters.out_features() + column;
            kernels().expand_adapter(share);
        }
        up += round_up(end - start, kAdapterOutputs) * share.rank * bytes;
        share.hidden += share.rank;
    }
}

// Second products of all groups, from the hidden values.
void expand_groups(const std::vector<RowGroup>& groups, const AdapterSlots& adapters, const Hidden& hidden, float* out) {
    const std::int64_t num_blocks = count_blocks(adapters), num_groups = static_cast<std::int64_t>(groups.size());
    const std::int64_t num_shares = num_groups < num_threads() ? num_threads() : 1;
    const std::int64_t num_runs = std::min<std::int64_t>(num_groups, num_threads());
    parallel_for(num_runs * num_shares, [&](std::int64_t tile) {
        const Range blocks = tile_range(num_blocks, num_shares, tile % num_shares);
        const Range own = tile_range(num_groups, num_runs, tile / num_shares);
        for (std::int64_t i = own.begin; i < own.end; ++i) {
            const RowGroup* group = &groups[static_cast<std::size_t>(i)];
            expand_group(*group, adapters, hidden, blocks, out, i + 1 < own.end ? group + 1 : nullptr);
        }
    });
}

}  // namespace

void run_adapted_embedding(const std::int32_t* ids, std::int64_t count, const Weight& table, std::int64_t first_id,
                           const std::int32_t* slots, const AdapterSlots& adapters, float* out) {
    run_embedding_share(ids, count, table, first_id, out);
    std::vector<std::int32_t> own(slots, slots + count);
    for (std::int64_t i = 0; i < count; ++i) {
        if (ids[i] < first_id || ids[i] >= first_id + table.out_features()) own[static_cast<std::size_t>(i)] = -1;
    }
    const std::vector<RowGroup> groups = group_rows(own.data(), count, adapters);
    if (groups.empty()) return;
    for (const RowGroup& group : groups) {
        if (group.slot->is_quantized) raise_value_error("adapters of embeddings must not be int8");
    }
    const Hidden hidden = hidden_memory(groups);
    for (const RowGroup& group : groups) {
        const AdapterSlots::Slot& slot = *group.slot;
        const std::int64_t row_bytes = kAdapterColumns * element_bytes(slot.kind), num_ids = adapters.in_features();
        for (int k = 0; k < group.count; ++k) {
            float* values = hidden.data + (group.first + k) * hidden.stride;
            for (std::size_t column = 0; column < slot.scales.size(); ++column) {
                const std::int64_t vector = static_cast<std::int64_t>(column) / kAdapterColumns;
                const std::uint8_t* from = slot.memory.get() + (vector * num_ids + ids[group.rows[k]] - first_id) * row_bytes;
                if (column % kAdapterColumns == 0) kernels().expand(slot.kind, from, kAdapterColumns, values + column);
                values[column] *= slot.scales[column];
            }
        }
    }
    expand_groups(groups, adapters, hidden, out);
}

void run_adapted_linear(const Matrix<const float>& x, const Weight& weight, const float* bias, const std::int32_t* slots,
                        const AdapterSlots& adapters, float* out) {
    const std::vector<RowGroup> groups = group_rows(slots, x.rows, adapters);
    if (groups.empty()) return weight.linear(x, bias, out);
    const Hidden hidden = hidden_memory(groups);
    const std::int64_t num_runs = std::min<std::int64_t>(static_cast<std::int64_t>(groups.size()), num_threads());
    const std::function<void(const LinearInput&, std::int64_t)> shrink = [&](const LinearInput& input, std::int64_t index) {
        const Range own = tile_range(static_cast<std::int64_t>(groups.size()), num_runs, index);
        for (std::int64_t i = own.begin; i < own.end; ++i) {
            const RowGroup* group = &groups[static_cast<std::size_t>(i)];
            shrink_group(*group, input, hidden, i + 1 < own.end ? group + 1 : nullptr);
        }
    };
    const bool rounds = std::any_of(groups.begin(), groups.end(), [](const RowGroup& group) { return group.slot->is_quantized; });
    const Companion companion{num_runs, rounds ? 32 : 0, shrink};
    weight.linear(x, bias, out, &companion);
    expand_groups(groups, adapters, hidden, out);
}

namespace {

nb::object adapted_linear(nb::handle x_array, const Weight& weight, nb::handle bias_array, nb::handle slots_array,
                          const AdapterSlots& adapters) {
    const Matrix<const float> x = read_matrix<float>(x_array, "x", kAnySize, weight.in_features());
    const float* bias = bias_array.is_none() ? nullptr : read_vector<float>(bias_array, "bias", weight.out_features()).data;
    const Vector<const std::int32_t> slots = read_vector<std::int32_t>(slots_array, "slots", x.rows);
    check_adapter_slots(slots, adapters.num_slots());
    adapters.check_layer(weight.out_features(), weight.in_features());
    NewArray<float> out = new_array<float>({x.rows, weight.out_features()});
    nb::gil_scoped_release nogil;
    run_adapted_linear(x, weight, bias, slots.data, adapters, out.data);
    return std::move(out.object);
}

nb::object adapted_embedding(nb::handle ids_array, const Weight& table, std::int64_t first_id, std::int64_t num_ids,
                             nb::handle slots_array, const AdapterSlots& adapters) {
    const Vector<const std::int32_t> ids = read_vector<std::int32_t>(ids_array, "token_ids");
    check_range(ids, "token_ids", num_ids);
    const Vector<const std::int32_t> slots = read_vector<std::int32_t>(slots_array, "slots", ids.size);
    check_adapter_slots(slots, adapters.num_slots());
    adapters.check_layer(table.in_features(), table.out_features());
    NewArray<float> out = new_array<float>({ids.size, table.in_features()});
    nb::gil_scoped_release nogil;
    run_adapted_embedding(ids.data, ids.size, table, first_id, slots.data, adapters, out.data);
    return std::move(out.object);
}

}  // namespace

void bind_adapters(nb::module_& m) {
    nb::class_<AdapterSlots>(m, "AdapterSlots", "The low-rank adapters of one linear layer, by slot.")
        .def(nb::init<std::vector<std::int64_t>, std::int64_t, std::int64_t>(), nb::arg("out_sizes"), nb::arg("in_features"),
             nb::arg("num_slots"))
        .def("put", &AdapterSlots::put, nb::arg("slot"), nb::arg("type_name"), nb::arg("adapters"));
    m.def("adapted_linear", &adapted_linear, nb::arg("x"), nb::arg("weight"), nb::arg("bias").none(), nb::arg("slots"),
          nb::arg("adapters"));
    m.def("adapted_embedding", &adapted_embedding, nb::arg("token_ids"), nb::arg("table"), nb::arg("first_id"), nb::arg("num_ids"),
          nb::arg("slots"), nb::arg("adapters"));
}

}  // namespace octavo
