// The operators of block drafters in scalar code: their definition, and what every backend without a kernel of its own runs.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/threads.h"
#include "numerics/canonical.h"
#include "ops/checks.h"
#include "ops/ops.h"

namespace foretoken {
namespace {

using canonical::fma;

void norm_and_rotate(float* x, const float* w, float epsilon, int head_dim, const float* rotary, int rotary_dim) {
  const float r = 1.0f / std::sqrt(canonical::sum_of_squares(x, head_dim) / static_cast<float>(head_dim) + epsilon);
  for (int d = 0; d < head_dim; ++d) x[d] = (x[d] * r) * w[d];
  const int half = rotary_dim / 2;
  for (int j = 0; j < half; ++j) {
    const float cosine = rotary[j], sine = rotary[half + j];
    const float a = x[j], b = x[j + half];
    x[j] = fma(-b, sine, a * cosine);
    x[j + half] = fma(a, sine, b * cosine);
  }
}

// One head of one position, decoded or encoded: elements of K lie kPageTokens apart, those of V are consecutive.
struct HeadSlot {
  std::byte* data;
  size_t stride;  // elements
  float* scale;   // int8
};

HeadSlot key_slot(const BlockLane& lane, const KvLayout& layout, int head, int64_t position) {
  const int64_t slot = lane.slot(position);
  std::byte* page = lane.pages[static_cast<size_t>(slot / kPageTokens)];
  const size_t t = static_cast<size_t>(slot % kPageTokens);
  return {page + layout.key_offset(0, head) + t * layout.element_bytes(), kPageTokens,
          reinterpret_cast<float*>(page + layout.key_scale_offset(0, head)) + t};
}

HeadSlot value_slot(const BlockLane& lane, const KvLayout& layout, int head, int64_t position) {
  const int64_t slot = lane.slot(position);
  std::byte* page = lane.pages[static_cast<size_t>(slot / kPageTokens)];
  const size_t t = static_cast<size_t>(slot % kPageTokens);
  return {page + layout.value_offset(0, head) + t * static_cast<size_t>(layout.head_dim) * layout.element_bytes(), 1,
          reinterpret_cast<float*>(page + layout.value_scale_offset(0, head)) + t};
}

void store_head(const float* x, int n, KvFormat format, const HeadSlot& to) {
  if (format == KvFormat::kInt8) {
    int8_t q[checks::kMaxHeadDim];
    *to.scale = canonical::quantize_activation(x, n, q);
    for (int d = 0; d < n; ++d) std::memcpy(to.data + static_cast<size_t>(d) * to.stride, q + d, 1);
    return;
  }
  for (int d = 0; d < n; ++d) {
    if (format == KvFormat::kF32) {
      std::memcpy(to.data + static_cast<size_t>(d) * to.stride * 4, x + d, 4);
    } else {
      const Bf16 rounded = to_bf16(x[d]);
      std::memcpy(to.data + static_cast<size_t>(d) * to.stride * 2, &rounded, 2);
    }
  }
}

void load_head(int n, KvFormat format, const HeadSlot& from, float* x) {
  for (int d = 0; d < n; ++d) {
    const size_t index = static_cast<size_t>(d) * from.stride;
    if (format == KvFormat::kF32) {
      std::memcpy(x + d, from.data + index * 4, 4);
    } else if (format == KvFormat::kBF16) {
      Bf16 value;
      std::memcpy(&value, from.data + index * 2, 2);
      x[d] = to_float(value);
    } else {
      int8_t value;
      std::memcpy(&value, from.data + index, 1);
      x[d] = static_cast<float>(value) * *from.scale;
    }
  }
}

}  // namespace

void Backend::block_inputs(View q, View kv, View q_norm, View k_norm, View rotary, const BlockShape& shape,
                           std::span<const BlockLane> lanes, const KvLayout& layout) {
  checks::block_inputs(q, kv, q_norm, k_norm, rotary, shape, lanes, layout);
  set_float_environment();
  const int dim = shape.head_dim;
  const int rotary_dim = static_cast<int>(rotary.cols);
  std::vector<float> key(static_cast<size_t>(dim));
  for (const BlockLane& lane : lanes) {
    for (int i = 0; i < lane.rows; ++i) {
      const int64_t row = lane.first_row + i;
      if (!q.empty())
        for (int h = 0; h < shape.query_heads; ++h)
          norm_and_rotate(q.f32(row) + h * dim, q_norm.f32(), shape.norm_epsilon, dim, rotary.f32(row), rotary_dim);
      for (int h = 0; h < shape.kv_heads; ++h) {
        std::copy_n(kv.f32(row) + h * dim, dim, key.data());
        norm_and_rotate(key.data(), k_norm.f32(), shape.norm_epsilon, dim, rotary.f32(row), rotary_dim);
        store_head(key.data(), dim, layout.format, key_slot(lane, layout, h, lane.end + i));
        store_head(kv.f32(row) + (shape.kv_heads + h) * dim, dim, layout.format, value_slot(lane, layout, h, lane.end + i));
      }
    }
  }
}

void Backend::block_attention(View queries, const BlockShape& shape, std::span<const BlockLane> lanes, const KvLayout& layout,
                              View out) {
  checks::block_attention(queries, shape, lanes, layout, out);
  set_float_environment();
  const int dim = shape.head_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  std::vector<float> score, k(static_cast<size_t>(dim));
  std::vector<double> sum(static_cast<size_t>(dim));  // long contexts: errors of fp32 sums would be seen
  for (const BlockLane& lane : lanes) {
    for (int i = 0; i < lane.rows; ++i) {
      const int64_t position = lane.end + i;
      const int64_t begin = shape.window > 0 ? std::max(lane.begin, position - shape.window + 1) : lane.begin;
      const int64_t end = lane.end + (shape.causal ? i + 1 : lane.rows);
      const auto visible = [&](int64_t p) { return p >= begin || p >= lane.end; };
      const int64_t first = std::min(begin, lane.end);
      for (int h = 0; h < shape.query_heads; ++h) {
        const int kv_head = h / (shape.query_heads / shape.kv_heads);
        const float* query = queries.f32(lane.first_row + i) + h * dim;
        score.clear();
        float largest = -std::numeric_limits<float>::infinity();
        for (int64_t p = first; p < end; ++p) {
          if (!visible(p)) continue;
          load_head(dim, layout.format, key_slot(lane, layout, kv_head, p), k.data());
          double dot = 0;
          for (int d = 0; d < dim; ++d) dot += double{query[d]} * double{k[static_cast<size_t>(d)]};
          score.push_back(static_cast<float>(dot * double{scale}));
          largest = std::max(largest, score.back());
        }
        double total = 0;
        std::fill(sum.begin(), sum.end(), 0.0);
        size_t next = 0;
        for (int64_t p = first; p < end; ++p) {
          if (!visible(p)) continue;
          const float weight = canonical::exp(score[next++] - largest);
          total += weight;
          load_head(dim, layout.format, value_slot(lane, layout, kv_head, p), k.data());
          for (int d = 0; d < dim; ++d) sum[static_cast<size_t>(d)] += double{weight} * double{k[static_cast<size_t>(d)]};
        }
        float* to = out.f32(lane.first_row + i) + h * dim;
        for (int d = 0; d < dim; ++d) to[d] = static_cast<float>(sum[static_cast<size_t>(d)] / total);
      }
    }
  }
}

void Backend::block_conv(View x, View base, View delta, int group, std::span<const BlockLane> lanes, View out) {
  checks::block_conv(x, base, delta, group, lanes, out);
  set_float_environment();
  const int64_t groups = x.cols / group;
  for (const BlockLane& lane : lanes)
    for (int t = 0; t < lane.rows; ++t) {
      const int64_t row = lane.first_row + t;
      for (int64_t c = 0; c < x.cols; ++c) {
        float acc = 0;
        for (int64_t j = 0; j < base.rows && j <= t; ++j)
          acc = fma(base.f32(j)[c] + delta.f32(row)[j * groups + c / group], x.f32(row - j)[c], acc);
        out.f32(row)[c] = acc;
      }
    }
}

void Backend::top_k(View logits, int k, std::span<TokenId> ids, View values) {
  checks::top_k(logits, k, ids, values);
  set_float_environment();
  for (int64_t r = 0; r < logits.rows; ++r) {
    TokenId* id = ids.data() + r * k;
    float* value = values.f32(r);
    int count = 0;
    for (int64_t i = 0; i < logits.cols; ++i) {
      float v = logits.f32(r)[i];
      if (v != v) v = -std::numeric_limits<float>::infinity();
      if (count == k && !(v > value[k - 1])) continue;
      int at = count < k ? count++ : k - 1;
      for (; at > 0 && v > value[at - 1]; --at) value[at] = value[at - 1], id[at] = id[at - 1];
      value[at] = v;
      id[at] = static_cast<TokenId>(i);
    }
  }
}

void Backend::selector_edges(View weights, View predecessors, View successors, View edges) {
  checks::selector_edges(weights, predecessors, successors, edges);
  set_float_environment();
  const int64_t k = edges.cols, rank = weights.cols;
  std::vector<float> weighted(static_cast<size_t>(rank));
  for (int64_t s = 0; s < weights.rows; ++s)
    for (int64_t a = 0; a < k; ++a) {
      for (int64_t r = 0; r < rank; ++r)
        weighted[static_cast<size_t>(r)] = predecessors.f32(s * k + a)[r] * weights.f32(s)[r];
      for (int64_t b = 0; b < k; ++b) {
        const float* successor = successors.f32(s * k + b);
        edges.f32(s * k + a)[b] = canonical::dot16([successor](int64_t r) { return successor[r]; }, weighted.data(), rank);
      }
    }
}

// In host memory; a backend with memory of its own has its own.
void Backend::lattice(View logits, int k, View weights, const MatrixSource& predecessor, const MatrixSource& successor,
                      std::span<const LatticeBlock> blocks, Lattice& out) {
  CHECK(on_host());
  checks::lattice(logits, k, weights, predecessor, successor, blocks);
  const int64_t slots = logits.rows, count = slots * k, rank = weights.cols;
  out.ids.resize(static_cast<size_t>(count));
  out.unary.resize(static_cast<size_t>(count));
  out.edges.resize(weights.empty() ? 0 : static_cast<size_t>(count * k));
  if (slots == 0) return;
  top_k(logits, k, out.ids, View::of(out.unary.data(), slots, k));
  if (weights.empty()) return;
  std::vector<RowInput> before, after;
  for (const LatticeBlock& block : blocks)
    for (int s = 0; s < block.slots; ++s)
      for (int i = 0; i < k; ++i) {
        const size_t at = static_cast<size_t>((block.first + s) * k + i);
        before.push_back({.token = s == 0 ? block.anchor : out.ids[at - static_cast<size_t>(k)]});
        after.push_back({.token = out.ids[at]});
      }
  out.work.resize(static_cast<size_t>(2 * count * rank));
  const View predecessors = View::of(out.work.data(), count, rank), successors = View::of(out.work.data() + count * rank, count, rank);
  embed(before, predecessor, predecessors);
  embed(after, successor, successors);
  selector_edges(weights, predecessors, successors, View::of(out.edges.data(), count, k));
}

}  // namespace foretoken
