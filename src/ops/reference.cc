// The scalar reference backend: every operator of ops.h written as plainly as docs/numerics.md states it, one value at
// a time. It is the oracle of all other backends and small models run on it; it knows nothing of threads, tiles or
// instruction sets.
#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/threads.h"
#include "numerics/canonical.h"
#include "ops/checks.h"
#include "ops/ops.h"

namespace foretoken {
namespace {

using canonical::fma;

// Parts keep their own format. Float parts are widened (exactly) and reordered at packing; quantised rows stay as they
// are.
class ReferenceMatrix final : public Matrix {
 public:
  struct Part {
    QuantFormat format;
    int64_t rows;
    std::vector<float> values;      // float formats: [rows, cols]
    std::vector<std::byte> blocks;  // others: rows of row_bytes(format, cols)
  };
  ReferenceMatrix(int64_t rows, int64_t cols, size_t bytes, std::vector<Part> parts)
      : Matrix(rows, cols, bytes), parts_(std::move(parts)) {}
  const std::vector<Part>& parts() const { return parts_; }

 private:
  std::vector<Part> parts_;
};

ReferenceMatrix::Part copy_part(const MatrixSource& source) {
  const size_t stride = row_bytes(source.format, source.cols);
  CHECK(source.data.size() >= stride * static_cast<size_t>(source.rows));
  const int64_t rows = source.row_order.empty() ? source.rows : static_cast<int64_t>(source.row_order.size());
  ReferenceMatrix::Part part{source.format, rows, {}, {}};
  const bool floats = is_float_format(source.format);
  if (!floats) CHECK(source.column_order.empty());
  if (!source.column_order.empty()) CHECK(static_cast<int64_t>(source.column_order.size()) == source.cols);
  if (floats) part.values.resize(static_cast<size_t>(rows * source.cols));
  else part.blocks.resize(static_cast<size_t>(rows) * stride);
  std::vector<float> row(floats ? static_cast<size_t>(source.cols) : 0);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t from = source.row_order.empty() ? r : source.row_order[static_cast<size_t>(r)];
    CHECK(from >= 0);
    CHECK(from < source.rows);
    const std::span<const std::byte> bytes = source.data.subspan(static_cast<size_t>(from) * stride, stride);
    if (!floats) {
      std::memcpy(part.blocks.data() + static_cast<size_t>(r) * stride, bytes.data(), stride);
      continue;
    }
    dequantize(source.format, bytes, row);
    for (int64_t c = 0; c < source.cols; ++c) {
      const int64_t column = source.column_order.empty() ? c : source.column_order[static_cast<size_t>(c)];
      CHECK(column >= 0);
      CHECK(column < source.cols);
      part.values[static_cast<size_t>(r * source.cols + c)] = row[static_cast<size_t>(column)];
    }
  }
  return part;
}

// One activation row in integer blocks, each with its scale.
struct QuantizedRow {
  std::vector<int8_t> q;
  std::vector<float> scale;

