#include "tape.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "adapters.h"
#include "attention.h"
#include "experts.h"
#include "rows.h"
#include "shared_group.h"
#include "tape_step.h"
#include "thread_pool.h"
#include "weight.h"

namespace octavo {
namespace {

class Tape {
  public:
    // `arena` [capacity] float32 holds `slots` (dimension, width); the first num_arguments of them lie outside it and are the
    // float arguments of replay. id_dimensions: the dimension of each of replay's id arguments.
    Tape(nb::object arena, const std::vector<std::pair<std::int64_t, std::int64_t>>& slots, std::int64_t num_arguments,
         std::vector<std::int64_t> id_dimensions, std::int64_t num_groups)
        : arena_(std::move(arena)), num_arguments_(num_arguments), id_dimensions_(std::move(id_dimensions)), num_groups_(num_groups) {
        memory_ = read_writable_vector(arena_, "arena");
        for (const auto& [dimension, width] : slots) slots_.push_back({dimension, width});
    }

    // -- recording: inputs, outputs, then constants -------------------------------------------------------------------

    void embedding(ViewTuple out, std::int64_t ids, nb::object table) {
        const Weight* weight = &hold<Weight>(table);
        limit_ids(ids, weight->out_features(), "ids");
        record("embedding", [=, to = view(out)](const Step& step) {
            const Vector<const std::int32_t>& values = step.ids[static_cast<std::size_t>(ids)];
            run_embedding(values.data, values.size, *weight, address(step, to));
        });
    }

    void embedding_share(ViewTuple out, std::int64_t ids, nb::object table, std::int64_t first_id, std::int64_t num_ids) {
        const Weight* weight = &hold<Weight>(table);
        limit_ids(ids, num_ids, "ids");
        record("embedding_share", [=, to = view(out)](const Step& step) {
            const Vector<const std::int32_t>& values = step.ids[static_cast<std::size_t>(ids)];
            run_embedding_share(values.data, values.size, *weight, first_id, address(step, to));
        });
    }

    void take_rows(ViewTuple x, ViewTuple out, std::int64_t rows) {
        row_limits_.emplace_back(rows, slots_.at(static_cast<std::size_t>(view(x).slot)).dimension);
        record("take_rows", [=, from = view(x), to = view(out)](const Step& step) {
            const Vector<const std::int32_t>& values = step.ids[static_cast<std::size_t>(rows)];
            run_take_rows(matrix(step, from), values.data, values.size, address(step, to));
        });
    }

    void linear(ViewTuple x, ViewTuple out, nb::object packed, std::optional<nb::object> bias_array) {
        const Weight* weight = &hold<Weight>(packed);
        const float* bias = bias_array ? constant(*bias_array, "bias", weight->out_features()) : nullptr;
        record("linear", [=, from = view(x), to = view(out)](const Step& step) {
            weight->linear(matrix(step, from), bias, address(step, to));
        });
    }

    void expert_inputs(ViewTuple x, ViewTuple logits, ViewTuple out, const RoutingTuple& routing_tuple,
                       const std::vector<nb::object>& weights, nb::object bias, const std::string& kind) {
        const Experts experts = hold_experts(weights, bias);
        check_expert_inputs(experts, view(x).columns, view(logits).columns);
        const Routing routing = read_routing(routing_tuple, experts.count());
        record("expert_inputs", [=, from = view(x), by = view(logits), to = view(out), function = gated_activation_named(kind.c_str())](const Step& step) {
            run_expert_inputs(matrix(step, from), matrix(step, by), routing, experts, function, address(step, to));
        });
    }

    void expert_outputs(ViewTuple h, ViewTuple logits, ViewTuple out, const RoutingTuple& routing_tuple,
                        const std::vector<nb::object>& weights, nb::object bias, const std::vector<std::int64_t>& widths) {
        const Experts experts = hold_experts(weights, bias);
        const Routing routing = read_routing(routing_tuple, experts.count());
        check_expert_outputs(experts, routing, widths, view(h).columns, view(logits).columns);
        record("expert_outputs", [=, from = view(h), by = view(logits), to = view(out)](const Step& step) {
            run_expert_outputs(matrix(step, from), matrix(step, by), routing, experts, widths, address(step, to));
        });
    }

