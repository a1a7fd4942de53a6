// Copies between device and pinned memory that go on beside the queue's launches, each way on a stream of its own: a
// batch begins behind everything enqueued before it, and an event tells when it is done. The queue never waits for
// them; who needs one asks.
#pragma once

#include <cuda_runtime.h>

#include <deque>
#include <span>
#include <vector>

#include "cuda/queue.h"
#include "ops/ops.h"

namespace foretoken::cuda {

class Transfers {
 public:
  explicit Transfers(Queue& queue);
  ~Transfers();  // waits for all
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  TransferId begin(std::span<const TransferPiece> pieces, TransferWay way);
  bool finished(TransferId transfer);
  void finish(TransferId transfer);

 private:
  struct Batch {
    TransferId id = 0;
    cudaEvent_t done = nullptr;
  };
  // Batches of one way, in the order in which they begin and end.
  struct Way {
    cudaStream_t stream = nullptr;
    std::deque<Batch> batches;
  };
  cudaEvent_t take_event();
  Way* way_of(TransferId transfer);
  void retire(Way& way, TransferId through);

  Queue& queue_;
  Way out_, in_;
  std::vector<cudaEvent_t> spare_;
  cudaEvent_t ready_ = nullptr;  // what was enqueued before the batch that begins
  TransferId last_ = 0;
};

}  // namespace foretoken::cuda
