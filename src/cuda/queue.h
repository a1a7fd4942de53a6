// Launches of one device, gathered until someone must see a result. A list of launches that came before is one graph,
// whose nodes get the parameters that differ; so a pass of a shape seen before costs the host little more than
// describing it. Small data of the host gathers beside the launches and is sent in one copy. One thread enqueues at a
// time.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <mutex>
#include <span>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "cuda/limits.h"
#include "numerics/tensor.h"

namespace foretoken::cuda {

struct QueueCounts {
  int64_t launches = 0, graphs = 0, replays = 0,
          updates = 0;  // single launches, graphs made, graphs launched, nodes with new parameters
};

class Queue {
 public:
  // `graphs` false: launches one by one.
  Queue(bool graphs, const Limits& limits);
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // Of the device and the kernels' code: what plans are made from.
  const Limits& limits() const { return limits_; }

  // Enqueues a launch that may overlap the end of the one before it. Parameters are plain data.
  template <class... Parameters>
  void add(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared,
           std::type_identity_t<Parameters>... arguments) {
    const std::scoped_lock lock(mutex_);
    begin_launch(reinterpret_cast<const void*>(kernel), grid, block, shared);
    (put_parameter(&arguments, sizeof(Parameters), alignof(Parameters)), ...);
    end_launch();
  }

  // Host data on the device: valid for launches enqueued before `synchronize` or `make_room` is called next.
  const void* put(const void* data, size_t bytes);
  template <class T>
  const std::remove_const_t<T>* put(std::span<T> data) {
    return static_cast<const std::remove_const_t<T>*>(put(data.data(), data.size_bytes()));
  }
  // Waits when data of `put` take much room: between operators only.
  void make_room();
  bool has_room() const { return at_ <= kDataBytes / 2; }  // make_room would do nothing
  // Pinned room of the host for one copy enqueued next; null when `bytes` are many.
  std::byte* staging(size_t bytes);

  // Sends everything gathered to the device; what is put on stream() afterwards comes behind it.
  void flush();
  // flush, and waits. Data of `put` end here.
  void synchronize(const char* what);
  cudaStream_t stream() const { return stream_; }
  // Changes when data of `put` end.
  int epoch() const { return epoch_; }
  const QueueCounts& counts() const { return counts_; }

  // Flushes every queue: before memory that launches may use is freed.
  static void flush_all();

 private:
  static constexpr size_t kDataBytes = 16u << 20;
  struct Launched {
    const void* kernel = nullptr;
    dim3 grid, block;
    size_t shared = 0;
    uint32_t first_parameter = 0, parameters = 0;  // offsets into `bytes`
    uint32_t begin = 0, end = 0;                   // of its parameters' bytes
    bool same_shape(const Launched& other) const;
  };
  struct List {
    std::vector<Launched> launches;
    std::vector<uint32_t> offsets;
    std::vector<std::byte> bytes;
    void clear();
    bool same_shape(const List& other) const;
    uint64_t hash() const;
  };
  struct Graph {
    uint64_t key = 0;
    List list;  // the parameters that its nodes have now
    std::vector<cudaGraphNode_t> nodes;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
  };

  void begin_launch(const void* kernel, dim3 grid, dim3 block, size_t shared);
  void put_parameter(const void* value, size_t bytes, size_t alignment);
  void end_launch();
  void send_data();
  void launch_one(const List& list, const Launched& launched);
  void make_graph(uint64_t key);
  void launch_graph(Graph& graph);
  void drop(std::list<Graph>::iterator graph);

  std::recursive_mutex mutex_;  // memory is freed by any thread, which flushes
  bool graphs_allowed_ = true;
  Limits limits_;
  cudaStream_t stream_ = nullptr;
  List pending_;
  size_t most_pending_ = 0;  // launches that are sent without being asked for
  std::list<Graph> graphs_;  // latest used first
  std::unordered_map<uint64_t, std::list<Graph>::iterator> by_key_;
  std::unordered_map<uint64_t, int> seen_;
  Buffer pinned_, data_;
  size_t at_ = 0, sent_ = 0;
  int epoch_ = 0;
  QueueCounts counts_;
};

}  // namespace foretoken::cuda