    void adapted_embedding(ViewTuple out, std::int64_t ids, nb::object table, std::int64_t first_id, std::int64_t num_ids,
                           std::int64_t slots, nb::object adapters_object) {
        const Weight* weight = &hold<Weight>(table);
        const AdapterSlots* adapters = &hold<AdapterSlots>(adapters_object);
        adapters->check_layer(weight->in_features(), weight->out_features());
        limit_ids(ids, num_ids, "ids");
        add_unique(adapter_limits_, {slots, adapters->num_slots()});
        record("adapted_embedding", [=, to = view(out)](const Step& step) {
            const Vector<const std::int32_t>& values = step.ids[static_cast<std::size_t>(ids)];
            run_adapted_embedding(values.data, values.size, *weight, first_id, step.ids[static_cast<std::size_t>(slots)].data,
                                  *adapters, address(step, to));
        });
    }

    // What is in the slots may change between replays.
    void adapted_linear(ViewTuple x, ViewTuple out, nb::object packed, std::optional<nb::object> bias_array, std::int64_t slots,
                        nb::object adapters_object) {
        const Weight* weight = &hold<Weight>(packed);
        const AdapterSlots* adapters = &hold<AdapterSlots>(adapters_object);
        const float* bias = bias_array ? constant(*bias_array, "bias", weight->out_features()) : nullptr;
        adapters->check_layer(weight->out_features(), weight->in_features());
        add_unique(adapter_limits_, {slots, adapters->num_slots()});
        record("adapted_linear", [=, from = view(x), to = view(out)](const Step& step) {
            run_adapted_linear(matrix(step, from), *weight, bias, step.ids[static_cast<std::size_t>(slots)].data, *adapters,
                               address(step, to));
        });
    }

    void rms_norm(ViewTuple x, ViewTuple out, nb::object weight_array, float eps) {
        const float* weight = constant(weight_array, "weight", view(x).columns);
        record("rms_norm", [=, from = view(x), to = view(out)](const Step& step) {
            run_rms_norm(rows(step, from), weight, eps, address(step, to));
        });
    }

    void add_rms_norm(ViewTuple x, ViewTuple residual, ViewTuple out, ViewTuple total, nb::object weight_array, float eps) {
        const float* weight = constant(weight_array, "weight", view(x).columns);
        record("add_rms_norm", [=, a = view(x), b = view(residual), to = view(out), sum = view(total)](const Step& step) {
            run_add_rms_norm(matrix(step, a), matrix(step, b), weight, eps, address(step, to), address(step, sum));
        });
    }

    void layer_norm(ViewTuple x, ViewTuple out, nb::object weight_array, std::optional<nb::object> bias_array, float eps) {
        const float* weight = constant(weight_array, "weight", view(x).columns);
        const float* bias = bias_array ? constant(*bias_array, "bias", view(x).columns) : nullptr;
        record("layer_norm", [=, from = view(x), to = view(out)](const Step& step) {
            run_layer_norm(matrix(step, from), weight, bias, eps, address(step, to));
        });
    }

    void add(ViewTuple x, ViewTuple y, ViewTuple out) {
        record("add", [this, a = view(x), b = view(y), to = view(out)](const Step& step) {
            run_add(matrix(step, a), matrix(step, b), address(step, to));
        });
    }

    void scale(ViewTuple x, ViewTuple out, float factor) { map("scale", x, out, Function::scale, factor); }

    void softcap(ViewTuple x, ViewTuple out, float cap) {
        if (!(cap > 0)) raise_value_error("cap must be positive, got %g", static_cast<double>(cap));
        map("softcap", x, out, Function::softcap, cap);
    }

    void activation(ViewTuple x, ViewTuple out, const std::string& kind) {
        map("activation", x, out, activation_named(kind.c_str()), 0.0f);
    }

    void act_and_mul(ViewTuple x, ViewTuple out, const std::string& kind) {
        record("act_and_mul", [this, function = gated_activation_named(kind.c_str()), from = view(x), to = view(out)](const Step& step) {
            run_act_and_mul(matrix(step, from), function, address(step, to));
        });
    }

    void rope(ViewTuple x, ViewTuple out, std::int64_t positions, nb::object table) {
        const Matrix<const float> cos_sin = read_cos_sin(table, view(x).columns);
        held_.push_back(table);
        limit_ids(positions, cos_sin.rows, "positions");
        record("rope", [=, from = view(x), to = view(out)](const Step& step) {
            run_rope(tensor(step, from), step.ids[static_cast<std::size_t>(positions)].data, cos_sin, address(step, to));
        });
    }

