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

size_t page_count(int64_t slots) { return static_cast<size_t>((slots + kPageTokens - 1) / kPageTokens); }

void copy_memory(Backend& backend, std::byte* from, std::byte* to, size_t bytes) {
  if (bytes > 0) backend.copy(bytes_of(from, bytes), bytes_of(to, bytes));
}
void copy_page(PagePool& pool, std::byte* from, std::byte* to) { copy_memory(pool.backend(), from, to, pool.layout().page_bytes()); }

void upload(Backend& backend, std::span<const std::byte> host, std::byte* to) {
  if (!host.empty()) backend.upload(bytes_of(const_cast<std::byte*>(host.data()), host.size()), bytes_of(to, host.size()));
}

std::vector<std::byte> on_host(Backend& backend, std::byte* memory, size_t bytes) {
  std::vector<std::byte> copy(bytes);
  if (bytes > 0) backend.download(bytes_of(memory, bytes), bytes_of(copy.data(), bytes));
  return copy;
}

}  // namespace

std::byte* PagePool::take() {
  CHECK(in_use_ < limit_);
  if (free_.empty()) {
    const size_t page = page_stride(), count = std::min(pages_per_slab(layout_, memory_), limit_ - in_use_);
    slabs_.push_back(memory_ == Memory::kStaging ? backend_.allocate_staging(count * page) : backend_.allocate(count * page));
    slab_begins_.insert(slabs_.back().data());
    allocated_bytes_ += count * page;
    for (size_t i = count; i-- > 0;) free_.push_back(slabs_.back().data() + i * page);
  }
  std::byte* page = free_.back();
  free_.pop_back();
  ++in_use_;
  return page;
}

size_t PagePool::pages_per_slab(const KvLayout& layout, Memory memory) {
  const size_t slab = memory == Memory::kStaging ? 32u << 20 : 1u << 20;  // making staging memory is slow, piece by piece above all
  return std::max<size_t>(1, slab / std::max<size_t>(layout.page_bytes(), 64));
}

void PagePool::give_back(std::byte* page) {
  CHECK(page != nullptr);
  CHECK(in_use_ > 0);
  if (const auto more = more_holders_.find(page); more != more_holders_.end()) {
    if (--more->second == 0) more_holders_.erase(more);
    return;
  }
  free_.push_back(page);
  --in_use_;
}

// A cache at its limit drops about one entry for each that it takes, so one would nearly do; more would be memory that no limit counts.
constexpr size_t kSpareMemories = 2;

Buffer PagePool::take_memory(size_t bytes) {
  for (Buffer& memory : spare_memory_)
    if (memory.size() == bytes) {
      std::swap(memory, spare_memory_.back());
      Buffer taken = std::move(spare_memory_.back());
      spare_memory_.pop_back();
      return taken;
    }
  return backend_.allocate(bytes);
}

void PagePool::give_back_memory(Buffer memory) {
  if (spare_memory_.size() < kSpareMemories) spare_memory_.push_back(std::move(memory));
}

namespace {

size_t recurrent_bytes_of(const ModelConfig& config) {
  return static_cast<size_t>(config.delta_layers()) * (config.delta.state_floats() + config.delta.tail_floats()) * sizeof(float);
}

}  // namespace

// ---- Checkpoints

Checkpoint::~Checkpoint() {
  for (std::byte* page : pages_) pool_.give_back(page);
  pool_.give_back_memory(std::move(recurrent_));
}

bool Checkpoint::finite() const {
  const View values = View::of(reinterpret_cast<float*>(recurrent_.data()), 1, static_cast<int64_t>(recurrent_.size() / sizeof(float)));
  return pool_.backend().all_finite({&values, 1});
}

std::vector<std::byte> Checkpoint::recurrent() const { return on_host(pool_.backend(), recurrent_.data(), recurrent_.size()); }

std::vector<std::byte> Checkpoint::page(size_t i) const {
  CHECK(i < pages_.size());
  return on_host(pool_.backend(), pages_[i], pool_.layout().page_bytes());
}

