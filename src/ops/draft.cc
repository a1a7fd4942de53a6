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

void check_lanes(std::span<const BlockLane> lanes, int64_t rows) {
  for (const BlockLane& lane : lanes) {
    CHECK(lane.first_row >= 0);
    CHECK(lane.rows >= 0);
    CHECK(int64_t{lane.first_row} + lane.rows <= rows);
  }
}

void check_memory(const BlockShape& shape, std::span<const BlockLane> lanes, const KvLayout& layout, int64_t rows) {
  check_lanes(lanes, rows);
  CHECK(shape.kv_heads > 0);
  CHECK(shape.query_heads % shape.kv_heads == 0);
  CHECK(shape.head_dim > 0);
  CHECK(shape.head_dim <= checks::kMaxHeadDim);
  CHECK(layout.heads == shape.kv_heads);
  CHECK(layout.head_dim == shape.head_dim);
  CHECK(layout.layers >= 1);
  for (const BlockLane& lane : lanes) {
    const int64_t slots = static_cast<int64_t>(lane.pages.size()) * kPageTokens;
    CHECK(lane.base % kPageTokens == 0);
    CHECK(lane.base <= lane.begin);
    CHECK(lane.begin <= lane.end);
    CHECK(lane.rows <= slots);
    // What a row sees must still be there: a window reaches back at most as far as the ring.
    const int64_t reach = shape.window > 0 ? std::min<int64_t>(lane.end - lane.begin, shape.window - 1) : lane.end - lane.begin;
    CHECK(reach + lane.rows <= slots);
  }
}

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
  const int dim = shape.head_dim;
  checks::shape(kv, -1, 2 * int64_t{shape.kv_heads} * dim);
  if (!q.empty()) checks::shape(q, kv.rows, int64_t{shape.query_heads} * dim);
  checks::shape(q_norm, 1, dim);
  checks::shape(k_norm, 1, dim);
  checks::shape(rotary, kv.rows, -1);
  CHECK(rotary.cols % 2 == 0);
  CHECK(rotary.cols <= dim);
  check_memory(shape, lanes, layout, kv.rows);
  set_float_environment();
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
  const int dim = shape.head_dim;
  checks::shape(queries, -1, int64_t{shape.query_heads} * dim);
  checks::shape(out, queries.rows, queries.cols);
  check_memory(shape, lanes, layout, queries.rows);
  set_float_environment();
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  std::vector<float> score, k(static_cast<size_t>(dim)), sum(static_cast<size_t>(dim));
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
          float dot = 0;
          for (int d = 0; d < dim; ++d) dot = fma(query[d], k[static_cast<size_t>(d)], dot);
          score.push_back(dot * scale);
          largest = std::max(largest, score.back());
        }
        float total = 0;
        std::fill(sum.begin(), sum.end(), 0.0f);
        size_t next = 0;
        for (int64_t p = first; p < end; ++p) {
          if (!visible(p)) continue;
          const float weight = canonical::exp(score[next++] - largest);
          total += weight;
          load_head(dim, layout.format, value_slot(lane, layout, kv_head, p), k.data());
          for (int d = 0; d < dim; ++d) sum[static_cast<size_t>(d)] = fma(weight, k[static_cast<size_t>(d)], sum[static_cast<size_t>(d)]);
        }
        float* to = out.f32(lane.first_row + i) + h * dim;
        for (int d = 0; d < dim; ++d) to[d] = sum[static_cast<size_t>(d)] / total;
      }
    }
  }
}

void Backend::block_conv(View x, View base, View delta, int group, std::span<const BlockLane> lanes, View out) {
  checks::shape(x, -1, -1);
  CHECK(group > 0);
  CHECK(x.cols % group == 0);
  checks::shape(base, -1, x.cols);
  checks::shape(delta, x.rows, base.rows * (x.cols / group));
  checks::shape(out, x.rows, x.cols);
  CHECK(out.data != x.data);
  check_lanes(lanes, x.rows);
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
  checks::shape(logits, -1, -1);
  CHECK(k >= 1);
  CHECK(k <= logits.cols);
  checks::shape(values, logits.rows, k);
  CHECK(static_cast<int64_t>(ids.size()) == logits.rows * k);
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
  checks::shape(weights, -1, -1);
  const int64_t k = edges.cols, rank = weights.cols;
  CHECK(k >= 1);
  checks::shape(predecessors, weights.rows * k, rank);
  checks::shape(successors, weights.rows * k, rank);
  checks::shape(edges, weights.rows * k, k);
  set_float_environment();
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

}  // namespace foretoken