    void store_kv(ViewTuple key, ViewTuple value, nb::object cache_array, std::int64_t group) {
        const KvCache cache = read_cache(cache_array);
        held_.push_back(cache_array);
        check_heads(view(key), cache.num_kv_heads, cache.head_dim, "key");
        check_heads(view(value), cache.num_kv_heads, cache.head_dim, "value");
        add_unique(slot_limits_, {group, cache.num_slots()});
        record("store_kv", [=, k = view(key), v = view(value)](const Step& step) {
            run_store_kv(tensor(step, k), tensor(step, v), cache, step.groups[static_cast<std::size_t>(group)].slot_mapping);
        });
    }

    void rope_and_store(ViewTuple query, ViewTuple key, ViewTuple value, ViewTuple out, std::int64_t positions, nb::object table,
                        nb::object cache_array, std::int64_t group) {
        const KvCache cache = read_cache(cache_array);
        const Matrix<const float> cos_sin = read_cos_sin(table, cache.head_dim);
        held_.push_back(cache_array);
        held_.push_back(table);
        check_heads(view(query), view(query).heads, cache.head_dim, "query");
        check_heads(view(key), cache.num_kv_heads, cache.head_dim, "key");
        check_heads(view(value), cache.num_kv_heads, cache.head_dim, "value");
        limit_ids(positions, cos_sin.rows, "positions");
        add_unique(slot_limits_, {group, cache.num_slots()});
        record("rope_and_store", [=, q = view(query), k = view(key), v = view(value), to = view(out)](const Step& step) {
            run_rope_and_store({tensor(step, q), tensor(step, k), tensor(step, v),
                                step.ids[static_cast<std::size_t>(positions)].data, cos_sin},
                               cache, step.groups[static_cast<std::size_t>(group)].slot_mapping, address(step, to));
        });
    }

    void paged_attention(ViewTuple query, ViewTuple out, nb::object cache_array, std::int64_t group, float scale,
                         std::optional<std::int64_t> sliding_window, std::optional<float> softcap,
                         std::optional<nb::object> slopes_array, std::optional<nb::object> sinks_array,
                         const std::optional<std::vector<std::int64_t>>& heads_of_kv) {
        const KvCache cache = read_cache(cache_array);
        held_.push_back(cache_array);
        const std::vector<std::int64_t> first_head = first_heads(heads_of_kv, view(query).heads, cache.num_kv_heads);
        check_heads(view(query), view(query).heads, cache.head_dim, "query");
        const std::int64_t window = window_or_none(sliding_window);
        const float* slopes = slopes_array ? constant(*slopes_array, "alibi_slopes", view(query).heads) : nullptr;
        const float* sinks = sinks_array ? constant(*sinks_array, "sinks", view(query).heads) : nullptr;
        add_unique(group_limits_, {group, slots_.at(static_cast<std::size_t>(view(query).slot)).dimension, cache.num_blocks,
                                   cache.block_size, window, {}});
        record("paged_attention", [=, q = view(query), to = view(out)](const Step& step) {
            run_attention({tensor(step, q), cache, step.groups[static_cast<std::size_t>(group)].rows, first_head.data(), scale,
                           softcap.value_or(0.0f), window, slopes, sinks, address(step, to)});
        });
    }

    void partial_attention(ViewTuple query, ViewTuple out, nb::object cache_array, std::int64_t group, float scale, std::int64_t part,
                           std::int64_t num_parts, std::int64_t run) {
        const KvCache cache = read_cache(cache_array);
        held_.push_back(cache_array);
        const std::vector<std::int64_t> first_head = first_heads(std::nullopt, view(query).heads, cache.num_kv_heads);
        check_heads(view(query), view(query).heads, cache.head_dim, "query");
        const DealtTokens dealt = read_dealt(part, num_parts, run);
        add_unique(group_limits_, {group, slots_.at(static_cast<std::size_t>(view(query).slot)).dimension, cache.num_blocks,
                                   cache.block_size, kNoWindow, dealt});
        record("partial_attention", [=, q = view(query), to = view(out)](const Step& step) {
            run_attention({tensor(step, q), cache, step.groups[static_cast<std::size_t>(group)].rows, first_head.data(), scale, 0.0f,
                           kNoWindow, nullptr, nullptr, address(step, to), dealt, true});
        });
    }

