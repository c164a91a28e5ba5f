// The extension module octavo._native. Each family of ops binds itself; octavo/ops/native.py is its only user.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "adapters.h"
#include "arrays.h"
#include "attention.h"
#include "dispatch.h"
#include "experts.h"
#include "rows.h"
#include "sampling.h"
#include "shared_group.h"
#include "tape.h"
#include "thread_pool.h"
#include "weight.h"

namespace nb = nanobind;

NB_MODULE(_native, m) {
    using namespace octavo;
    import_numpy();

    m.def("num_threads", &num_threads, "Return the size of the thread pool, the calling thread included.");
    m.def(
        "set_num_threads",
        [](int count) {
            if (count < 1) raise_value_error("count must be at least 1, got %d", count);
            nb::gil_scoped_release nogil;
            set_num_threads(count);
        },
        nb::arg("count"), "Replace the thread pool by one of `count` threads.");
    m.def("isa", [] { return kernels().isa; }, "Return the active instruction set.");
    m.def(
        "available_isas",
        [] {
            std::vector<std::string> names;
            for (Isa isa : kIsas) {
                if (supports(isa)) names.emplace_back(isa_name(isa));
            }
            return names;
        },
        "Return the instruction sets that this build and this machine have, worst first.");
    m.def(
        "set_isa",
        [](const std::string& name) {
            for (Isa isa : kIsas) {
                if (name == isa_name(isa) && set_isa(isa)) return;
            }
            raise_value_error("instruction set %s is not available", name.c_str());
        },
        nb::arg("name"), "Make an instruction set active for what is packed and computed from now on.");

    bind_linear(m);
    bind_rows(m);
    bind_experts(m);
    bind_adapters(m);
    bind_attention(m);
    bind_encoder_attention(m);
    bind_sampling(m);
    bind_tape(m);
    bind_shared_group(m);
}
