// Memory of lanes. Layout of one delta layer's block: state, then tail; of its tape: decay, key, delta, conv_row.
#include "model/state.h"

#include <algorithm>
#include <cstring>

#include "base/file.h"

namespace foretoken {
namespace {

View bytes_of(std::byte* data, size_t bytes) {
  const int64_t count = static_cast<int64_t>(bytes);
  return {data, DType::kU8, 1, count, count};
}

}  // namespace

std::byte* PagePool::take() {
  if (free_.empty()) {
    constexpr size_t kSlabBytes = 1u << 20;
    const size_t page = std::max<size_t>(layout_.page_bytes(), 64);
    const size_t count = std::max<size_t>(1, kSlabBytes / page);
    slabs_.push_back(backend_.allocate(count * page));
    allocated_bytes_ += count * page;
    for (size_t i = count; i-- > 0;) free_.push_back(slabs_.back().data() + i * page);
  }
  std::byte* page = free_.back();
  free_.pop_back();
  ++in_use_;
  return page;
}

void PagePool::give_back(std::byte* page) {
  CHECK(page != nullptr);
  CHECK(in_use_ > 0);
  free_.push_back(page);
  --in_use_;
}

LaneState::LaneState(const ModelConfig& config, PagePool& pool, int tape_rows)
    : config_(config), pool_(pool), tape_rows_(tape_rows) {
  CHECK(tape_rows >= 1);
  const DeltaShape& d = config.delta;
  const size_t layers = static_cast<size_t>(config.delta_layers());
  const size_t state = d.state_floats(), tail = d.tail_floats();
  const size_t rows = static_cast<size_t>(tape_rows);
  const size_t decay = size_t(d.value_heads) * rows, key = size_t(d.key_heads * d.key_dim) * rows;
  const size_t delta = size_t(d.value_heads * d.value_dim) * rows, conv_row = size_t(d.channels()) * rows;
  recurrent_ = pool.backend().allocate(layers * (state + tail) * sizeof(float));
  tape_ = pool.backend().allocate(layers * (decay + key + delta + conv_row) * sizeof(float));
  float* memory = reinterpret_cast<float*>(recurrent_.data());
  float* tape = reinterpret_cast<float*>(tape_.data());
  const auto next = [](float*& cursor, size_t count) { return std::exchange(cursor, cursor + count); };
  for (size_t i = 0; i < layers; ++i) {
    DeltaMemory m;
    m.state = next(memory, state);
    m.tail = next(memory, tail);
    m.tape.decay = next(tape, decay);
    m.tape.key = next(tape, key);
    m.tape.delta = next(tape, delta);
    m.tape.conv_row = next(tape, conv_row);
    delta_.push_back(m);
  }
}

LaneState::~LaneState() { reset(); }

void LaneState::reset() {
  for (std::byte* page : pages_) pool_.give_back(page);
  pages_.clear();
  if (recurrent_.size() > 0) pool_.backend().clear(bytes_of(recurrent_.data(), recurrent_.size()));
  length_ = 0;
  pending_rows_ = pending_settled_ = 0;
}

void LaneState::reserve(int64_t slots) {
  const size_t needed = static_cast<size_t>((slots + kPageTokens - 1) / kPageTokens);
  while (pages_.size() < needed) pages_.push_back(pool_.take());
}

std::string LaneState::hash() const {
  const KvLayout& kv = pool_.layout();
  const auto on_host = [this](const std::byte* memory, size_t bytes) {
    std::vector<std::byte> copy(bytes);
    if (bytes > 0) pool_.backend().download(bytes_of(const_cast<std::byte*>(memory), bytes), bytes_of(copy.data(), bytes));
    return copy;
  };
  const std::vector<std::byte> recurrent = on_host(recurrent_.data(), recurrent_.size());
  std::vector<std::vector<std::byte>> pages;
  for (int64_t slot = 0; slot < length_; slot += kPageTokens) pages.push_back(on_host(pages_[size_t(slot / kPageTokens)], kv.page_bytes()));
  std::string all = std::to_string(length_) + ";";
  all.append(reinterpret_cast<const char*>(recurrent.data()), recurrent.size());
  const size_t element = kv.element_bytes();
  for (int layer = 0; layer < kv.layers; ++layer)
    for (int head = 0; head < kv.heads; ++head)
      for (int64_t slot = 0; slot < length_; ++slot) {
        const std::byte* page = pages[size_t(slot / kPageTokens)].data();
        const size_t in_page = static_cast<size_t>(slot % kPageTokens);
        const char* key = reinterpret_cast<const char*>(page + kv.key_offset(layer, head));
        const char* value = reinterpret_cast<const char*>(page + kv.value_offset(layer, head));
        for (int d = 0; d < kv.head_dim; ++d) all.append(key + (size_t(d) * kPageTokens + in_page) * element, element);
        all.append(value + in_page * size_t(kv.head_dim) * element, size_t(kv.head_dim) * element);
        if (kv.format != KvFormat::kInt8) continue;
        all.append(reinterpret_cast<const char*>(page + kv.key_scale_offset(layer, head)) + in_page * 4, 4);
        all.append(reinterpret_cast<const char*>(page + kv.value_scale_offset(layer, head)) + in_page * 4, 4);
      }
  return sha256_hex(all);
}

}  // namespace foretoken