    void merge_attention(ViewTuple x, ViewTuple out, std::int64_t num_parts, std::int64_t num_heads, std::int64_t first_head,
                         std::int64_t end_head, std::int64_t head_dim) {
        const PartsToMerge recorded{{nullptr, 0, view(x).heads * view(x).columns, 0}, num_parts, num_heads, first_head, end_head, head_dim};
        check_parts(recorded);
        record("merge_attention", [=, from = view(x), to = view(out)](const Step& step) {
            PartsToMerge parts = recorded;
            parts.x = matrix(step, from);
            run_merge_attention(parts, address(step, to));
        });
    }

    void encoder_attention(ViewTuple query, ViewTuple key, ViewTuple value, ViewTuple out, std::int64_t group, float scale,
                           std::optional<std::int64_t> sliding_window, std::optional<nb::object> distance_bias) {
        const View q = view(query), k = view(key), v = view(value);
        check_heads(k, k.heads, q.columns, "key");
        check_heads(v, k.heads, q.columns, "value");
        if (k.heads == 0 || q.heads % k.heads != 0) raise_value_error("query must have a multiple of the key's heads");
        const std::int64_t window = window_or_none(sliding_window);
        if (distance_bias) held_.push_back(*distance_bias);
        const Matrix<const float> bias = read_distance_bias(distance_bias, q.heads);
        add_unique(sequence_limits_, {group, slots_.at(static_cast<std::size_t>(q.slot)).dimension, reach_of(bias)});
        record("encoder_attention", [=, to = view(out)](const Step& step) {
            const StepRows& rows = step.groups[static_cast<std::size_t>(group)].rows;
            run_encoder_attention({tensor(step, q), tensor(step, k), tensor(step, v), rows.query_start, rows.count, scale, window,
                                   address(step, to), bias});
        });
    }

    void all_reduce(ViewTuple x, ViewTuple out, nb::object shared) {
        SharedGroup* group = const_cast<SharedGroup*>(&hold<SharedGroup>(shared));
        check_contiguous(view(x));
        record("all_reduce", [=, from = view(x), to = view(out)](const Step& step) {
            group->all_reduce(address(step, from), count(step, from) * from.row_stride, address(step, to));
        });
    }

    // is_handed_on: the last call makes x, and nobody else reads it. It then writes x to where the other ranks read it.
    void all_gather(ViewTuple x, ViewTuple out, nb::object shared, const std::vector<std::int64_t>& widths, bool is_handed_on) {
        SharedGroup* group = const_cast<SharedGroup*>(&hold<SharedGroup>(shared));
        check_contiguous(view(x));
        if (view(out).columns != group->check_widths(widths) || view(x).columns != widths[static_cast<std::size_t>(group->rank())]) {
            raise_value_error("all_gather has other widths");
        }
        const auto slot = static_cast<std::size_t>(view(x).slot);
        if (is_handed_on) {
            calls_.back().run = [=, run = calls_.back().run, from = view(x)](const Step& step) {
                float* place = group->place_to_gather_from(count(step, from), widths);
                step.moved_slot = step.slots[slot];
                if (place != nullptr) step.slots[slot] = place;
                run(step);
            };
        }
        record("all_gather", [=, from = view(x), to = view(out)](const Step& step) {
            group->all_gather(address(step, from), count(step, from), widths, address(step, to));
            if (is_handed_on) step.slots[slot] = step.moved_slot;
        });
    }

    // -- replay -------------------------------------------------------------------------------------------------------

    // num_rows: of each dimension. groups: (query_start, seq_lens, block_table, slot_mapping) of each KV cache group. Returns the
    // offset of each slot in the arena. Raises ValueError, having computed nothing, when an argument does not fit the recording.
    std::vector<std::int64_t> replay(const std::vector<std::int64_t>& num_rows, const std::vector<nb::object>& ids,
                                     const std::vector<nb::object>& arguments, const std::vector<std::vector<nb::object>>& groups) {
        Step step;
        step.num_rows = num_rows;
        const std::vector<std::int64_t> offsets = place_slots(step, arguments);
        read_ids(step, ids);
        read_groups(step, groups);
        nb::gil_scoped_release nogil;
        const ThreadsAwake awake;
        if (timing_) {
            run_timed(step);
        } else {
            for (const Call& call : calls_) call.run(step);
        }
        return offsets;
    }