  void assign(const float* x, int64_t n, int block) {
    q.resize(static_cast<size_t>(n));
    scale.resize(static_cast<size_t>(n / block));
    for (int64_t b = 0; b < n / block; ++b)
      scale[static_cast<size_t>(b)] = canonical::quantize_activation(x + b * block, block, q.data() + b * block);
  }
};

// r of RMS normalisation: y = (x * r) * w.
float rms_scale(const float* x, int64_t n, float epsilon) {
  return 1.0f / std::sqrt(canonical::sum_of_squares(x, n) / static_cast<float>(n) + epsilon);
}

// Normalised and rotated copy of one attention head.
void norm_and_rotate(const float* x, const float* w, float epsilon, int head_dim, const float* rotary, int rotary_dim,
                     float* out) {
  const float r = rms_scale(x, head_dim, epsilon);
  for (int d = 0; d < head_dim; ++d) out[d] = (x[d] * r) * w[d];
  const int half = rotary_dim / 2;
  for (int j = 0; j < half; ++j) {
    const float cosine = rotary[j], sine = rotary[half + j];
    const float a = out[j], b = out[j + half];
    out[j] = fma(-b, sine, a * cosine);
    out[j + half] = fma(a, sine, b * cosine);
  }
}

// Where one token of one layer and K/V head lies. K is stored by dimension, so its elements are kPageTokens apart.
struct KvSlot {
  std::byte *key, *value;
  float *key_scale, *value_scale;
};

KvSlot kv_slot(PageTable pages, const KvLayout& layout, int layer, int head, int64_t slot) {
  std::byte* page = pages[static_cast<size_t>(slot / kPageTokens)];
  const size_t t = static_cast<size_t>(slot % kPageTokens);
  const size_t element = layout.element_bytes();
  return {page + layout.key_offset(layer, head) + t * element,
          page + layout.value_offset(layer, head) + t * static_cast<size_t>(layout.head_dim) * element,
          reinterpret_cast<float*>(page + layout.key_scale_offset(layer, head)) + t,
          reinterpret_cast<float*>(page + layout.value_scale_offset(layer, head)) + t};
}

// Stores one rounded row, elements `stride` apart; returns the int8 scale.
float store_row(const float* x, int n, KvFormat format, std::byte* to, size_t stride) {
  switch (format) {
    case KvFormat::kF32:
      for (int d = 0; d < n; ++d) std::memcpy(to + d * stride * 4, x + d, 4);
      return 1.0f;
    case KvFormat::kBF16:
      for (int d = 0; d < n; ++d) {
        const Bf16 rounded = to_bf16(x[d]);
        std::memcpy(to + d * stride * 2, &rounded, 2);
      }
      return 1.0f;
    default: {
      int8_t q[checks::kMaxHeadDim];
      const float scale = canonical::quantize_activation(x, n, q);
      for (int d = 0; d < n; ++d) std::memcpy(to + d * stride, q + d, 1);
      return scale;
    }
  }
}

float load_element(KvFormat format, const std::byte* from, size_t index) {
  switch (format) {
    case KvFormat::kF32: {
      float value;
      std::memcpy(&value, from + index * 4, 4);
      return value;
    }
    case KvFormat::kBF16: {
      Bf16 value;
      std::memcpy(&value, from + index * 2, 2);
      return to_float(value);
    }
    default: {
      int8_t value;
      std::memcpy(&value, from + index, 1);
      return static_cast<float>(value);
    }
  }
}

// Running softmax of one query head: the greatest score, the sum of exp(score - m), and the weighted values.
struct Softmax {
  float m = -std::numeric_limits<float>::infinity();
  float l = 0;
  std::vector<float> o;
};

// One block of at most kPageTokens visible logical positions [begin, end).
void add_attention_block(const float* query, PageTable pages, const KvLayout& layout, int layer, int head,
                         const std::vector<int64_t>& slots, int64_t begin, int64_t end, Softmax& s) {
  const int n = static_cast<int>(end - begin);
  const bool integers = layout.format == KvFormat::kInt8;
  const float head_scale = 1.0f / std::sqrt(static_cast<float>(layout.head_dim));
  float score[kPageTokens], p[kPageTokens] = {};
  float largest = -std::numeric_limits<float>::infinity();
  for (int t = 0; t < n; ++t) {
    const KvSlot kv = kv_slot(pages, layout, layer, head, slots[static_cast<size_t>(begin + t)]);
    float dot = 0;
    for (int d = 0; d < layout.head_dim; ++d)
      dot = fma(query[d], load_element(layout.format, kv.key, static_cast<size_t>(d) * kPageTokens), dot);
    if (integers) dot = dot * *kv.key_scale;
    score[t] = dot * head_scale;
    largest = std::max(largest, score[t]);
  }
  const float m = std::max(s.m, largest);
  const float c = canonical::exp(s.m - m);
  for (int t = 0; t < n; ++t) p[t] = canonical::exp(score[t] - m);
  float lane[16];
  for (int i = 0; i < 16; ++i) lane[i] = p[i] + p[i + 16];
  s.l = s.l * c + canonical::fold_sum(lane);
  s.m = m;
  for (float& o : s.o) o = o * c;
  for (int t = 0; t < n; ++t) {
    const KvSlot kv = kv_slot(pages, layout, layer, head, slots[static_cast<size_t>(begin + t)]);
    const float weight = integers ? p[t] * *kv.value_scale : p[t];
    for (int d = 0; d < layout.head_dim; ++d)
      s.o[static_cast<size_t>(d)] =
          fma(weight, load_element(layout.format, kv.value, static_cast<size_t>(d)), s.o[static_cast<size_t>(d)]);
  }
}

void merge_span(const Softmax& b, Softmax& a) {
  const float m = std::max(a.m, b.m);
  const float ca = canonical::exp(a.m - m), cb = canonical::exp(b.m - m);
  a.l = fma(b.l, cb, a.l * ca);
  for (size_t d = 0; d < a.o.size(); ++d) a.o[d] = fma(b.o[d], cb, a.o[d] * ca);
  a.m = m;
}

// True when logit a ranks before b whatever their ids: a NaN ranks first, so that its row's result is NaN and fails
// visibly.
bool outranks(float a, float b) {
  if (a != a || b != b) return a != a && b == b;
  return a > b;
}

// Expert ids of one row, by logit descending and id ascending.
void rank_experts(const float* logits, const MoeShape& shape, std::vector<int>& chosen) {
  chosen.clear();
  for (int j = 0; j < shape.top_k; ++j) {
    int best = -1;
    for (int e = 0; e < shape.experts; ++e) {
      if (std::find(chosen.begin(), chosen.end(), e) != chosen.end()) continue;
      if (best < 0 || outranks(logits[e], logits[best])) best = e;
    }
    chosen.push_back(best);
  }
}

// The last kernel - 1 rows of (tail ++ rows): `row(i)` gives the i-th of `count` appended rows.
template <class Row>
void advance_tail(const DeltaShape& shape, float* tail, int count, Row row) {
  const int keep = shape.kernel - 1;
  const size_t channels = static_cast<size_t>(shape.channels());
  if (count == 0 || keep == 0) return;
  for (int i = 0; i < keep; ++i) {
    const int from = i + count;  // index in tail ++ rows
    const float* source = from < keep ? tail + static_cast<size_t>(from) * channels : row(from - keep);
    std::memmove(tail + static_cast<size_t>(i) * channels, source, channels * sizeof(float));
  }
}

class ReferenceBackend final : public Backend {
 public:
  BackendInfo info() const override { return {"reference", "scalar"}; }

