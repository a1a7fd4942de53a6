// Gathering, graphs and the small data of passes.
#include "cuda/queue.h"

#include <algorithm>

#include "cuda/memory.h"

namespace foretoken::cuda {
namespace {

constexpr size_t kFewLaunches = 6;  // not worth a graph
// The device starts on the first launches of a pass while the host describes the next, which takes it less than a fourth
// of the device's time: so each list may be three times as long as the one before.
constexpr size_t kFirstLaunches = 12, kMostLaunches = 1024, kGrowth = 3;
constexpr size_t kMostGraphs = 120;

std::vector<Queue*>& live() {
  static std::vector<Queue*> queues;
  return queues;
}

size_t rounded(size_t bytes) { return (bytes + 255) / 256 * 256; }

bool same(dim3 a, dim3 b) { return a.x == b.x && a.y == b.y && a.z == b.z; }

}  // namespace

Queue::Queue(bool graphs, const Limits& limits)
    : graphs_allowed_(graphs),
      limits_(limits),
      most_pending_(kFirstLaunches),
      pinned_(pinned_memory(kDataBytes)),
      data_(device_memory(kDataBytes)) {
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
  live().push_back(this);
}

Queue::~Queue() {
  flush();
  cudaStreamSynchronize(stream_);
  live().erase(std::remove(live().begin(), live().end(), this), live().end());
  while (!graphs_.empty()) drop(graphs_.begin());
  cudaStreamDestroy(stream_);
}

void Queue::flush_all() {
  for (Queue* queue : live()) queue->flush();
}

// ---- Lists

bool Queue::Launched::same_shape(const Launched& other) const {
  return kernel == other.kernel && same(grid, other.grid) && same(block, other.block) && shared == other.shared &&
         begin == other.begin && end == other.end;
}

void Queue::List::clear() {
  launches.clear();
  offsets.clear();
  bytes.clear();
}

bool Queue::List::same_shape(const List& other) const {
  return std::equal(launches.begin(), launches.end(), other.launches.begin(), other.launches.end(),
                    [](const Launched& a, const Launched& b) { return a.same_shape(b); });
}

uint64_t Queue::List::hash() const {
  uint64_t h = 14695981039346656037u;
  const auto add = [&h](uint64_t v) {
    h ^= v;
    h *= 0x9E3779B97F4A7C15u;
    h ^= h >> 29;
  };
  for (const Launched& l : launches) {
    add(reinterpret_cast<uint64_t>(l.kernel));
    add(uint64_t{l.grid.x} << 32 | l.grid.y);
    add(uint64_t{l.grid.z} << 32 | l.block.x);
    add(l.shared);
  }
  return h;
}

void Queue::begin_launch(const void* kernel, dim3 grid, dim3 block, size_t shared) {
  CHECK(shared <= limits_.block_shared);
  pending_.launches.push_back({.kernel = kernel,
                               .grid = grid,
                               .block = block,
                               .shared = shared,
                               .first_parameter = static_cast<uint32_t>(pending_.offsets.size()),
                               .parameters = 0,
                               .begin = static_cast<uint32_t>(pending_.bytes.size()),
                               .end = 0});
}

void Queue::put_parameter(const void* value, size_t bytes, size_t alignment) {
  const size_t at = (pending_.bytes.size() + alignment - 1) / alignment * alignment;
  pending_.bytes.resize(at + bytes);
  std::memcpy(pending_.bytes.data() + at, value, bytes);
  pending_.offsets.push_back(static_cast<uint32_t>(at));
  ++pending_.launches.back().parameters;
}

void Queue::end_launch() {
  pending_.launches.back().end = static_cast<uint32_t>(pending_.bytes.size());
  if (pending_.launches.size() == most_pending_) flush();
}

// ---- Data

const void* Queue::put(const void* data, size_t bytes) {
  const std::scoped_lock lock(mutex_);
  CHECK(at_ + bytes <= kDataBytes);
  const size_t at = at_;
  at_ += rounded(bytes);
  if (bytes > 0) std::memcpy(pinned_.data() + at, data, bytes);
  return data_.data() + at;
}

void Queue::make_room() {
  if (!has_room()) synchronize("an operator");
}

std::byte* Queue::staging(size_t bytes) {
  const std::scoped_lock lock(mutex_);
  if (bytes > kDataBytes / 4) return nullptr;
  if (at_ + bytes > kDataBytes) synchronize("an operator");
  send_data();
  std::byte* const p = pinned_.data() + at_;
  at_ += rounded(bytes);
  sent_ = at_;
  return p;
}

void Queue::send_data() {
  if (sent_ >= at_) return;
  const size_t end = std::min(at_, kDataBytes);
  check(cudaMemcpyAsync(data_.data() + sent_, pinned_.data() + sent_, end - sent_, cudaMemcpyHostToDevice, stream_),
        "an upload");
  sent_ = at_;
}

// ---- Sending

void Queue::flush() {
  const std::scoped_lock lock(mutex_);
  if (pending_.launches.empty() && sent_ >= at_) return;
  send_data();
  if (pending_.launches.size() <= kFewLaunches || !graphs_allowed_) {
    for (const Launched& l : pending_.launches) launch_one(pending_, l);
  } else {
    const uint64_t key = pending_.hash();
    auto found = by_key_.find(key);
    if (found != by_key_.end() && !found->second->list.same_shape(pending_)) {
      drop(found->second);
      found = by_key_.end();
    }
    if (found == by_key_.end() && ++seen_[key] >= 2) {
      make_graph(key);
      found = by_key_.find(key);
    }
    if (found == by_key_.end()) {
      for (const Launched& l : pending_.launches) launch_one(pending_, l);
    } else {
      launch_graph(*found->second);
    }
  }
  if (!pending_.launches.empty()) most_pending_ = std::min(most_pending_ * kGrowth, kMostLaunches);
  pending_.clear();
  check(cudaGetLastError(), "an operator");
}

void Queue::synchronize(const char* what) {
  const std::scoped_lock lock(mutex_);
  flush();
  check(cudaStreamSynchronize(stream_), what);
  at_ = sent_ = 0;
  most_pending_ = kFirstLaunches;
  ++epoch_;
}

namespace {

// What a kernel may ask for is the process's: it grows with what any queue asks.
void allow_shared(const void* kernel, size_t bytes) {
  static std::mutex mutex;
  static std::unordered_map<const void*, size_t> allowed_of;
  const std::scoped_lock lock(mutex);
  size_t& allowed = allowed_of[kernel];
  if (bytes <= allowed) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "asking for shared memory");
  allowed = bytes;
}

}  // namespace

