// Collectives between processes of one machine, over a file mapped into all of them. Contract: octavo/distributed/group.py.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "arrays.h"

namespace octavo {

// Another rank is gone, hangs or gave up; becomes octavo.errors.PeerLostError.
struct PeerLost : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// One rank's end. Every rank publishes how many exchanges it has begun; its data of exchange n lies in buffer n % 2 of its slot
// until it begins exchange n + 2, which nobody lets it before all have read exchange n. Members need no GIL; not thread-safe.
class SharedGroup {
  public:
    // Rank 0 makes the file at `path`; the others wait for it. Returns when all are there. `name` goes into messages.
    // Throws PeerLost, or a ValueError when there is no memory for the file.
    SharedGroup(const std::string& path, const std::string& name, std::int64_t rank, std::int64_t size, std::int64_t slot_floats,
                std::int64_t ring_floats, double timeout_s);
    ~SharedGroup() { close(); }
    SharedGroup(const SharedGroup&) = delete;
    SharedGroup& operator=(const SharedGroup&) = delete;

    std::int64_t rank() const { return rank_; }
    std::int64_t size() const { return size_; }

    // out [count] = sum over ranks of x, added in their order; may be x.
    void all_reduce(const float* x, std::int64_t count, float* out);
    // out [rows, sum of widths]: each rank's columns side by side; x [rows, widths[rank]] holds this rank's.
    void all_gather(const float* x, std::int64_t rows, const std::vector<std::int64_t>& widths, float* out);
    // Where x may lie so that all_gather, if it is the next exchange, copies less; null where it has no room there.
    float* place_to_gather_from(std::int64_t rows, const std::vector<std::int64_t>& widths) const;
    // Raises ValueError unless there is a width for each rank; returns their sum.
    std::int64_t check_widths(const std::vector<std::int64_t>& widths) const;
    void broadcast(float* data, std::int64_t count, std::int64_t root);
    void send(const float* data, std::int64_t count);
    void receive(float* data, std::int64_t count);
    void barrier();
    void abort();
    void close();

  private:
    struct Header;
    struct RankState;

    void map_file(const std::string& path, std::int64_t file_bytes, double timeout_s);
    // Takes this rank's lock, and waits until all ranks are there.
    void join(const std::string& path);
    RankState& state(std::int64_t rank) const;
    float* slot(std::int64_t rank) const;  // of the exchange under way
    float* ring(std::int64_t rank) const;
    // Announces this rank's data of an exchange, and waits for everybody's.
    void exchange();
    template <class Ready>
    void wait(std::int64_t peer, const Ready& ready) const;
    void check_peer(std::int64_t peer) const;
    bool lives(std::int64_t peer) const;
    [[noreturn]] void lose(std::int64_t peer, const char* what) const;

    std::string name_;
    std::int64_t rank_;
    std::int64_t size_;
    std::int64_t slot_floats_;
    std::int64_t ring_floats_;
    double timeout_s_;
    int file_ = -1;
    std::uint8_t* memory_ = nullptr;
    std::int64_t memory_bytes_ = 0;
    std::uint64_t exchanges_ = 0;
};

// Binds SharedGroup and its exception.
void bind_shared_group(nb::module_& m);

}  // namespace octavo