  MatrixPtr pack(std::span<const MatrixSource> parts, MatrixUse) override {
    CHECK(!parts.empty());
    std::vector<ReferenceMatrix::Part> copies;
    int64_t rows = 0;
    size_t bytes = 0;
    for (const MatrixSource& part : parts) {
      CHECK(part.cols == parts[0].cols);
      copies.push_back(copy_part(part));
      rows += copies.back().rows;
      bytes += copies.back().values.size() * sizeof(float) + copies.back().blocks.size();
    }
    return std::make_unique<ReferenceMatrix>(rows, parts[0].cols, bytes, std::move(copies));
  }

  void embed(std::span<const RowInput> inputs, const MatrixSource& table, View out) override {
    checks::embed(inputs, table, out);
    set_float_environment();
    const size_t stride = row_bytes(table.format, table.cols);
    for (int64_t i = 0; i < out.rows; ++i) {
      const RowInput& input = inputs[static_cast<size_t>(i)];
      const std::span<float> row(out.f32(i), static_cast<size_t>(out.cols));
      if (input.embedding) {
        std::copy_n(input.embedding, out.cols, row.data());
        continue;
      }
      const size_t token = static_cast<size_t>(input.token);
      const size_t from = table.row_order.empty() ? token : static_cast<size_t>(table.row_order[token]);
      CHECK(static_cast<int64_t>(from) < table.rows);
      dequantize(table.format, table.data.subspan(from * stride, stride), row);
    }
  }

