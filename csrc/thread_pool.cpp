#include "thread_pool.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#define OCTAVO_HAS_FORK 1
#endif

namespace octavo {
namespace {

// How long a worker looks for new work before it sleeps: longer than the Python between two ops of a forward, far shorter than
// the pause between two requests. An idle pool costs no CPU time.
constexpr auto kSpinTime = std::chrono::microseconds(100);
constexpr int kSpinsBetweenClockReads = 64;

// How many callers are in the middle of a step: see ThreadsAwake.
std::atomic<int> num_awake{0};

inline void pause_cpu() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

class ThreadPool {
  public:
    explicit ThreadPool(int count) {
        for (int i = 1; i < count; ++i) workers_.emplace_back([this] { work(); });
    }

    // Waits for running work, then ends the threads. The object stays valid and looks busy for ever: a caller that still holds
    // it works alone.
    void retire() {
        while (busy_.exchange(true)) std::this_thread::yield();
        stopping_.store(true);
        publish();
        for (std::thread& worker : workers_) worker.join();
        workers_.clear();
    }

    // Returns false, having done nothing, when another caller's work is running.
    bool try_run(std::int64_t num_tiles, TileFunction function, void* context) {
        if (busy_.exchange(true, std::memory_order_acquire)) return false;
        function_ = function;
        context_ = context;
        num_tiles_ = num_tiles;
        next_tile_.store(0, std::memory_order_relaxed);
        open_.store(true);
        publish();
        take_tiles();
        // No worker may enter any more; wait for those that did. A worker raises inside_ before it reads open_, and this thread
        // clears open_ before it reads inside_, both sequentially consistent: one of the two sees the other.
        open_.store(false);
        for (int spins = 0; inside_.load() != 0; ++spins) {
            if (spins < 10000) {
                pause_cpu();
            } else {
                std::this_thread::yield();  // the worker's CPU is taken by somebody else: give it this one
            }
        }
        busy_.store(false, std::memory_order_release);
        return true;
    }

  private:
    // Announces a new epoch; wakes sleepers only if there are any.
    void publish() {
        epoch_.fetch_add(1);
        if (num_sleeping_.load() == 0) return;
        { std::lock_guard<std::mutex> lock(mutex_); }
        wake_.notify_all();
    }

    void take_tiles() {
        const std::int64_t num_tiles = num_tiles_;
        while (true) {
            const std::int64_t tile = next_tile_.fetch_add(1, std::memory_order_relaxed);
            if (tile >= num_tiles) return;
            function_(context_, tile);
        }
    }

    void work();

    // Returns the first epoch that differs from `seen`: spins for a while, then sleeps.
    std::uint64_t wait_for_epoch(std::uint64_t seen) {
        const auto deadline = std::chrono::steady_clock::now() + kSpinTime;
        do {
            for (int i = 0; i < kSpinsBetweenClockReads; ++i) {
                const std::uint64_t epoch = epoch_.load();
                if (epoch != seen) return epoch;
                pause_cpu();
            }
            // Within a step: nobody wakes this thread up, but whoever waits for its CPU gets it.
            if (num_awake.load(std::memory_order_relaxed) > 0 && std::chrono::steady_clock::now() >= deadline) {
                std::this_thread::yield();
            }
        } while (num_awake.load(std::memory_order_relaxed) > 0 || std::chrono::steady_clock::now() < deadline);
        std::unique_lock<std::mutex> lock(mutex_);
        num_sleeping_.fetch_add(1);  // before the last look at epoch_: see publish()
        wake_.wait(lock, [&] { return epoch_.load() != seen; });
        num_sleeping_.fetch_sub(1);
        return epoch_.load();
    }

    std::vector<std::thread> workers_;

    alignas(64) std::atomic<bool> busy_{false};
    alignas(64) std::atomic<std::uint64_t> epoch_{0};
    alignas(64) std::atomic<std::int64_t> next_tile_{0};
    alignas(64) std::atomic<int> inside_{0};
    alignas(64) std::atomic<bool> open_{false};
    TileFunction function_ = nullptr;
    void* context_ = nullptr;
    std::int64_t num_tiles_ = 0;