std::unique_ptr<Checkpoint> Checkpoint::from_bytes(const ModelConfig& config, PagePool& pool, int64_t length,
                                                   std::span<const std::byte> pages, std::span<const std::byte> recurrent) {
  const size_t page_bytes = pool.layout().page_bytes(), count = page_count(length);
  if (length < 1 || pages.size() != count * page_bytes || recurrent.size() != recurrent_bytes_of(config)) return nullptr;
  std::unique_ptr<Checkpoint> c = blank(pool, length, recurrent.size(), {});
  for (size_t i = 0; i < count; ++i) upload(pool.backend(), pages.subspan(i * page_bytes, page_bytes), c->pages_[i]);
  upload(pool.backend(), recurrent, c->recurrent_.data());
  return c;
}

std::unique_ptr<Checkpoint> Checkpoint::blank(PagePool& pool, int64_t length, size_t recurrent_bytes, std::span<std::byte* const> known) {
  std::unique_ptr<Checkpoint> c(new Checkpoint(pool));
  c->length_ = length;
  CHECK(known.size() <= c->full_pages());
  for (size_t i = 0; i < page_count(length); ++i) {
    const bool shared = i < known.size() && known[i] != nullptr;
    if (shared) pool.share(known[i]);
    c->pages_.push_back(shared ? known[i] : pool.take());
  }
  c->recurrent_ = pool.take_memory(recurrent_bytes);
  return c;
}

std::unique_ptr<Checkpoint> LaneState::checkpoint() const {
  CHECK(pending_rows_ == 0);
  std::unique_ptr<Checkpoint> c(new Checkpoint(pool_));
  c->length_ = length_;
  for (size_t i = 0; i < c->full_pages(); ++i) {
    pool_.share(pages_[i]);
    c->pages_.push_back(pages_[i]);
  }
  if (length_ % kPageTokens != 0) {
    c->pages_.push_back(pool_.take());
    copy_page(pool_, pages_[c->full_pages()], c->pages_.back());
  }
  c->recurrent_ = pool_.take_memory(recurrent_.size());
  copy_memory(pool_.backend(), recurrent_.data(), c->recurrent_.data(), recurrent_.size());
  return c;
}

std::unique_ptr<Checkpoint> LaneState::give_up() {
  CHECK(pending_rows_ == 0);
  std::unique_ptr<Checkpoint> c(new Checkpoint(pool_));
  c->length_ = length_;
  const auto kept = pages_.begin() + static_cast<ptrdiff_t>(page_count(length_));
  c->pages_.assign(pages_.begin(), kept);
  pages_.erase(pages_.begin(), kept);
  c->recurrent_ = pool_.take_memory(recurrent_.size());
  copy_memory(pool_.backend(), recurrent_.data(), c->recurrent_.data(), recurrent_.size());
  reset();
  return c;
}

void LaneState::restore(const Checkpoint& saved) {
  CHECK(&saved.pool_ == &pool_);
  CHECK(saved.recurrent_.size() == recurrent_.size());
  reset();
  for (size_t i = 0; i < saved.full_pages(); ++i) {
    pool_.share(saved.pages_[i]);
    pages_.push_back(saved.pages_[i]);
  }
  if (saved.pages_.size() > saved.full_pages()) {
    pages_.push_back(pool_.take());
    copy_page(pool_, saved.pages_.back(), pages_.back());
  }
  copy_memory(pool_.backend(), saved.recurrent_.data(), recurrent_.data(), recurrent_.size());
  length_ = saved.length_;
}

// ---- Lanes

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
  const size_t needed = page_count(slots);
  while (pages_.size() < needed) pages_.push_back(pool_.take());
}

std::string LaneState::hash() const {
  const KvLayout& kv = pool_.layout();
  const std::vector<std::byte> recurrent = on_host(pool_.backend(), recurrent_.data(), recurrent_.size());
  std::vector<std::vector<std::byte>> pages;
  for (int64_t slot = 0; slot < length_; slot += kPageTokens) pages.push_back(on_host(pool_.backend(), pages_[size_t(slot / kPageTokens)], kv.page_bytes()));
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