  void rms_norm(View x, View w, float epsilon, View out) override {
    checks::rms_norm(x, w, out);
    set_float_environment();
    for (int64_t i = 0; i < x.rows; ++i) {
      const float r = rms_scale(x.f32(i), x.cols, epsilon);
      for (int64_t c = 0; c < x.cols; ++c) out.f32(i)[c] = (x.f32(i)[c] * r) * w.f32()[c];
    }
  }

  void linear(View x, const Matrix& w, View out) override {
    checks::linear(x, w, out);
    set_float_environment();
    const auto& matrix = dynamic_cast<const ReferenceMatrix&>(w);
    int64_t first = 0;
    for (const ReferenceMatrix::Part& part : matrix.parts()) {
      if (is_float_format(part.format)) linear_floats(x, part, first, out);
      else linear_blocks(x, part, first, out);
      first += part.rows;
    }
  }

  void add(View x, View inout) override {
    checks::add(x, inout);
    set_float_environment();
    for (int64_t i = 0; i < x.rows; ++i)
      for (int64_t c = 0; c < x.cols; ++c) inout.f32(i)[c] = inout.f32(i)[c] + x.f32(i)[c];
  }

  void gather_rows(View x, std::span<const int> rows, View out) override {
    checks::gather_rows(x, rows, out);
    for (int64_t i = 0; i < out.rows; ++i) std::copy_n(x.f32(rows[static_cast<size_t>(i)]), x.cols, out.f32(i));
  }

  void gated_ffn(View x, const ExpertWeights& w, View out) override {
    checks::gated_ffn(x, w, out);
    set_float_environment();
    const int64_t width = w.down->cols();
    std::vector<float> both(static_cast<size_t>(x.rows * 2 * width)), hidden(static_cast<size_t>(x.rows * width));
    const View gate_up = View::of(both.data(), x.rows, 2 * width), h = View::of(hidden.data(), x.rows, width);
    linear(x, *w.gate_up, gate_up);
    for (int64_t i = 0; i < x.rows; ++i)
      for (int64_t c = 0; c < width; ++c) h.f32(i)[c] = canonical::silu(gate_up.f32(i)[c]) * gate_up.f32(i)[width + c];
    linear(h, *w.down, out);
  }

  void moe(View x, const MoeShape& shape, const MoeWeights& w, View out) override {
    checks::moe(x, shape, w, out);
    set_float_environment();
    std::vector<float> logits(static_cast<size_t>(shape.experts)), y(static_cast<size_t>(x.cols));
    const View logits_view = View::of(logits.data(), 1, shape.experts), y_view = View::of(y.data(), 1, x.cols);
    std::vector<int> chosen;
    std::vector<float> e(static_cast<size_t>(shape.top_k));
    for (int64_t i = 0; i < x.rows; ++i) {
      const View row = x.row_range(i, i + 1);
      linear(row, *w.router, logits_view);
      rank_experts(logits.data(), shape, chosen);
      float sum = 0;
      for (size_t j = 0; j < chosen.size(); ++j) {
        e[j] = canonical::exp(logits[static_cast<size_t>(chosen[j])] - logits[static_cast<size_t>(chosen[0])]);
        sum += e[j];
      }
      float* result = out.f32(i);
      std::fill_n(result, out.cols, 0.0f);
      for (size_t j = 0; j < chosen.size(); ++j) {
        gated_ffn(row, w.experts[static_cast<size_t>(chosen[j])], y_view);
        const float weight = e[j] / sum;
        for (int64_t c = 0; c < out.cols; ++c) result[c] = fma(weight, y[static_cast<size_t>(c)], result[c]);
      }
      float gate;
      linear(row, *w.shared_gate, View::of(&gate, 1, 1));
      gated_ffn(row, w.shared, y_view);
      const float weight = canonical::sigmoid(gate);
      for (int64_t c = 0; c < out.cols; ++c) result[c] = fma(weight, y[static_cast<size_t>(c)], result[c]);
    }
  }