    // Whether replay measures the time of each call from now on; starts at zero.
    void set_timing(bool on) {
        timing_ = on;
        times_ns_.assign(calls_.size(), 0);
    }

    // The calls in order: name and nanoseconds since set_timing(true).
    std::vector<std::pair<std::string, std::int64_t>> times() const {
        std::vector<std::pair<std::string, std::int64_t>> result;
        for (std::size_t i = 0; i < calls_.size(); ++i) {
            result.emplace_back(calls_[i].name, i < times_ns_.size() ? times_ns_[i] : 0);
        }
        return result;
    }

  private:
    struct Call {
        const char* name;
        std::function<void(const Step&)> run;
    };
    struct IdLimit {
        std::int64_t ids;
        std::int64_t limit;
        const char* name;
    };
    struct SlotLimit {
        std::int64_t group;
        std::int64_t limit;
        bool operator==(const SlotLimit& other) const { return group == other.group && limit == other.limit; }
    };
    struct GroupLimit {
        std::int64_t group, dimension, num_blocks, block_size, window;
        DealtTokens dealt;
        bool operator==(const GroupLimit& other) const {
            return group == other.group && dimension == other.dimension && num_blocks == other.num_blocks &&
                   block_size == other.block_size && window == other.window && dealt.part == other.dealt.part &&
                   dealt.num_parts == other.dealt.num_parts && dealt.run == other.dealt.run;
        }
    };

    template <class Run>
    void record(const char* name, Run run) {
        calls_.push_back({name, std::move(run)});
    }

    void map(const char* name, ViewTuple x, ViewTuple out, Function function, float parameter) {
        record(name, [=, from = view(x), to = view(out)](const Step& step) {
            run_map(rows(step, from), function, parameter, address(step, to));
        });
    }

    // Keeps a Python object alive as long as the tape.
    template <class T>
    const T& hold(nb::object object) {
        if (object.is_none()) raise_value_error("a recorded constant must not be None");
        held_.push_back(object);
        return *nb::cast<const T*>(object);
    }

    Experts hold_experts(const std::vector<nb::object>& weights, nb::object bias) {
        held_.insert(held_.end(), weights.begin(), weights.end());
        held_.push_back(bias);
        return read_experts(weights, bias);
    }

    const float* constant(nb::object array, const char* name, std::int64_t size) {
        held_.push_back(array);
        return read_vector<float>(array, name, size).data;
    }

    View view(const ViewTuple& tuple) const {
        const auto& [slot, row_stride, offset, heads, columns] = tuple;
        if (slot < 0 || slot >= static_cast<std::int64_t>(slots_.size()) ||
            row_stride > slots_[static_cast<std::size_t>(slot)].width || offset < 0 || offset + heads * columns > row_stride) {
            raise_value_error("a recorded view lies outside its slot");
        }
        return {slot, row_stride, offset, heads, columns};
    }

    static void check_heads(const View& view, std::int64_t heads, std::int64_t columns, const char* name) {
        if (view.heads == heads && view.columns == columns) return;
        raise_value_error("%s must have %lld heads of %lld, got %lld of %lld", name, static_cast<long long>(heads),
                          static_cast<long long>(columns), static_cast<long long>(view.heads), static_cast<long long>(view.columns));
    }

    static void check_contiguous(const View& view) {
        if (view.heads * view.columns != view.row_stride) raise_value_error("ranks exchange whole rows, not parts of them");
    }

    template <class T>
    static void add_unique(std::vector<T>& items, const T& item) {
        for (const T& existing : items) {
            if (existing == item) return;
        }
        items.push_back(item);
    }

    void limit_ids(std::int64_t ids, std::int64_t limit, const char* name) {
        for (IdLimit& existing : id_limits_) {
            if (existing.ids != ids) continue;
            existing.limit = std::min(existing.limit, limit);
            return;
        }
        id_limits_.push_back({ids, limit, name});
    }

    // -- views in a step ----------------------------------------------------------------------------------------------

    static float* address(const Step& step, const View& view) {
        return step.slots[static_cast<std::size_t>(view.slot)] + view.offset;
    }
    std::int64_t count(const Step& step, const View& view) const {
        return step.num_rows[static_cast<std::size_t>(slots_[static_cast<std::size_t>(view.slot)].dimension)];
    }
    Matrix<const float> matrix(const Step& step, const View& view) const {
        return {address(step, view), count(step, view), view.heads * view.columns, view.row_stride};
    }
    Tensor3<const float> tensor(const Step& step, const View& view) const {
        return {address(step, view), {count(step, view), view.heads, view.columns}, {view.row_stride, view.columns}};
    }
    Rows rows(const Step& step, const View& view) const {
        return {address(step, view), count(step, view), view.heads, view.columns, view.row_stride, view.columns};
    }

