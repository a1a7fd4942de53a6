// The pool: workers spin briefly for the next job (decode steps follow each other within microseconds), then sleep on a futex
// (std::atomic::wait). A job is cut into one share a thread, always the same; a thread that is done takes the share of one that the
// system has not scheduled yet, so that a busy machine delays nobody.
#include "base/threads.h"

#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"

namespace foretoken {

void set_float_environment() {
  constexpr unsigned kFlushToZero = 0x8000u;
  constexpr unsigned kDenormalsAreZero = 0x0040u;
  _mm_setcsr(_mm_getcsr() | kFlushToZero | kDenormalsAreZero);
}

struct ThreadPool::State {
  int threads = 1;
  std::vector<std::thread> workers;
  const Body* body = nullptr;
  int64_t count = 0;
  int64_t grain = 1;
  alignas(64) std::atomic<uint32_t> generation{0};
  alignas(64) std::atomic<uint32_t> pending{0};
  std::unique_ptr<std::atomic<uint32_t>[]> claimed;  // [threads]: the latest generation whose share was taken
  std::atomic<bool> stop{false};
  bool running = false;

  // Share `index` of the job: grains are dealt as evenly as possible, in order.
  void run_share(int index) const {
    const int64_t grains = (count + grain - 1) / grain;
    const int64_t first = grains * index / threads * grain;
    const int64_t last = std::min(count, grains * (index + 1) / threads * grain);
    if (first < last) (*body)(first, last, index);
  }

  // Runs the shares of generation `now` that nobody has taken, its own first. Every share is taken once a generation, so a share
  // is free exactly when its mark is the generation before; a thread that wakes late finds nothing.
  void run_free_shares(int own, uint32_t now) {
    for (int i = 0; i < threads; ++i) {
      const int index = (own + i) % threads;
      uint32_t free = now - 1;
      if (!claimed[static_cast<size_t>(index)].compare_exchange_strong(free, now, std::memory_order_acq_rel)) continue;
      run_share(index);
      if (pending.fetch_sub(1, std::memory_order_acq_rel) == 1) pending.notify_one();
    }
  }

  static constexpr int kSpins = 2000;  // about 50 us of pauses: longer than the gap between two operators

  void work(int thread) {
    set_float_environment();
    uint32_t seen = 0;
    for (;;) {
      uint32_t now = generation.load(std::memory_order_acquire);
      for (int spin = 0; now == seen && spin < kSpins; ++spin) {
        _mm_pause();
        now = generation.load(std::memory_order_acquire);
      }
      while (now == seen) {
        generation.wait(seen, std::memory_order_acquire);
        now = generation.load(std::memory_order_acquire);
      }
      seen = now;
      if (stop.load(std::memory_order_acquire)) return;
      run_free_shares(thread, now);
    }
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  CHECK(threads >= 1);
  state_->threads = threads;
  state_->claimed = std::make_unique<std::atomic<uint32_t>[]>(static_cast<size_t>(threads));
  set_float_environment();
  for (int t = 1; t < threads; ++t) state_->workers.emplace_back([state = state_.get(), t] { state->work(t); });
}

ThreadPool::~ThreadPool() {
  state_->stop.store(true, std::memory_order_release);
  state_->generation.fetch_add(1, std::memory_order_acq_rel);
  state_->generation.notify_all();
  for (std::thread& worker : state_->workers) worker.join();
}

int ThreadPool::size() const { return state_->threads; }

void ThreadPool::parallel_for(int64_t count, int64_t grain, Body body) {
  CHECK(grain >= 1);
  if (count <= 0) return;
  State& s = *state_;
  if (s.threads == 1 || count <= grain) {
    body(0, count, 0);
    return;
  }
  CHECK(!s.running);
  s.running = true;
  s.body = &body;
  s.count = count;
  s.grain = grain;
  s.pending.store(static_cast<uint32_t>(s.threads), std::memory_order_relaxed);
  const uint32_t now = s.generation.fetch_add(1, std::memory_order_acq_rel) + 1;
  s.generation.notify_all();
  s.run_free_shares(0, now);
  uint32_t left = s.pending.load(std::memory_order_acquire);
  for (int spin = 0; left != 0 && spin < State::kSpins; ++spin) {
    _mm_pause();
    left = s.pending.load(std::memory_order_acquire);
  }
  while (left != 0) {
    s.pending.wait(left, std::memory_order_acquire);
    left = s.pending.load(std::memory_order_acquire);
  }
  s.running = false;
}

int usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int count = 1;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) count = std::max(1, CPU_COUNT(&set));
  std::ifstream quota("/sys/fs/cgroup/cpu.max");
  std::string limit;
  double period = 0;
  if (quota >> limit >> period && limit != "max" && period > 0) {
    const double cpus = std::atof(limit.c_str()) / period;
    if (cpus > 0) count = std::min(count, std::max(1, static_cast<int>(std::ceil(cpus))));
  }
  return count;
}

}  // namespace foretoken