  void rotary_table(std::span<const RowInput> inputs, const RotarySpec& spec, View table) override {
    checks::rotary_table(inputs, spec, table);
    set_float_environment();
    const int half = spec.rotary_dim() / 2;
    for (int64_t i = 0; i < table.rows; ++i) {
      for (int j = 0; j < half; ++j) {
        const size_t pair = static_cast<size_t>(j);
        const int32_t position = inputs[static_cast<size_t>(i)].position[spec.axis[pair]];
        const canonical::SinCos angle =
            canonical::sin_cos(static_cast<double>(position) * static_cast<double>(spec.inverse_frequency[pair]));
        table.f32(i)[j] = angle.cos * spec.magnitude;
        table.f32(i)[half + j] = angle.sin * spec.magnitude;
      }
    }
  }

  void attention_inputs(View packed, View q_norm, View k_norm, View rotary, const AttentionShape& shape,
                        const Batch& batch, std::span<const PageTable> pages, const KvLayout& layout, int layer,
                        View queries) override {
    checks::attention_inputs(packed, q_norm, k_norm, rotary, shape, batch, pages, layout, layer, queries);
    set_float_environment();
    const int dim = shape.head_dim, rotary_dim = static_cast<int>(rotary.cols);
    std::vector<float> key(static_cast<size_t>(dim));
    for (size_t l = 0; l < batch.lanes.size(); ++l) {
      const LaneRows& lane = batch.lanes[l];
      for (int i = 0; i < lane.rows; ++i) {
        const int64_t row = lane.first_row + i;
        const float* x = packed.f32(row);
        for (int h = 0; h < shape.query_heads; ++h)
          norm_and_rotate(x + 2 * h * dim, q_norm.f32(), shape.norm_epsilon, dim, rotary.f32(row), rotary_dim,
                          queries.f32(row) + h * dim);
        const float* keys = x + shape.query_columns();
        const float* values = keys + shape.kv_heads * dim;
        for (int h = 0; h < shape.kv_heads; ++h) {
          const KvSlot kv = kv_slot(pages[l], layout, layer, h, lane.prefix + i);
          norm_and_rotate(keys + h * dim, k_norm.f32(), shape.norm_epsilon, dim, rotary.f32(row), rotary_dim,
                          key.data());
          const float key_scale = store_row(key.data(), dim, layout.format, kv.key, kPageTokens);
          const float value_scale = store_row(values + h * dim, dim, layout.format, kv.value, 1);
          if (layout.format != KvFormat::kInt8) continue;
          *kv.key_scale = key_scale;
          *kv.value_scale = value_scale;
        }
      }
    }
  }

  void attention(View queries, View packed, const AttentionShape& shape, const Batch& batch,
                 std::span<const PageTable> pages, const KvLayout& layout, int layer, View out) override {
    checks::attention(queries, packed, shape, batch, pages, layout, layer, out);
    set_float_environment();
    const int dim = shape.head_dim;
    std::vector<int> path;
    std::vector<int64_t> slots;  // of the visible logical positions, ascending
    for (size_t l = 0; l < batch.lanes.size(); ++l) {
      const LaneRows& lane = batch.lanes[l];
      for (int i = 0; i < lane.rows; ++i) {
        slots.clear();
        for (int64_t slot = 0; slot < lane.prefix; ++slot) slots.push_back(slot);
        path_to(lane, i, path);
        for (int ancestor : path) slots.push_back(lane.prefix + ancestor);
        const int64_t row = lane.first_row + i, visible = static_cast<int64_t>(slots.size());
        for (int h = 0; h < shape.query_heads; ++h) {
          const int kv_head = h / (shape.query_heads / shape.kv_heads);
          Softmax total;
          for (int64_t span = 0; span < visible; span += kSpanTokens) {
            Softmax s;
            s.o.assign(static_cast<size_t>(dim), 0.0f);
            const int64_t span_end = std::min<int64_t>(span + kSpanTokens, visible);
            for (int64_t block = span; block < span_end; block += kPageTokens)
              add_attention_block(queries.f32(row) + h * dim, pages[l], layout, layer, kv_head, slots, block,
                                  std::min<int64_t>(block + kPageTokens, span_end), s);
            if (span == 0) total = std::move(s);
            else merge_span(s, total);
          }
          const float* gate = packed.f32(row) + 2 * h * dim + dim;
          for (int d = 0; d < dim; ++d)
            out.f32(row)[h * dim + d] = (total.o[static_cast<size_t>(d)] / total.l) * canonical::sigmoid(gate[d]);
        }
      }
    }
  }

