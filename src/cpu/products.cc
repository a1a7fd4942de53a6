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
  const MatrixRows all{0, x.rows, &matrix};
  linear(x, {&all, 1}, out);
}

void Products::linear(View x, std::span<const MatrixRows> groups, View out) {
  CHECK(out.rows == x.rows);
  CHECK(x.dtype == DType::kF32);
  CHECK(out.dtype == DType::kF32);
  if (x.rows == 0) return;

  size_t used = 0;
  tasks_.clear();
  slots_.clear();
  for (const MatrixRows& rows : groups) {
    const auto& w = static_cast<const PackedMatrix&>(*rows.matrix);
    CHECK(x.cols == w.cols());
    CHECK(out.cols == w.rows());
    CHECK(rows.first >= 0 && rows.count > 0 && rows.first + rows.count <= x.rows);
    int64_t output = 0;
    for (const PackedPart& part : w.parts()) {
      slots_.push_back({slot_of(x, part, used), kNone});
      tasks_.push_back({.part = part,
                        .activations = nullptr,
                        .x = {x.f32(), x.stride},
                        .first_row = rows.first,
                        .rows = rows.count,
                        .out = {out.f32() + output, out.stride}});
      output += part.outputs;
    }
  }
  run();
}

size_t Products::slot_of(View x, const PackedPart& part, size_t& used) {
  const auto format = static_cast<QuantFormat>(part.format);
  return is_float_format(format) ? kNone : prepare(x, format, used);
}

// Runs tasks_.
void Products::run() {
  // What a group of outputs costs: reading it, and multiplying it with every row.
  constexpr size_t kReadRows = 6;
  const auto cost_of = [](const LinearTask& task) {
    return (task.part.group_bytes + task.up.group_bytes) * (kReadRows + static_cast<size_t>(task.rows));
  };
  size_t total = 0;
  for (size_t i = 0; i < tasks_.size(); ++i) {
    LinearTask& task = tasks_[i];
    if (slots_[i].own != kNone) task.activations = &prepared_[slots_[i].own].activations;
    if (slots_[i].up != kNone) task.up_activations = &prepared_[slots_[i].up].activations;
    total += static_cast<size_t>(group_count(task.part)) * cost_of(task);
  }

  constexpr size_t kPieceCost = 1 << 20;  // less is not worth a cut of its own
  const auto threads = static_cast<size_t>(pool_.size());
  const size_t pieces = threads * std::clamp<size_t>(total / threads / kPieceCost, 1, ThreadPool::kPiecesPerShare);
  pool_.parallel_for(static_cast<int64_t>(pieces), 1, [&](int64_t first, int64_t last, int thread) {
    const size_t begin = total / pieces * static_cast<size_t>(first);
    const size_t end = last == static_cast<int64_t>(pieces) ? total : total / pieces * static_cast<size_t>(last);
    std::byte* scratch = scratch_.data() + static_cast<size_t>(kLinearScratchBytes) * static_cast<size_t>(thread);
    size_t offset = 0;  // of the task's first group
    for (const LinearTask& task : tasks_) {
      const size_t cost = cost_of(task);
      const int64_t outputs = group_count(task.part);
      // Groups that begin in [begin, end).
      auto first_group_at = [&](size_t place) {
        return place <= offset ? int64_t{0} : std::min(outputs, static_cast<int64_t>((place - offset + cost - 1) / cost));
      };
      const int64_t group_begin = first_group_at(begin), group_end = first_group_at(end);
      if (group_begin < group_end) kernels_.linear.multiply(task, group_begin, group_end, scratch);
      offset += static_cast<size_t>(outputs) * cost;
    }
  });
}

void Products::gated_ffn(View x, const ExpertWeights& w, View out) {
  const ExpertRows all{0, x.rows, &w};
  gated_ffn(x, {&all, 1}, out);
}

void Products::gated_ffn(View x, std::span<const ExpertRows> groups, View out) {
  if (x.rows == 0) return;
  const int64_t width = groups[0].expert->down->cols();
  reserve(hidden_, static_cast<size_t>(x.rows) * static_cast<size_t>(2 * width) * sizeof(float));
  View hidden = hidden_.view(x.rows, 2 * width);
  if (!gated_products(x, groups, hidden.columns(0, width))) {
    matrix_rows_.clear();
    for (const ExpertRows& rows : groups) matrix_rows_.push_back({rows.first, rows.count, rows.expert->gate_up.get()});
    linear(x, matrix_rows_, hidden);
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
  }
  matrix_rows_.clear();
  for (const ExpertRows& rows : groups) matrix_rows_.push_back({rows.first, rows.count, rows.expert->down.get()});
  linear(hidden.columns(0, width), matrix_rows_, out);
}

namespace {

// The two halves of [gate | up]: two parts, or one that can be cut between groups of outputs.
bool halves(const PackedMatrix& gate_up, PackedPart& gate, PackedPart& up) {
  const std::span<const PackedPart> parts = gate_up.parts();
  gate = parts.front();
  up = parts.back();
  if (parts.size() == 1) {
    gate.outputs = up.outputs = gate_up.rows() / 2;
    if (gate.outputs % kGroupOutputs != 0) return false;
    up.data += static_cast<size_t>(group_count(gate)) * gate.group_bytes;
  }
  const auto is_block = [](const PackedPart& part) { return !is_float_format(static_cast<QuantFormat>(part.format)); };
  return parts.size() <= 2 && gate.outputs == up.outputs && is_block(gate) && is_block(up);
}

}  // namespace

bool Products::gated_products(View x, std::span<const ExpertRows> groups, View out) {
  size_t used = 0;
  tasks_.clear();
  slots_.clear();
  for (const ExpertRows& rows : groups) {
    const auto& w = static_cast<const PackedMatrix&>(*rows.expert->gate_up);
    CHECK(x.cols == w.cols());
    CHECK(w.rows() == 2 * out.cols);
    CHECK(rows.first >= 0 && rows.count > 0 && rows.first + rows.count <= x.rows);
    PackedPart gate{}, up{};
    if (!halves(w, gate, up)) return false;
    slots_.push_back({slot_of(x, gate, used), slot_of(x, up, used)});
    tasks_.push_back({.part = gate,
                      .activations = nullptr,
                      .x = {x.f32(), x.stride},
                      .first_row = rows.first,
                      .rows = rows.count,
                      .out = {out.f32(), out.stride},
                      .up = up});
  }
  run();
  return true;
}

}  // namespace foretoken::cpu