    // -- a replay's arguments -----------------------------------------------------------------------------------------

    std::vector<std::int64_t> place_slots(Step& step, const std::vector<nb::object>& arguments) {
        if (static_cast<std::int64_t>(arguments.size()) != num_arguments_) raise_value_error("wrong number of float arguments");
        std::vector<std::int64_t> offsets;
        std::int64_t used = 0;
        for (std::size_t i = 0; i < slots_.size(); ++i) {
            const std::int64_t count = step.num_rows.at(static_cast<std::size_t>(slots_[i].dimension));
            if (i < arguments.size()) {
                const Matrix<const float> argument = read_matrix<float>(arguments[i], "argument", count, slots_[i].width);
                if (argument.rows > 1 && argument.row_stride != slots_[i].width) raise_value_error("argument must be contiguous");
                step.slots.push_back(const_cast<float*>(argument.data));  // a recorded call never writes to an argument
                offsets.push_back(0);
                continue;
            }
            step.slots.push_back(memory_.data + used);
            offsets.push_back(used);
            used += slots_[i].width * count;
        }
        if (used > memory_.size) {
            raise_value_error("the step's rows need %lld floats, and the tape's arena has %lld", static_cast<long long>(used),
                              static_cast<long long>(memory_.size));
        }
        return offsets;
    }

    void read_ids(Step& step, const std::vector<nb::object>& ids) const {
        if (ids.size() != id_dimensions_.size()) raise_value_error("wrong number of id arguments");
        for (std::size_t i = 0; i < ids.size(); ++i) {
            const std::int64_t count = step.num_rows.at(static_cast<std::size_t>(id_dimensions_[i]));
            step.ids.push_back(read_vector<std::int32_t>(ids[i], "ids", count));
        }
        for (const IdLimit& limit : id_limits_) check_range(step.ids.at(static_cast<std::size_t>(limit.ids)), limit.name, limit.limit);
        for (const auto& [index, num_slots] : adapter_limits_) check_adapter_slots(step.ids.at(static_cast<std::size_t>(index)), num_slots);
        for (const auto& [index, dimension] : row_limits_) {
            check_range(step.ids.at(static_cast<std::size_t>(index)), "rows", step.num_rows.at(static_cast<std::size_t>(dimension)));
        }
    }

    void read_groups(Step& step, const std::vector<std::vector<nb::object>>& groups) const {
        if (static_cast<std::int64_t>(groups.size()) != num_groups_) raise_value_error("wrong number of KV cache groups");
        std::vector<Vector<const std::int64_t>> mappings;
        for (const std::vector<nb::object>& arrays : groups) {
            if (arrays.size() != 4) raise_value_error("a KV cache group has 4 arrays, got %zu", arrays.size());
            mappings.push_back(read_vector<std::int64_t>(arrays[3], "slot_mapping", step.num_rows.at(0)));
            step.groups.push_back({read_step_rows(arrays[0], arrays[1], arrays[2]), mappings.back().data});
        }
        for (const SlotLimit& limit : slot_limits_) {
            check_range(mappings.at(static_cast<std::size_t>(limit.group)), "slot_mapping", limit.limit);
        }
        for (const auto& [group, dimension, longest] : sequence_limits_) {
            const StepRows& rows = step.groups.at(static_cast<std::size_t>(group)).rows;
            check_query_start(rows.query_start, rows.count, step.num_rows.at(static_cast<std::size_t>(dimension)), longest);
        }
        for (const GroupLimit& limit : group_limits_) {
            check_rows(step.groups.at(static_cast<std::size_t>(limit.group)).rows,
                       step.num_rows.at(static_cast<std::size_t>(limit.dimension)), limit.num_blocks, limit.block_size,
                       limit.window, limit.dealt);
        }
    }

    void run_timed(const Step& step) {
        auto before = std::chrono::steady_clock::now();
        for (std::size_t i = 0; i < calls_.size(); ++i) {
            calls_[i].run(step);
            const auto after = std::chrono::steady_clock::now();
            times_ns_[i] += std::chrono::duration_cast<std::chrono::nanoseconds>(after - before).count();
            before = after;
        }
    }