    std::atomic<bool> stopping_{false};
    std::atomic<int> num_sleeping_{0};
    std::mutex mutex_;
    std::condition_variable wake_;
};

// True while this thread runs a tile: a tile that asks for parallel work does it alone.
thread_local bool inside_tile = false;

void ThreadPool::work() {
    inside_tile = true;
    std::uint64_t seen = 0;
    while (true) {
        seen = wait_for_epoch(seen);
        if (stopping_.load()) return;
        inside_.fetch_add(1);
        if (open_.load()) take_tiles();
        inside_.fetch_sub(1);
    }
}

// The pool is built at first use and never destroyed at exit: its threads sleep, and joining them in a static destructor
// would hang a process whose threads are already gone.
std::atomic<ThreadPool*> the_pool{nullptr};
std::atomic<int> wanted_threads{1};
std::mutex pool_mutex;

#if defined(OCTAVO_HAS_FORK)
// A forked child has only the thread that forked. It leaks the parent's pool, whose threads do not exist here, and builds its
// own at first use.
void after_fork_in_child() { the_pool.store(nullptr); }
#endif

ThreadPool& pool() {
    ThreadPool* existing = the_pool.load(std::memory_order_acquire);
    if (existing != nullptr) return *existing;
    std::lock_guard<std::mutex> lock(pool_mutex);
    existing = the_pool.load();
    if (existing != nullptr) return *existing;
#if defined(OCTAVO_HAS_FORK)
    static const bool registered = pthread_atfork([] { pool_mutex.lock(); }, [] { pool_mutex.unlock(); }, [] {
        after_fork_in_child();
        pool_mutex.unlock();
    }) == 0;
    (void)registered;
#endif
    ThreadPool* made = new ThreadPool(num_threads());
    the_pool.store(made, std::memory_order_release);
    return *made;
}

}  // namespace

int num_threads() {
    return wanted_threads.load(std::memory_order_relaxed);
}

void set_num_threads(int count) {
    std::lock_guard<std::mutex> lock(pool_mutex);
    wanted_threads.store(count);
    ThreadPool* old = the_pool.exchange(nullptr);
    if (old != nullptr) old->retire();  // and leak it, a few hundred bytes: another thread may be about to ask it
}

void run_tiles(std::int64_t num_tiles, TileFunction function, void* context) {
    if (num_tiles > 1 && num_threads() > 1 && !inside_tile) {
        inside_tile = true;
        const bool done = pool().try_run(num_tiles, function, context);
        inside_tile = false;
        if (done) return;
    }
    for (std::int64_t tile = 0; tile < num_tiles; ++tile) function(context, tile);
}

ThreadsAwake::ThreadsAwake() { num_awake.fetch_add(1); }
ThreadsAwake::~ThreadsAwake() { num_awake.fetch_sub(1); }

std::int64_t choose_num_tiles(std::int64_t num_items, double item_ns) {
    // Below this, alone is faster. Within a step the others are awake.
    const double worth_sharing_ns = num_awake.load(std::memory_order_relaxed) > 0 ? 2500 : 8000;
    constexpr double kTile_ns = 20000;         // a tile of this size makes the hand-out's cost vanish
    constexpr std::int64_t kMaxTilesPerThread = 8;
    const std::int64_t threads = num_threads();
    const double total_ns = item_ns * static_cast<double>(num_items);
    if (threads == 1 || num_items <= 1 || total_ns < worth_sharing_ns) return 1;
    std::int64_t tiles = static_cast<std::int64_t>(total_ns / kTile_ns) / threads * threads;
    if (tiles < threads) tiles = threads;
    if (tiles > threads * kMaxTilesPerThread) tiles = threads * kMaxTilesPerThread;
    return tiles < num_items ? tiles : num_items;
}

}  // namespace octavo
