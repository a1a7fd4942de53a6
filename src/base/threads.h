// One fixed pool of threads with a static partition of work: thread count changes who computes an output, never how.
// Every thread runs with flush-to-zero and denormals-are-zero set (exactness.md rule 7).
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace foretoken {

// Sets FTZ and DAZ of the calling thread. Call it in every thread that computes model values.
void set_float_environment();

class ThreadPool {
 public:
  // A borrowed callable void(int64_t begin, int64_t end, int thread); never outlives the call that made it.
  class Body {
   public:
    template <class F>
      requires(!std::is_same_v<std::remove_cvref_t<F>, Body>)
    Body(F&& f)
        : object_(const_cast<void*>(static_cast<const void*>(&f))),
          call_([](void* object, int64_t begin, int64_t end, int thread) {
            (*static_cast<std::remove_reference_t<F>*>(object))(begin, end, thread);
          }) {}
    void operator()(int64_t begin, int64_t end, int thread) const { call_(object_, begin, end, thread); }

   private:
    void* object_;
    void (*call_)(void*, int64_t, int64_t, int);
  };

  // `threads` >= 1 counts the caller: a pool of one runs everything inline.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const;
  static constexpr int kPiecesPerShare = 8;

  // Calls body(begin, end, thread) for a partition of [0, count) into at most size() * kPiecesPerShare contiguous ranges whose bounds
  // are multiples of `grain` (except the end) and depend on nothing but count, grain and size(); `thread` in [0, size()) names who runs
  // it, so it may index scratch memory. Which thread runs a range varies, but mostly the same one does. The caller works too and
  // returns when all is done. Not reentrant.
  void parallel_for(int64_t count, int64_t grain, Body body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Processors this process may use (affinity and cgroup CPU quota respected), at least 1.
int usable_processors();

}  // namespace foretoken
