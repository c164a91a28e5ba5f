// The border of the sampling ops: checks, one row per call of RowSampler, rows shared out among threads.
#include "sampling.h"

#include <algorithm>
#include <limits>

#include "arrays.h"
#include "dispatch.h"
#include "sampling_row.h"
#include "thread_pool.h"

namespace octavo {

#if defined(OCTAVO_WITH_AVX512)
namespace avx512 {
extern const SamplingKernels sampling_kernels;
}
#endif
#if defined(OCTAVO_WITH_AVX2)
namespace avx2 {
extern const SamplingKernels sampling_kernels;
}
#endif
namespace portable {
extern const SamplingKernels sampling_kernels;
}

namespace {

using FloatMatrix = Matrix<const float>;

// Nanoseconds for one logit, for the division of rows among threads.
constexpr double kMaximumNs = 0.1;
constexpr double kExpNs = 0.5;
constexpr double kSampleNs = 1.0;

const SamplingKernels& sampling_kernels() {
    const Kernels* active = &kernels();
#if defined(OCTAVO_WITH_AVX512)
    if (active == &avx512::kernels) return avx512::sampling_kernels;
#endif
#if defined(OCTAVO_WITH_AVX2)
    if (active == &avx2::kernels) return avx2::sampling_kernels;
#endif
    (void)active;
    return portable::sampling_kernels;
}

FloatMatrix read_logits(nb::handle logits) {
    const FloatMatrix matrix = read_matrix<float>(logits, "logits");
    if (matrix.columns == 0) raise_value_error("logits must have at least one column, got none");
    return matrix;
}

// Calls body(sampler, row) for every row, without the GIL; the sampler has looked at the row.
template <class Body>
void for_each_row(const FloatMatrix& logits, double logit_ns, const Body& body) {
    const SamplingKernels& loops = sampling_kernels();
    nb::gil_scoped_release nogil;
    parallel_ranges(logits.rows, static_cast<double>(logits.columns) * logit_ns, [&](std::int64_t begin, std::int64_t end) {
        thread_local RowSampler sampler;
        for (std::int64_t row = begin; row < end; ++row) {
            sampler.begin(loops, logits.row(row), logits.columns);
            body(sampler, row);
        }
    });
}

nb::object has_nan(nb::handle logits_array) {
    const FloatMatrix logits = read_logits(logits_array);
    NewArray<bool> result = new_array<bool>({logits.rows});
    for_each_row(logits, kMaximumNs, [&](RowSampler& sampler, std::int64_t row) { result.data[row] = sampler.is_bad(); });
    return result.object;
}

nb::object argmax(nb::handle logits_array) {
    const FloatMatrix logits = read_logits(logits_array);
    NewArray<std::int32_t> result = new_array<std::int32_t>({logits.rows});
    for_each_row(logits, kMaximumNs, [&](RowSampler& sampler, std::int64_t row) {
        result.data[row] = sampler.is_bad() ? -1 : sampler.argmax();
    });
    return result.object;
}

nb::object log_softmax(nb::handle logits_array) {
    const FloatMatrix logits = read_logits(logits_array);
    const std::int64_t width = logits.columns;
    NewArray<float> result = new_array<float>({logits.rows, width});
    const SamplingKernels& loops = sampling_kernels();
    for_each_row(logits, kExpNs, [&](RowSampler& sampler, std::int64_t row) {
        loops.log_softmax(logits.row(row), width, sampler.largest(), sampler.log_sum(), result.data + row * width);
    });
    return result.object;
}

nb::tuple top_logprobs(nb::handle logits_array, nb::handle token_ids_array, std::int64_t k) {
    const FloatMatrix logits = read_logits(logits_array);
    const Vector<const std::int32_t> token_ids = read_vector<std::int32_t>(token_ids_array, "token_ids", logits.rows);
    check_range(token_ids, "token_ids", logits.columns);
    if (k < 0 || k > logits.columns) {
        raise_value_error("k must lie in 0..%lld, got %lld", static_cast<long long>(logits.columns), static_cast<long long>(k));
    }
    NewArray<std::int32_t> ids = new_array<std::int32_t>({logits.rows, k + 1});
    NewArray<float> logprobs = new_array<float>({logits.rows, k + 1});
    NewArray<std::int32_t> ranks = new_array<std::int32_t>({logits.rows});
    const SamplingKernels& loops = sampling_kernels();
    for_each_row(logits, kExpNs, [&](RowSampler& sampler, std::int64_t row) {
        const float* x = logits.row(row);
        std::int32_t* row_ids = ids.data + row * (k + 1);
        row_ids[0] = token_ids.data[row];
        sampler.most_likely(k, row_ids + 1);
        const float largest = sampler.largest(), log_sum = sampler.log_sum();
        float* row_logprobs = logprobs.data + row * (k + 1);
        for (std::int64_t i = 0; i <= k; ++i) row_logprobs[i] = (x[row_ids[i]] - largest) - log_sum;
        ranks.data[row] = loops.rank(x, logits.columns, row_ids[0]);
    });
    return nb::make_tuple(ids.object, logprobs.object, ranks.object);
}

void apply_penalties(nb::handle logits_array, nb::handle row_start_array, nb::handle token_ids_array,
                     nb::handle output_counts_array, nb::handle repetition_array, nb::handle frequency_array,
                     nb::handle presence_array) {
    const Matrix<float> logits = read_writable_matrix(logits_array, "logits");
    const auto row_start = read_vector<std::int32_t>(row_start_array, "row_start", logits.rows + 1);
    const auto repetition = read_vector<float>(repetition_array, "repetition", logits.rows);
    const auto frequency = read_vector<float>(frequency_array, "frequency", logits.rows);
    const auto presence = read_vector<float>(presence_array, "presence", logits.rows);
    bool rising = row_start.data[0] == 0;
    for (std::int64_t row = 0; row < logits.rows; ++row) rising = rising && row_start.data[row] <= row_start.data[row + 1];
    if (!rising) raise_value_error("row_start must start at 0 and never fall");
    const std::int64_t num_ids = row_start.data[logits.rows];
    const auto token_ids = read_vector<std::int32_t>(token_ids_array, "token_ids", num_ids);
    const auto output_counts = read_vector<std::int32_t>(output_counts_array, "output_counts", num_ids);
    check_range(token_ids, "token_ids", logits.columns);
    nb::gil_scoped_release nogil;
    for (std::int64_t row = 0; row < logits.rows; ++row) {
        float* x = logits.row(row);
        for (std::int32_t i = row_start.data[row]; i < row_start.data[row + 1]; ++i) {
            float& logit = x[token_ids.data[i]];
            const float scaled = logit > 0.0f ? logit / repetition.data[row] : logit * repetition.data[row];
            const std::int32_t count = output_counts.data[i];
            const float present = count > 0 ? presence.data[row] : 0.0f;
            logit = scaled - (frequency.data[row] * static_cast<float>(count) + present);
        }
    }
}

// Sets x[i] to -infinity where bit i is 0, for i below count <= 32. No branch depends on single bits, which nobody can predict.
void forbid(float* x, std::int64_t count, std::uint32_t bits) {
    constexpr float kForbidden = -std::numeric_limits<float>::infinity();
    const std::uint32_t all = count < 32 ? (1u << count) - 1u : 0xFFFFFFFFu;
    if (__builtin_popcount(bits) > 16) {
        for (std::uint32_t zeros = ~bits & all; zeros != 0; zeros &= zeros - 1) x[__builtin_ctz(zeros)] = kForbidden;
        return;
    }
    float kept[32];
    std::copy(x, x + count, kept);
    std::fill(x, x + count, kForbidden);
    for (std::uint32_t ones = bits & all; ones != 0; ones &= ones - 1) {
        const int i = __builtin_ctz(ones);
        x[i] = kept[i];
    }
}

void apply_bitmask(nb::handle logits_array, nb::handle bitmask_array) {
    const Matrix<float> logits = read_writable_matrix(logits_array, "logits");
    const Matrix<const std::int32_t> bitmask = read_matrix<std::int32_t>(bitmask_array, "bitmask", logits.rows);
    const std::int64_t num_words = (logits.columns + 31) / 32;
    if (bitmask.columns < num_words) {
        raise_value_error("bitmask must have at least %lld columns, got %lld", static_cast<long long>(num_words),
                          static_cast<long long>(bitmask.columns));
    }
    nb::gil_scoped_release nogil;
    parallel_ranges(logits.rows, static_cast<double>(logits.columns) * kMaximumNs, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
            float* x = logits.row(row);
            const std::int32_t* words = bitmask.row(row);
            for (std::int64_t word = 0; word < num_words; ++word) {
                const auto bits = static_cast<std::uint32_t>(words[word]);
                if (bits == 0xFFFFFFFFu) continue;  // most words are all ones or all zeros
                const std::int64_t count = std::min<std::int64_t>(32, logits.columns - 32 * word);
                forbid(x + 32 * word, count, bits);
            }
        }
    });
}