    nb::object arena_;
    Vector<float> memory_;
    std::int64_t num_arguments_;
    std::vector<std::int64_t> id_dimensions_;
    std::int64_t num_groups_;
    std::vector<Slot> slots_;
    std::vector<Call> calls_;
    std::vector<nb::object> held_;
    std::vector<IdLimit> id_limits_;
    std::vector<std::pair<std::int64_t, std::int64_t>> row_limits_;  // (ids, dimension)
    std::vector<std::pair<std::int64_t, std::int64_t>> adapter_limits_;  // (ids, slots)
    std::vector<SlotLimit> slot_limits_;
    std::vector<GroupLimit> group_limits_;
    std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>> sequence_limits_;  // (group, dimension, longest)
    bool timing_ = false;
    std::vector<std::int64_t> times_ns_;
};

}  // namespace

void bind_tape(nb::module_& m) {
    nb::class_<Tape>(m, "Tape", "A list of op calls on one arena; see octavo/ops/recording.py.")
        .def(nb::init<nb::object, const std::vector<std::pair<std::int64_t, std::int64_t>>&, std::int64_t,
                      std::vector<std::int64_t>, std::int64_t>(),
             nb::arg("arena"), nb::arg("slots"), nb::arg("num_arguments"), nb::arg("id_dimensions"), nb::arg("num_groups"))
        .def("embedding", &Tape::embedding)
        .def("embedding_share", &Tape::embedding_share)
        .def("adapted_embedding", &Tape::adapted_embedding)
        .def("all_reduce", &Tape::all_reduce)
        .def("all_gather", &Tape::all_gather)
        .def("take_rows", &Tape::take_rows)
        .def("linear", &Tape::linear, nb::arg("x"), nb::arg("out"), nb::arg("weight"), nb::arg("bias").none())
        .def("expert_inputs", &Tape::expert_inputs, nb::arg("x"), nb::arg("logits"), nb::arg("out"), nb::arg("routing"),
             nb::arg("weights"), nb::arg("bias").none(), nb::arg("kind"))
        .def("expert_outputs", &Tape::expert_outputs, nb::arg("h"), nb::arg("logits"), nb::arg("out"), nb::arg("routing"),
             nb::arg("weights"), nb::arg("bias").none(), nb::arg("widths"))
        .def("adapted_linear", &Tape::adapted_linear, nb::arg("x"), nb::arg("out"), nb::arg("weight"), nb::arg("bias").none(),
             nb::arg("slots"), nb::arg("adapters"))
        .def("rms_norm", &Tape::rms_norm)
        .def("add_rms_norm", &Tape::add_rms_norm)
        .def("layer_norm", &Tape::layer_norm, nb::arg("x"), nb::arg("out"), nb::arg("weight"), nb::arg("bias").none(), nb::arg("eps"))
        .def("add", &Tape::add)
        .def("scale", &Tape::scale)
        .def("softcap", &Tape::softcap)
        .def("activation", &Tape::activation)
        .def("act_and_mul", &Tape::act_and_mul)
        .def("rope", &Tape::rope)
        .def("store_kv", &Tape::store_kv)
        .def("rope_and_store", &Tape::rope_and_store)
        .def("paged_attention", &Tape::paged_attention, nb::arg("query"), nb::arg("out"), nb::arg("cache"), nb::arg("group"),
             nb::arg("scale"), nb::arg("sliding_window").none(), nb::arg("softcap").none(), nb::arg("alibi_slopes").none(),
             nb::arg("sinks").none(), nb::arg("heads_of_kv").none())
        .def("partial_attention", &Tape::partial_attention)
        .def("merge_attention", &Tape::merge_attention)
        .def("encoder_attention", &Tape::encoder_attention, nb::arg("query"), nb::arg("key"), nb::arg("value"), nb::arg("out"),
             nb::arg("group"), nb::arg("scale"), nb::arg("sliding_window").none(), nb::arg("distance_bias").none())
        .def("replay", &Tape::replay, nb::arg("num_rows"), nb::arg("ids"), nb::arg("arguments"), nb::arg("groups"))
        .def("set_timing", &Tape::set_timing, nb::arg("on"))
        .def("times", &Tape::times);
}

}  // namespace octavo
