// The pool: workers spin briefly for the next job (decode steps follow each other within microseconds), then sleep on a futex
// (std::atomic::wait). A job is cut into one share a thread and each share into pieces, always the same; a thread that is done with its
// own takes pieces of the others, so that a processor that is slow or busy with something else delays nobody for long.
#include "base/threads.h"

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/machine.h"

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
  uint32_t pieces = 1;  // of a share
  struct alignas(64) Cursor { std::atomic<uint64_t> value{0}; };  // generation << 32 | pieces of the share that are left
  std::unique_ptr<Cursor[]> cursors;                              // [threads]
  std::atomic<bool> stop{false};
  bool running = false;

  // Grains are dealt to the pieces as evenly as possible, in order.
  void run_piece(int64_t index, int thread) const {
    const int64_t grains = (count + grain - 1) / grain, all = int64_t{threads} * pieces;
    const int64_t first = grains * index / all * grain;
    const int64_t last = std::min(count, grains * (index + 1) / all * grain);
    if (first < last) (*body)(first, last, thread);
  }

  // Runs the pieces of generation `now` that nobody has taken, those of its own share first. A thread that wakes late finds another
  // generation in the cursors, or nothing left; only who has taken a piece may read the job.
  void run_free_pieces(int own, uint32_t now) {
    for (int i = 0; i < threads; ++i) {
      const int share = (own + i) % threads;
      std::atomic<uint64_t>& cursor = cursors[static_cast<size_t>(share)].value;
      uint64_t at = cursor.load(std::memory_order_acquire);
      while (static_cast<uint32_t>(at >> 32) == now && static_cast<uint32_t>(at) > 0) {
        if (!cursor.compare_exchange_weak(at, at - 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
        run_piece(int64_t{share} * pieces + pieces - static_cast<uint32_t>(at), own);
        if (pending.fetch_sub(1, std::memory_order_acq_rel) == 1) pending.notify_one();
        at = cursor.load(std::memory_order_acquire);
      }
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
      run_free_pieces(thread, now);
    }
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  CHECK(threads >= 1);
  state_->threads = threads;
  state_->cursors = std::make_unique<State::Cursor[]>(static_cast<size_t>(threads));
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
  const int64_t grains_each = ((count + grain - 1) / grain + s.threads - 1) / s.threads;
  s.pieces = static_cast<uint32_t>(std::min<int64_t>(kPiecesPerShare, grains_each));
  s.pending.store(static_cast<uint32_t>(s.threads) * s.pieces, std::memory_order_relaxed);
  const uint32_t now = s.generation.load(std::memory_order_relaxed) + 1;
  for (int t = 0; t < s.threads; ++t)
    s.cursors[static_cast<size_t>(t)].value.store(uint64_t{now} << 32 | s.pieces, std::memory_order_release);
  s.generation.store(now, std::memory_order_release);
  s.generation.notify_all();
  s.run_free_pieces(0, now);
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

int usable_processors() { return read_machine().processors; }

}  // namespace foretoken