  void commit_kv(PageTable pages, const KvLayout& layout, int64_t prefix, std::span<const int> path) override {
    checks::commit_kv(pages, layout, prefix, path);
    const size_t element = layout.element_bytes();
    for (int layer = 0; layer < layout.layers; ++layer) {
      for (int head = 0; head < layout.heads; ++head) {
        for (size_t j = 0; j < path.size(); ++j) {
          if (path[j] == static_cast<int>(j)) continue;
          const KvSlot from = kv_slot(pages, layout, layer, head, prefix + path[j]);
          const KvSlot to = kv_slot(pages, layout, layer, head, prefix + static_cast<int64_t>(j));
          for (int d = 0; d < layout.head_dim; ++d) {
            const size_t offset = static_cast<size_t>(d) * kPageTokens * element;
            std::memcpy(to.key + offset, from.key + offset, element);
          }
          std::memcpy(to.value, from.value, static_cast<size_t>(layout.head_dim) * element);
          if (layout.format != KvFormat::kInt8) continue;
          *to.key_scale = *from.key_scale;
          *to.value_scale = *from.value_scale;
        }
      }
    }
  }

  void causal_conv(View packed, View weight, const DeltaShape& shape, const Batch& batch,
                   std::span<const DeltaMemory> lanes, View out) override {
    checks::causal_conv(packed, weight, shape, batch, lanes, out);
    set_float_environment();
    const int channels = shape.channels(), kernel = shape.kernel;
    std::vector<int> path;
    for (size_t l = 0; l < lanes.size(); ++l) {
      const LaneRows& lane = batch.lanes[l];
      const DeltaMemory& memory = lanes[l];
      for (int i = 0; i < lane.rows; ++i) {
        path_to(lane, i, path);
        const int depth = static_cast<int>(path.size()) - 1;
        for (int c = 0; c < channels; ++c) {
          float acc = 0;
          for (int j = 0; j < kernel; ++j) {
            const int at = depth - (kernel - 1) + j;  // along the path; negative: in the tail
            const float x = at >= 0 ? packed.f32(lane.first_row + path[static_cast<size_t>(at)])[c]
                                    : memory.tail[int64_t{kernel - 1 + at} * channels + c];
            acc = fma(weight.f32(c)[j], x, acc);
          }
          out.f32(lane.first_row + i)[c] = canonical::silu(acc);
        }
        if (i >= lane.settled)
          std::copy_n(packed.f32(lane.first_row + i), channels, memory.tape.conv_row + int64_t{i} * channels);
      }
      advance_tail(shape, memory.tail, lane.settled, [&](int i) { return packed.f32(lane.first_row + i); });
    }
  }

