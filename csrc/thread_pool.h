// The process's one thread pool. Knows threads and tiles; knows nothing of what a tile computes.
#pragma once

#include <cstdint>

namespace octavo {

// A function to call for tiles [0, num_tiles), in any order, on any thread.
using TileFunction = void (*)(void* context, std::int64_t tile);

// Number of threads that take part in parallel_for, the calling one included; 1 until set_num_threads is called.
int num_threads();

// Replaces the pool by one of `count` threads (>= 1). Waits for running work.
void set_num_threads(int count);

// Calls function(context, tile) once for every tile and returns when all are done.
// Tiles are handed out one by one, so a thread that comes late (it slept, or its CPU is busy) holds up nobody. Hence results
// must not depend on which thread takes a tile. Runs on the calling thread alone when the pool is busy with another caller's
// work, or when called from inside a tile. `function` must not throw. Call it without the GIL.
void run_tiles(std::int64_t num_tiles, TileFunction function, void* context);

// The same with a callable: body(std::int64_t tile).
template <class Body>
void parallel_for(std::int64_t num_tiles, const Body& body) {
    run_tiles(
        num_tiles, [](void* context, std::int64_t tile) { (*static_cast<const Body*>(context))(tile); },
        const_cast<Body*>(&body));
}

// While one exists the workers do not sleep: parallel_for after parallel_for finds them awake.
class ThreadsAwake {
  public:
    ThreadsAwake();
    ~ThreadsAwake();
    ThreadsAwake(const ThreadsAwake&) = delete;
    ThreadsAwake& operator=(const ThreadsAwake&) = delete;
};

// A contiguous share of items: begin <= i < end.
struct Range {
    std::int64_t begin;
    std::int64_t end;
};

// Share `tile` of `num_items` divided evenly into `num_tiles`.
inline Range tile_range(std::int64_t num_items, std::int64_t num_tiles, std::int64_t tile) {
    return {num_items * tile / num_tiles, num_items * (tile + 1) / num_tiles};
}

// How many tiles to cut `num_items` into when one item takes about `item_ns` nanoseconds on one thread: one if a wake-up would
// cost more than it saves, else a few a thread for balance.
std::int64_t choose_num_tiles(std::int64_t num_items, double item_ns);

// Cuts num_items into choose_num_tiles(...) shares and calls body(begin, end) for each.
template <class Body>
void parallel_ranges(std::int64_t num_items, double item_ns, const Body& body) {
    const std::int64_t num_tiles = choose_num_tiles(num_items, item_ns);
    parallel_for(num_tiles, [&](std::int64_t tile) {
        const Range range = tile_range(num_items, num_tiles, tile);
        if (range.begin < range.end) body(range.begin, range.end);
    });
}

}  // namespace octavo
