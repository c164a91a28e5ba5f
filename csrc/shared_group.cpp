#include "shared_group.h"

#include <fcntl.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <thread>

#include "dispatch.h"
#include "thread_pool.h"

namespace octavo {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kPageBytes = 4096;
constexpr int kSpins = 2000;  // about 50 us: ranks of one step come within that
constexpr auto kYieldTime = std::chrono::milliseconds(1);
constexpr auto kSleepTime = std::chrono::microseconds(50);
constexpr auto kTimeBetweenChecks = std::chrono::milliseconds(20);  // of whether a peer lives
constexpr double kFloat_ns = 0.15;

inline void pause_cpu() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

std::int64_t rounded_up(std::int64_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

// A lock on one byte of the file belongs to an open file, so that it ends with the process, however that ends.
bool rank_lock(int file, int command, std::int64_t rank, struct flock* lock) {
    *lock = {};
    lock->l_type = F_WRLCK;
    lock->l_whence = SEEK_SET;
    lock->l_start = static_cast<off_t>(rank);
    lock->l_len = 1;
    return fcntl(file, command, lock) == 0;
}

bool make_file(const std::string& path, std::int64_t bytes) {
    const std::string unfinished = path + ".new";
    const int file = open(unfinished.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_TRUNC, 0600);
    if (file < 0) return false;
#if defined(__linux__)
    const int error = posix_fallocate(file, 0, static_cast<off_t>(bytes));  // now, rather than a bus error later
#else
    const int error = ftruncate(file, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
#endif
    ::close(file);
    if (error == 0 && rename(unfinished.c_str(), path.c_str()) == 0) return true;
    if (error != 0) errno = error;
    return false;
}

}  // namespace

// The file starts with these.
struct SharedGroup::Header {
    std::atomic<std::uint8_t> aborted;
};
struct SharedGroup::RankState {
    alignas(64) std::atomic<std::uint64_t> exchanges;
    std::atomic<std::uint32_t> is_there;
    alignas(64) std::atomic<std::uint64_t> sent;      // floats, to the next rank
    alignas(64) std::atomic<std::uint64_t> received;  // of these
};

SharedGroup::SharedGroup(const std::string& path, const std::string& name, std::int64_t rank, std::int64_t size,
                         std::int64_t slot_floats, std::int64_t ring_floats, double timeout_s)
    : name_(name), rank_(rank), size_(size), slot_floats_(slot_floats), ring_floats_(ring_floats), timeout_s_(timeout_s) {
    if (size < 1 || rank < 0 || rank >= size) raise_value_error("rank must be below size");
    if (slot_floats < 1 || ring_floats < 1) raise_value_error("slot_floats and ring_floats must be positive");
    const std::int64_t bytes = kPageBytes + rounded_up(size * static_cast<std::int64_t>(sizeof(RankState))) +
                               size * (2 * slot_floats + ring_floats) * static_cast<std::int64_t>(sizeof(float));
    if (rank == 0 && !make_file(path, bytes)) {
        raise_value_error("%s: no %lld bytes for shared memory: %s", path.c_str(), static_cast<long long>(bytes), std::strerror(errno));
    }
    map_file(path, bytes, timeout_s);
    try {
        join(path);
    } catch (...) {  // there is no object, and so no destructor that would do it
        close();
        throw;
    }
}

void SharedGroup::join(const std::string& path) {
    struct flock lock;
#if defined(F_OFD_SETLK)
    if (!rank_lock(file_, F_OFD_SETLK, rank_, &lock)) raise_value_error("%s: rank %lld is taken", path.c_str(), static_cast<long long>(rank_));
#else
    (void)lock;
#endif
    state(rank_).is_there.store(1);
    for (std::int64_t peer = 0; peer < size_; ++peer) {
        wait(peer, [&] { return state(peer).is_there.load() != 0; });
    }
}

void SharedGroup::map_file(const std::string& path, std::int64_t file_bytes, double timeout_s) {
    const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_s);
    while ((file_ = open(path.c_str(), O_RDWR | O_CLOEXEC)) < 0) {
        if (errno != ENOENT) raise_value_error("%s: %s", path.c_str(), std::strerror(errno));
        if (Clock::now() > deadline) lose(0, "did not come");
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    struct stat status;
    void* memory = MAP_FAILED;
    if (fstat(file_, &status) == 0 && status.st_size == file_bytes) {
        memory = mmap(nullptr, static_cast<std::size_t>(file_bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    }
    if (memory == MAP_FAILED) {
        ::close(file_);
        raise_value_error("%s does not have the size that this rank's options ask for", path.c_str());
    }
    memory_ = static_cast<std::uint8_t*>(memory);
    memory_bytes_ = file_bytes;
}

SharedGroup::RankState& SharedGroup::state(std::int64_t rank) const {
    return reinterpret_cast<RankState*>(memory_ + kPageBytes)[rank];
}

float* SharedGroup::slot(std::int64_t rank) const {
    float* slots = reinterpret_cast<float*>(memory_ + kPageBytes + rounded_up(size_ * static_cast<std::int64_t>(sizeof(RankState))));
    return slots + (2 * rank + static_cast<std::int64_t>(exchanges_ & 1)) * slot_floats_;
}

float* SharedGroup::ring(std::int64_t rank) const {
    float* end = reinterpret_cast<float*>(memory_ + memory_bytes_);
    return end - (size_ - rank) * ring_floats_;
}

// -- waiting -----------------------------------------------------------------------------------------------------------

template <class Ready>
void SharedGroup::wait(std::int64_t peer, const Ready& ready) const {
    if (memory_ == nullptr) lose(rank_, "has left");
    const auto& aborted = reinterpret_cast<const Header*>(memory_)->aborted;
    for (int spin = 0; spin < kSpins; ++spin) {
        if (ready()) return;
        pause_cpu();
    }
    const auto start = Clock::now();
    auto next_check = start;
    while (!ready()) {
        const auto now = Clock::now();
        if (aborted.load() != 0) lose(peer, "or another rank gave up, or was told to");
        if (now >= next_check) {
            next_check = now + kTimeBetweenChecks;
            // It may have done its part before it ended.
            if (state(peer).is_there.load() != 0 && !lives(peer) && !ready()) lose(peer, "has ended");
            if (std::chrono::duration<double>(now - start).count() > timeout_s_) lose(peer, "did not come in time");
        }
        if (now - start < kYieldTime) {
            std::this_thread::yield();
        } else {
            std::this_thread::sleep_for(kSleepTime);
        }
    }
}

bool SharedGroup::lives(std::int64_t peer) const {
#if defined(F_OFD_SETLK)
    struct flock lock;
    return peer == rank_ || !rank_lock(file_, F_OFD_GETLK, peer, &lock) || lock.l_type != F_UNLCK;
#else
    (void)peer;
    return true;  // the timeout will tell
#endif
}

void SharedGroup::lose(std::int64_t peer, const char* what) const {
    char text[300];
    std::snprintf(text, sizeof text, "rank %lld of %lld in the group %s %s (rank %lld waited for it, for up to %g s)",
                  static_cast<long long>(peer), static_cast<long long>(size_), name_.c_str(), what, static_cast<long long>(rank_),
                  timeout_s_);
    throw PeerLost(text);
}

// -- collectives -------------------------------------------------------------------------------------------------------

void SharedGroup::exchange() {
    state(rank_).exchanges.store(exchanges_ + 1, std::memory_order_release);
    for (std::int64_t peer = 0; peer < size_; ++peer) {
        const auto& theirs = state(peer).exchanges;
        wait(peer, [&] { return theirs.load(std::memory_order_acquire) > exchanges_; });
    }
}

void SharedGroup::all_reduce(const float* x, std::int64_t count, float* out) {
    const auto add = kernels().add;
    for (std::int64_t done = 0; done < count; done += slot_floats_) {
        const std::int64_t part = std::min(slot_floats_, count - done);
        float* own = slot(rank_);
        parallel_ranges(part, kFloat_ns, [&](std::int64_t begin, std::int64_t end) {
            std::memcpy(own + begin, x + done + begin, static_cast<std::size_t>(end - begin) * sizeof(float));
        });
        exchange();
        parallel_ranges(part, kFloat_ns * static_cast<double>(size_), [&](std::int64_t begin, std::int64_t end) {
            float* sum = out + done + begin;
            add(slot(0) + begin, slot(1) + begin, end - begin, sum);
            for (std::int64_t peer = 2; peer < size_; ++peer) add(sum, slot(peer) + begin, end - begin, sum);
        });
        ++exchanges_;
    }
}

float* SharedGroup::place_to_gather_from(std::int64_t rows, const std::vector<std::int64_t>& widths) const {
    return rows * *std::max_element(widths.begin(), widths.end()) <= slot_floats_ ? slot(rank_) : nullptr;
}

void SharedGroup::all_gather(const float* x, std::int64_t rows, const std::vector<std::int64_t>& widths, float* out) {
    const std::int64_t widest = *std::max_element(widths.begin(), widths.end());
    const std::int64_t width = std::accumulate(widths.begin(), widths.end(), std::int64_t{0});
    const std::int64_t columns = std::min(widest, slot_floats_);  // of each rank in one exchange, at most
    if (columns == 0) return;
    const std::int64_t block = slot_floats_ / columns;
    for (std::int64_t row = 0; row < rows; row += block) {
        const std::int64_t num_rows = std::min(block, rows - row);
        for (std::int64_t column = 0; column < widest; column += columns) {
            // A rank's columns from `column` on, as far as it has them: so many floats a row in its slot.
            const auto part = [&](std::int64_t rank) {
                return std::clamp<std::int64_t>(widths[static_cast<std::size_t>(rank)] - column, 0, columns);
            };
            const auto num_bytes = [&](std::int64_t rank) { return static_cast<std::size_t>(part(rank)) * sizeof(float); };
            const double row_ns = kFloat_ns * static_cast<double>(columns);
            if (x != slot(rank_)) {
                const std::int64_t own_width = widths[static_cast<std::size_t>(rank_)];
                parallel_ranges(num_rows, row_ns, [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t i = begin; i < end; ++i) {
                        std::memcpy(slot(rank_) + i * part(rank_), x + (row + i) * own_width + column, num_bytes(rank_));
                    }
                });
            }
            exchange();
            parallel_ranges(num_rows, row_ns * static_cast<double>(size_), [&](std::int64_t begin, std::int64_t end) {
                std::int64_t start = column;
                for (std::int64_t peer = 0; peer < size_; ++peer) {
                    const float* from = slot(peer);
                    for (std::int64_t i = begin; i < end; ++i) {
                        std::memcpy(out + (row + i) * width + start, from + i * part(peer), num_bytes(peer));
                    }
                    start += widths[static_cast<std::size_t>(peer)];
                }
            });
            ++exchanges_;
        }
    }
}

std::int64_t SharedGroup::check_widths(const std::vector<std::int64_t>& widths) const {
    if (static_cast<std::int64_t>(widths.size()) != size_ || *std::min_element(widths.begin(), widths.end()) < 0) {
        raise_value_error("widths must be one for each of %lld ranks, and none negative", static_cast<long long>(size_));
    }
    return std::accumulate(widths.begin(), widths.end(), std::int64_t{0});
}

void SharedGroup::broadcast(float* data, std::int64_t count, std::int64_t root) {
    for (std::int64_t done = 0; done < count; done += slot_floats_) {
        const auto bytes = static_cast<std::size_t>(std::min(slot_floats_, count - done)) * sizeof(float);
        if (rank_ == root) std::memcpy(slot(rank_), data + done, bytes);
        exchange();
        if (rank_ != root) std::memcpy(data + done, slot(root), bytes);
        ++exchanges_;
    }
}

void SharedGroup::barrier() {
    exchange();
    ++exchanges_;
}

void SharedGroup::send(const float* data, std::int64_t count) {
    if (rank_ + 1 >= size_) raise_value_error("the last rank has no next one");
    RankState& own = state(rank_);
    for (std::int64_t done = 0; done < count;) {
        const std::uint64_t sent = own.sent.load(std::memory_order_relaxed);
        std::int64_t room = 0;
        wait(rank_ + 1, [&] {
            room = ring_floats_ - static_cast<std::int64_t>(sent - own.received.load(std::memory_order_acquire));
            return room > 0;
        });
        const std::int64_t place = static_cast<std::int64_t>(sent % static_cast<std::uint64_t>(ring_floats_));
        const std::int64_t part = std::min({room, count - done, ring_floats_ - place});
        std::memcpy(ring(rank_) + place, data + done, static_cast<std::size_t>(part) * sizeof(float));
        own.sent.store(sent + static_cast<std::uint64_t>(part), std::memory_order_release);
        done += part;
    }
}

void SharedGroup::receive(float* data, std::int64_t count) {
    if (rank_ == 0) raise_value_error("the first rank has no previous one");
    RankState& sender = state(rank_ - 1);
    for (std::int64_t done = 0; done < count;) {
        const std::uint64_t received = sender.received.load(std::memory_order_relaxed);
        std::int64_t there = 0;
        wait(rank_ - 1, [&] {
            there = static_cast<std::int64_t>(sender.sent.load(std::memory_order_acquire) - received);
            return there > 0;
        });
        const std::int64_t place = static_cast<std::int64_t>(received % static_cast<std::uint64_t>(ring_floats_));
        const std::int64_t part = std::min({there, count - done, ring_floats_ - place});
        std::memcpy(data + done, ring(rank_ - 1) + place, static_cast<std::size_t>(part) * sizeof(float));
        sender.received.store(received + static_cast<std::uint64_t>(part), std::memory_order_release);
        done += part;
    }
}

void SharedGroup::abort() {
    if (memory_ != nullptr) reinterpret_cast<Header*>(memory_)->aborted.store(1);
}

void SharedGroup::close() {
    if (memory_ == nullptr) return;
    munmap(memory_, static_cast<std::size_t>(memory_bytes_));
    ::close(file_);  // and with it the lock that says that this rank lives
    memory_ = nullptr;
}

// -- the border --------------------------------------------------------------------------------------------------------

namespace {

void translate(const std::exception_ptr& error, void* python_type) {
    try {
        std::rethrow_exception(error);
    } catch (const PeerLost& lost) {
        PyErr_SetString(static_cast<PyObject*>(python_type), lost.what());
    }
}

template <class Use>
void with_array(nb::handle array, const Use& use) {
    const Vector<float> data = read_writable_vector(array, "array");
    nb::gil_scoped_release nogil;
    use(data);
}

}  // namespace

void bind_shared_group(nb::module_& m) {
    nb::object lost = nb::module_::import_("octavo.errors").attr("PeerLostError");
    nb::register_exception_translator(&translate, lost.release().ptr());
    nb::class_<SharedGroup>(m, "SharedGroup", "One rank's end of the shared memory of a group; see octavo/distributed/group.py.")
        .def(nb::init<const std::string&, const std::string&, std::int64_t, std::int64_t, std::int64_t, std::int64_t, double>(),
             nb::arg("path"), nb::arg("name"), nb::arg("rank"), nb::arg("size"), nb::arg("slot_floats"), nb::arg("ring_floats"),
             nb::arg("timeout_s"), nb::call_guard<nb::gil_scoped_release>())
        .def("all_reduce",
             [](SharedGroup& group, nb::handle array) {
                 with_array(array, [&](const Vector<float>& data) { group.all_reduce(data.data, data.size, data.data); });
             })
        .def("all_gather",
             [](SharedGroup& group, nb::handle x_array, const std::vector<std::int64_t>& widths) {
                 const std::int64_t width = group.check_widths(widths);
                 const Matrix<const float> x = read_matrix<float>(x_array, "x", kAnySize, widths[static_cast<std::size_t>(group.rank())]);
                 if (x.rows > 1 && x.row_stride != x.columns) raise_value_error("x must be contiguous");
                 NewArray<float> out = new_array<float>({x.rows, width});
                 nb::gil_scoped_release nogil;
                 group.all_gather(x.data, x.rows, widths, out.data);
                 return std::move(out.object);
             })
        .def("broadcast",
             [](SharedGroup& group, nb::handle array, std::int64_t root) {
                 if (root < 0 || root >= group.size()) raise_value_error("root must be a rank");
                 with_array(array, [&](const Vector<float>& data) { group.broadcast(data.data, data.size, root); });
             })
        .def("send", [](SharedGroup& group, nb::handle array) {
            with_array(array, [&](const Vector<float>& data) { group.send(data.data, data.size); });
        })
        .def("receive", [](SharedGroup& group, nb::handle array) {
            with_array(array, [&](const Vector<float>& data) { group.receive(data.data, data.size); });
        })
        .def("barrier", &SharedGroup::barrier, nb::call_guard<nb::gil_scoped_release>())
        .def("abort", &SharedGroup::abort)
        .def("close", &SharedGroup::close);
}

}  // namespace octavo