  void delta_rule(View conv, View beta_alpha, View decay_rate, View dt_bias, const DeltaShape& shape,
                  const Batch& batch, std::span<const DeltaMemory> lanes, View out) override {
    checks::delta_rule(conv, beta_alpha, decay_rate, dt_bias, shape, batch, lanes, out);
    set_float_environment();
    const size_t state_floats = shape.state_floats();
    for (size_t l = 0; l < lanes.size(); ++l) {
      const LaneRows& lane = batch.lanes[l];
      const DeltaMemory& memory = lanes[l];
      std::vector<std::vector<float>> after(static_cast<size_t>(lane.rows));  // state after each unsettled row
      for (int i = 0; i < lane.rows; ++i) {
        const int64_t row = lane.first_row + i;
        if (i < lane.settled) {
          delta_row(conv.f32(row), beta_alpha.f32(row), decay_rate.f32(), dt_bias.f32(), shape, memory.state, nullptr,
                    0, out.f32(row));
          continue;
        }
        std::vector<float>& state = after[static_cast<size_t>(i)];
        const int parent = lane.parent_of(i);
        if (parent >= lane.settled) state = after[static_cast<size_t>(parent)];
        else state.assign(memory.state, memory.state + state_floats);
        delta_row(conv.f32(row), beta_alpha.f32(row), decay_rate.f32(), dt_bias.f32(), shape, state.data(),
                  &memory.tape, i, out.f32(row));
      }
    }
  }

  void gated_norm(View x, View gate, View w, float epsilon, bool sigmoid_gate, View out) override {
    checks::gated_norm(x, gate, w, out);
    set_float_environment();
    const int64_t dim = w.cols;
    for (int64_t i = 0; i < x.rows; ++i) {
      for (int64_t begin = 0; begin < x.cols; begin += dim) {
        const float r = rms_scale(x.f32(i) + begin, dim, epsilon);
        for (int64_t c = 0; c < dim; ++c) {
          const float n = (x.f32(i)[begin + c] * r) * w.f32()[c];
          const float g = gate.f32(i)[begin + c];
          out.f32(i)[begin + c] = n * (sigmoid_gate ? canonical::sigmoid(g) : canonical::silu(g));
        }
      }
    }
  }

  void commit_delta(const DeltaShape& shape, const DeltaMemory& lane, int settled, std::span<const int> path) override {
    checks::commit_delta(shape, lane, settled, path);
    set_float_environment();
    const std::span<const int> rows = path.subspan(static_cast<size_t>(settled));
    for (int row : rows) {
      for (int h = 0; h < shape.value_heads; ++h) {
        const float decay = lane.tape.decay[int64_t{row} * shape.value_heads + h];
        const float* k = lane.tape.key + (int64_t{row} * shape.key_heads + shape.key_head_of(h)) * shape.key_dim;
        const float* d = lane.tape.delta + (int64_t{row} * shape.value_heads + h) * shape.value_dim;
        float* state = lane.state + int64_t{h} * shape.key_dim * shape.value_dim;
        for (int i = 0; i < shape.key_dim; ++i)
          for (int c = 0; c < shape.value_dim; ++c) {
            float& s = state[int64_t{i} * shape.value_dim + c];
            s = fma(k[i], d[c], decay * s);
          }
      }
    }
    advance_tail(shape, lane.tail, static_cast<int>(rows.size()),
                 [&](int i) { return lane.tape.conv_row + int64_t{rows[static_cast<size_t>(i)]} * shape.channels(); });
  }

 private:
  static void linear_floats(View x, const ReferenceMatrix::Part& part, int64_t first, View out) {
    for (int64_t o = 0; o < part.rows; ++o) {
      const float* w = part.values.data() + o * x.cols;
      for (int64_t i = 0; i < x.rows; ++i)
        out.f32(i)[first + o] = canonical::dot16([w](int64_t k) { return w[k]; }, x.f32(i), x.cols);
    }
  }

