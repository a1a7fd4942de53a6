// Threads take contiguous ranges of groups with equal shares of the packed bytes, so that parts of different formats balance.
#include "cpu/products.h"

#include <algorithm>
#include <cstdint>

#include "cpu/packed_layout.h"

namespace foretoken::cpu {
namespace {

constexpr int64_t kQuantizeGrain = 4096;  // elements per thread at least: less is done faster than a thread is woken

size_t align64(size_t bytes) { return (bytes + 63) / 64 * 64; }

void reserve(Buffer& buffer, size_t bytes) {
  if (buffer.size() < bytes) buffer = Buffer(bytes);
}

bool same_activations(const Activations& a, const PackedLayout& layout) {
  return a.block == layout.block && a.sub == layout.sub && a.sums_bytes == layout.sums_bytes() &&
         (a.sums_bytes || a.offset == layout.offset);
}

}  // namespace

Products::Products(const KernelTable& kernels, ThreadPool& pool)
    : kernels_(kernels), pool_(pool), scratch_(static_cast<size_t>(kLinearScratchBytes) * static_cast<size_t>(pool.size())) {}

size_t Products::prepare(View x, QuantFormat format, size_t& used) {
  const PackedLayout layout = packed_layout(format);
  for (size_t i = 0; i < used; ++i)
    if (same_activations(prepared_[i].activations, layout)) return i;
  const size_t slot = used++;
  if (prepared_.size() <= slot) prepared_.resize(slot + 1);
  Prepared& p = prepared_[slot];
  CHECK(x.cols % layout.block == 0);
  const int64_t blocks = x.cols / layout.block;
  const auto count = static_cast<size_t>(blocks * x.rows);
  const size_t subs = count * static_cast<size_t>(layout.subs());
  const size_t value_bytes = align64(count * static_cast<size_t>(layout.block)) + 64;
  const size_t scale_bytes = align64(count * sizeof(float));
  const size_t start_bytes = align64(subs * sizeof(int32_t));
  const size_t sum_bytes = align64(subs * sizeof(int16_t));
  const size_t magnitude_bytes = align64(count * sizeof(uint16_t));
  reserve(p.memory, value_bytes + scale_bytes + start_bytes + sum_bytes + magnitude_bytes);
  std::byte* at = p.memory.data();
  p.activations = {.values = reinterpret_cast<int8_t*>(at),
                   .scales = reinterpret_cast<float*>(at + value_bytes),
                   .sums = reinterpret_cast<int16_t*>(at + value_bytes + scale_bytes + start_bytes),
                   .starts = reinterpret_cast<int32_t*>(at + value_bytes + scale_bytes),
                   .magnitudes = reinterpret_cast<uint16_t*>(at + value_bytes + scale_bytes + start_bytes + sum_bytes),
                   .rows = x.rows,
                   .blocks = blocks,
                   .block = layout.block,
                   .sub = layout.sub,
                   .offset = layout.offset,
                   .sums_bytes = layout.sums_bytes()};
  const Rows rows{x.f32(), x.stride};
  pool_.parallel_for(blocks * x.rows, std::max<int64_t>(1, kQuantizeGrain / layout.block),
                     [&](int64_t begin, int64_t end, int) { kernels_.linear.quantize(rows, begin, end, p.activations); });
  return slot;
}

void Products::linear(View x, const Matrix& matrix, View out) {
  const auto& w = static_cast<const PackedMatrix&>(matrix);
  CHECK(x.cols == w.cols());
  CHECK(out.cols == w.rows());
  CHECK(out.rows == x.rows);
  CHECK(x.dtype == DType::kF32);
  CHECK(out.dtype == DType::kF32);
  if (x.rows == 0) return;

  size_t total = 0, used = 0;
  int64_t output = 0;
  std::vector<LinearTask> tasks;
  std::vector<size_t> slots;
  for (const PackedPart& part : w.parts()) {
    const auto format = static_cast<QuantFormat>(part.format);
    slots.push_back(is_float_format(format) ? SIZE_MAX : prepare(x, format, used));
    tasks.push_back({.part = part,
                     .activations = nullptr,
                     .x = {x.f32(), x.stride},
                     .rows = x.rows,
                     .out = {out.f32() + output, out.stride}});
    output += part.outputs;
    total += static_cast<size_t>(group_count(part)) * part.group_bytes;
  }
  for (size_t i = 0; i < tasks.size(); ++i)
    if (slots[i] != SIZE_MAX) tasks[i].activations = &prepared_[slots[i]].activations;

  constexpr size_t kPieceWork = 128 * 1024;  // packed bytes times rows: less is not worth a cut of its own
  const auto threads = static_cast<size_t>(pool_.size());
  const size_t pieces =
      threads * std::clamp<size_t>(total * static_cast<size_t>(x.rows) / threads / kPieceWork, 1, ThreadPool::kPiecesPerShare);
  pool_.parallel_for(static_cast<int64_t>(pieces), 1, [&](int64_t first, int64_t last, int thread) {
    const size_t begin = total * static_cast<size_t>(first) / pieces;
    const size_t end = total * static_cast<size_t>(last) / pieces;
    std::byte* scratch = scratch_.data() + static_cast<size_t>(kLinearScratchBytes) * static_cast<size_t>(thread);
    size_t offset = 0;  // of the part's first group
    for (const LinearTask& task : tasks) {
      const size_t bytes = task.part.group_bytes;
      const int64_t groups = group_count(task.part);
      // Groups whose first byte lies in [begin, end).
      auto first_group_at = [&](size_t place) {
        return place <= offset ? int64_t{0} : std::min(groups, static_cast<int64_t>((place - offset + bytes - 1) / bytes));
      };
      const int64_t group_begin = first_group_at(begin), group_end = first_group_at(end);
      if (group_begin < group_end) kernels_.linear.multiply(task, group_begin, group_end, scratch);
      offset += static_cast<size_t>(groups) * bytes;
    }
  });
}

void Products::gated_ffn(View x, const ExpertWeights& w, View out) {
  const int64_t width = w.down->cols();
  CHECK(w.gate_up->rows() == 2 * width);
  CHECK(out.cols == w.down->rows());
  if (x.rows == 0) return;
  reserve(hidden_, static_cast<size_t>(x.rows) * static_cast<size_t>(2 * width) * sizeof(float));
  const View hidden = hidden_.view(x.rows, 2 * width);
  linear(x, *w.gate_up, hidden);
  // The product lands on the gate columns; element i is read before it is written.
  constexpr int64_t kGrain = 1024;
  const int64_t pieces = (width + kGrain - 1) / kGrain;
  pool_.parallel_for(x.rows * pieces, 2, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      float* row = hidden.f32(i / pieces);
      const int64_t from = i % pieces * kGrain;
      kernels_.linear.silu_product(row + from, row + width + from, std::min(kGrain, width - from), row + from);
    }
  });
  linear(hidden.columns(0, width), *w.down, out);
}

}  // namespace foretoken::cpu