nb::object sample(nb::handle logits_array, nb::handle temperature_array, nb::handle top_k_array, nb::handle top_p_array,
                  nb::handle min_p_array, nb::handle uniform_array) {
    const FloatMatrix logits = read_logits(logits_array);
    const auto temperature = read_vector<float>(temperature_array, "temperature", logits.rows);
    const auto top_k = read_vector<std::int32_t>(top_k_array, "top_k", logits.rows);
    const auto top_p = read_vector<float>(top_p_array, "top_p", logits.rows);
    const auto min_p = read_vector<float>(min_p_array, "min_p", logits.rows);
    const auto uniform = read_vector<double>(uniform_array, "uniform", logits.rows);
    NewArray<std::int32_t> result = new_array<std::int32_t>({logits.rows});
    for_each_row(logits, kSampleNs, [&](RowSampler& sampler, std::int64_t row) {
        const SamplingOptions options{temperature.data[row], top_k.data[row], top_p.data[row], min_p.data[row],
                                      uniform.data[row]};
        result.data[row] = sampler.sample(options);
    });
    return result.object;
}

}  // namespace

void bind_sampling(nb::module_& m) {
    m.def("has_nan", &has_nan, nb::arg("logits"));
    m.def("argmax", &argmax, nb::arg("logits"));
    m.def("log_softmax", &log_softmax, nb::arg("logits"));
    m.def("top_logprobs", &top_logprobs, nb::arg("logits"), nb::arg("token_ids"), nb::arg("k"));
    m.def("apply_penalties", &apply_penalties, nb::arg("logits"), nb::arg("row_start"), nb::arg("token_ids"),
          nb::arg("output_counts"), nb::arg("repetition"), nb::arg("frequency"), nb::arg("presence"));
    m.def("apply_bitmask", &apply_bitmask, nb::arg("logits"), nb::arg("bitmask"));
    m.def("sample", &sample, nb::arg("logits"), nb::arg("temperature"), nb::arg("top_k"), nb::arg("top_p"),
          nb::arg("min_p"), nb::arg("uniform"));
}

}  // namespace octavo