  static void linear_blocks(View x, const ReferenceMatrix::Part& part, int64_t first, View out) {
    const FormatInfo& format = format_info(part.format);
    const int64_t blocks = x.cols / format.block_elements;
    const size_t stride = row_bytes(part.format, x.cols);
    std::vector<QuantizedRow> rows(static_cast<size_t>(x.rows));
    for (int64_t i = 0; i < x.rows; ++i) rows[static_cast<size_t>(i)].assign(x.f32(i), x.cols, format.block_elements);
    UnpackedBlock block;
    for (int64_t o = 0; o < part.rows; ++o) {
      for (int64_t i = 0; i < x.rows; ++i) out.f32(i)[first + o] = 0.0f;
      for (int64_t b = 0; b < blocks; ++b) {
        unpack_block(part.format,
                     part.blocks.data() + static_cast<size_t>(o) * stride +
                         static_cast<size_t>(b) * static_cast<size_t>(format.block_bytes),
                     block);
        for (int64_t i = 0; i < x.rows; ++i) {
          const QuantizedRow& a = rows[static_cast<size_t>(i)];
          float& acc = out.f32(i)[first + o];
          acc =
              canonical::add_block(block, a.q.data() + b * format.block_elements, a.scale[static_cast<size_t>(b)], acc);
        }
      }
    }
  }

  // Pieces of consecutive keys, each in ascending order from +0, then folds of neighbours; a piece without a key is +0
  // and takes part. `add(i, sum)`: the sum with key i's term.
  template <class Add>
  static float sum_over_keys(const DeltaShape& shape, Add add) {
    float piece[kKeyPieces] = {};
    for (int i = 0; i < shape.key_dim; ++i) {
      float& sum = piece[i / shape.piece_keys()];
      sum = add(i, sum);
    }
    for (int n = kKeyPieces / 2; n > 0; n /= 2)
      for (int j = 0; j < n; ++j) piece[j] = piece[2 * j] + piece[2 * j + 1];
    return piece[0];
  }

  // One token in every head: updates `state`, and leaves tape row `tape_row` when `tape` is given.
  static void delta_row(const float* conv, const float* beta_alpha, const float* decay_rate, const float* dt_bias,
                        const DeltaShape& shape, float* state, const DeltaTape* tape, int64_t tape_row, float* out) {
    const int key_dim = shape.key_dim, value_dim = shape.value_dim;
    const float scale = 1.0f / std::sqrt(static_cast<float>(key_dim));
    std::vector<float> q(static_cast<size_t>(key_dim)), k(static_cast<size_t>(key_dim));
    for (int h = 0; h < shape.value_heads; ++h) {
      const int key_head = shape.key_head_of(h);
      const float* q_in = conv + key_head * key_dim;
      const float* k_in = conv + (shape.key_heads + key_head) * key_dim;
      const float* v = conv + 2 * shape.key_heads * key_dim + h * value_dim;
      const float rq = 1.0f / std::sqrt(canonical::sum_of_squares(q_in, key_dim) + 1e-6f);
      const float rk = 1.0f / std::sqrt(canonical::sum_of_squares(k_in, key_dim) + 1e-6f);
      for (size_t i = 0; i < q.size(); ++i) {
        q[i] = (q_in[i] * rq) * scale;
        k[i] = k_in[i] * rk;
      }
      const float beta = canonical::sigmoid(beta_alpha[h]);
      const float decay =
          canonical::exp(decay_rate[h] * canonical::softplus(beta_alpha[shape.value_heads + h] + dt_bias[h]));
      float* head = state + int64_t{h} * key_dim * value_dim;
      for (int c = 0; c < value_dim; ++c) {
        const float u = sum_over_keys(shape, [&](int i, float sum) {
          return fma(k[static_cast<size_t>(i)], decay * head[int64_t{i} * value_dim + c], sum);
        });
        const float d = beta * (v[c] - u);
        out[h * value_dim + c] = sum_over_keys(shape, [&](int i, float sum) {
          float& s = head[int64_t{i} * value_dim + c];
          s = fma(k[static_cast<size_t>(i)], d, decay * s);
          return fma(q[static_cast<size_t>(i)], s, sum);
        });
        if (tape) tape->delta[(tape_row * shape.value_heads + h) * value_dim + c] = d;
      }
      if (!tape) continue;
      tape->decay[tape_row * shape.value_heads + h] = decay;
      std::copy(k.begin(), k.end(), tape->key + (tape_row * shape.key_heads + key_head) * key_dim);
    }
  }
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace foretoken