void Queue::launch_one(const List& list, const Launched& launched) {
  void* parameters[64];
  CHECK(launched.parameters <= 64);
  for (uint32_t i = 0; i < launched.parameters; ++i)
    parameters[i] = const_cast<std::byte*>(list.bytes.data()) + list.offsets[launched.first_parameter + i];
  if (launched.shared > 0) allow_shared(launched.kernel, launched.shared);
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = launched.grid;
  config.blockDim = launched.block;
  config.dynamicSmemBytes = launched.shared;
  config.stream = stream_;
  config.attrs = &attribute;
  config.numAttrs = limits_.code.dependent_launch ? 1 : 0;  // kernels without the wait must not begin early
  check(cudaLaunchKernelExC(&config, launched.kernel, parameters), "a launch");
  ++counts_.launches;
}

// ---- Graphs

void Queue::make_graph(uint64_t key) {
  if (seen_.size() > 4096) seen_.clear();
  while (graphs_.size() >= kMostGraphs) drop(std::prev(graphs_.end()));
  Graph made{.key = key, .list = pending_, .nodes = {}};
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "a capture");
  for (const Launched& l : made.list.launches) {
    launch_one(made.list, l);
    cudaStreamCaptureStatus status;
    const cudaGraphNode_t* last = nullptr;
    const cudaGraphEdgeData* edges = nullptr;
    size_t count = 0;
    check(cudaStreamGetCaptureInfo(stream_, &status, nullptr, nullptr, &last, &edges, &count), "a capture");
    CHECK(count == 1);
    made.nodes.push_back(last[0]);
  }
  counts_.launches -= static_cast<int64_t>(made.list.launches.size());
  check(cudaStreamEndCapture(stream_, &made.graph), "a capture");
  check(cudaGraphInstantiate(&made.executable, made.graph, 0), "making a graph");
  graphs_.push_front(std::move(made));
  by_key_[key] = graphs_.begin();
  ++counts_.graphs;
}

void Queue::launch_graph(Graph& graph) {
  List& now = graph.list;
  for (size_t i = 0; i < now.launches.size(); ++i) {
    const Launched& l = pending_.launches[i];
    if (std::memcmp(now.bytes.data() + l.begin, pending_.bytes.data() + l.begin, l.end - l.begin) == 0) continue;
    void* parameters[64];
    for (uint32_t p = 0; p < l.parameters; ++p)
      parameters[p] = pending_.bytes.data() + pending_.offsets[l.first_parameter + p];
    cudaKernelNodeParams node = {};
    node.func = const_cast<void*>(l.kernel);
    node.gridDim = l.grid;
    node.blockDim = l.block;
    node.sharedMemBytes = static_cast<unsigned>(l.shared);
    node.kernelParams = parameters;
    check(cudaGraphExecKernelNodeSetParams(graph.executable, graph.nodes[i], &node), "changing a graph");
    ++counts_.updates;
  }
  now.bytes = pending_.bytes;
  check(cudaGraphLaunch(graph.executable, stream_), "launching a graph");
  ++counts_.replays;
  graphs_.splice(graphs_.begin(), graphs_, by_key_[graph.key]);
}

void Queue::drop(std::list<Graph>::iterator graph) {
  if (graph->executable) cudaGraphExecDestroy(graph->executable);
  if (graph->graph) cudaGraphDestroy(graph->graph);
  by_key_.erase(graph->key);
  graphs_.erase(graph);
}

}  // namespace foretoken::cuda
