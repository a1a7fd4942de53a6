// Two streams and their events.
#include "cuda/transfers.h"

#include <algorithm>

#include "cuda/memory.h"

namespace foretoken::cuda {

Transfers::Transfers(Queue& queue) : queue_(queue) {
  for (Way* way : {&out_, &in_})
    check(cudaStreamCreateWithFlags(&way->stream, cudaStreamNonBlocking), "creating a stream");
  ready_ = take_event();
}

Transfers::~Transfers() {
  for (Way* way : {&out_, &in_}) {
    cudaStreamSynchronize(way->stream);
    for (const Batch& batch : way->batches) cudaEventDestroy(batch.done);
    cudaStreamDestroy(way->stream);
  }
  for (cudaEvent_t event : spare_) cudaEventDestroy(event);
  cudaEventDestroy(ready_);
}

TransferId Transfers::begin(std::span<const TransferPiece> pieces, TransferWay way) {
  Way& w = way == TransferWay::kToStaging ? out_ : in_;
  queue_.flush();
  check(cudaEventRecord(ready_, queue_.stream()), "a transfer");
  check(cudaStreamWaitEvent(w.stream, ready_, 0), "a transfer");
  const cudaMemcpyKind kind = way == TransferWay::kToStaging ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice;
  for (const TransferPiece& piece : pieces)
    check(cudaMemcpyAsync(piece.to, piece.from, piece.bytes, kind, w.stream), "a transfer");
  w.batches.push_back({++last_, take_event()});
  check(cudaEventRecord(w.batches.back().done, w.stream), "a transfer");
  return last_;
}

bool Transfers::finished(TransferId transfer) {
  Way* const way = way_of(transfer);
  if (way == nullptr) return true;
  const auto batch =
      std::find_if(way->batches.begin(), way->batches.end(), [&](const Batch& b) { return b.id == transfer; });
  const cudaError_t status = cudaEventQuery(batch->done);
  if (status == cudaErrorNotReady) return false;
  check(status, "a transfer");
  retire(*way, transfer);
  return true;
}

void Transfers::finish(TransferId transfer) {
  Way* const way = way_of(transfer);
  if (way == nullptr) return;
  const auto batch =
      std::find_if(way->batches.begin(), way->batches.end(), [&](const Batch& b) { return b.id == transfer; });
  check(cudaEventSynchronize(batch->done), "a transfer");
  retire(*way, transfer);
}

cudaEvent_t Transfers::take_event() {
  cudaEvent_t event = nullptr;
  if (spare_.empty()) {
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event");
  } else {
    event = spare_.back();
    spare_.pop_back();
  }
  return event;
}

// Null when it is known to be done.
Transfers::Way* Transfers::way_of(TransferId transfer) {
  for (Way* way : {&out_, &in_})
    if (std::any_of(way->batches.begin(), way->batches.end(), [&](const Batch& b) { return b.id == transfer; }))
      return way;
  return nullptr;
}

// Whatever came before a batch that is done is done too.
void Transfers::retire(Way& way, TransferId through) {
  while (!way.batches.empty() && way.batches.front().id <= through) {
    spare_.push_back(way.batches.front().done);
    way.batches.pop_front();
  }
}

}  // namespace foretoken::cuda
