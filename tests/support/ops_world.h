// Small worlds for operator tests: random values, lanes of rows with trees, K/V pages and delta memories whose unused
// parts are poisoned with NaN. Everything follows from a seed; knows no backend but through the Backend interface.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "ops/checks.h"
#include "ops/ops.h"

namespace foretoken::test {

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
  uint64_t bits() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  int below(int n) { return static_cast<int>(bits() % static_cast<uint64_t>(n)); }
  float uniform() { return static_cast<float>(bits() >> 40) * 0x1p-23f - 1.0f; }  // [-1, 1)
  // Mostly near one, with a tail over several magnitudes, zeros of both signs and negatives.
  float value() {
    const float x = uniform();
    switch (below(16)) {
      case 0:
        return x * 8.0f;
      case 1:
        return x * 1e-4f;
      case 2:
        return below(2) ? 0.0f : -0.0f;
      default:
        return x;
    }
  }

 private:
  uint64_t state_;
};

// A matrix with poisoned columns beside its values, so that strides are exercised and stray reads show.
class Matrix2 {
 public:
  Matrix2() = default;
  Matrix2(int64_t rows, int64_t cols, int64_t pad = 5)
      : rows_(rows), cols_(cols), stride_(cols + pad), data_(static_cast<size_t>((rows + 1) * stride_), kNaN) {}
  static Matrix2 random(Random& random, int64_t rows, int64_t cols, float scale = 1.0f, float offset = 0.0f) {
    Matrix2 m(rows, cols);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c) m.at(r, c) = random.value() * scale + offset;
    return m;
  }
  View view() const {
    return {reinterpret_cast<std::byte*>(const_cast<float*>(data_.data())), DType::kF32, rows_, cols_, stride_};
  }
  View row(int64_t r) const { return view().row_range(r, r + 1); }
  float& at(int64_t r, int64_t c) { return data_[static_cast<size_t>(r * stride_ + c)]; }
  float at(int64_t r, int64_t c) const { return data_[static_cast<size_t>(r * stride_ + c)]; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  // Everything beside the values is still poison: nothing wrote there.
  bool padding_untouched() const {
    for (int64_t r = 0; r <= rows_; ++r)
      for (int64_t c = r < rows_ ? cols_ : 0; c < stride_; ++c)
        if (at(r, c) == at(r, c)) return false;
    return true;
  }

 private:
  int64_t rows_ = 0, cols_ = 0, stride_ = 0;
  std::vector<float> data_;
};

// Equal bits; a NaN equals any NaN. Fails the test with the first difference, `what` named.
inline void expect_same_bits(View actual, View expected, const std::string& what) {
  ASSERT_EQ(actual.rows, expected.rows) << what;
  ASSERT_EQ(actual.cols, expected.cols) << what;
  for (int64_t r = 0; r < actual.rows; ++r) {
    for (int64_t c = 0; c < actual.cols; ++c) {
      const float a = actual.f32(r)[c], b = expected.f32(r)[c];
      if (std::memcmp(&a, &b, 4) == 0 || (a != a && b != b)) continue;
      ADD_FAILURE() << what << ": row " << r << " column " << c << " is " << a << " instead of " << b;
      return;
    }
  }
}
inline void expect_same_bits(const Matrix2& actual, const Matrix2& expected, const std::string& what) {
  expect_same_bits(actual.view(), expected.view(), what);
}

// True when the values are finite and not all alike: an equality with them means something.
inline bool is_informative(View v) {
  bool differs = false;
  for (int64_t r = 0; r < v.rows; ++r)
    for (int64_t c = 0; c < v.cols; ++c) {
      if (!(std::abs(v.f32(r)[c]) <= std::numeric_limits<float>::max())) return false;
      differs = differs || v.f32(r)[c] != v.f32(0)[0];
    }
  return differs || v.rows * v.cols <= 1;
}

struct LanePlan {
  int rows = 1;
  int64_t prefix = 0;
  int settled = 0;
  std::vector<int16_t> parent;  // empty: chain
};

// A random tree that descends from the last settled row.
inline LanePlan random_tree(Random& random, int rows, int64_t prefix, int settled) {
  LanePlan plan{rows, prefix, settled, {}};
  for (int i = 0; i < rows; ++i) {
    if (i < settled) {
      plan.parent.push_back(static_cast<int16_t>(i - 1));
      continue;
    }
    const int lowest = settled - 1;  // -1 when nothing is settled: several roots
    plan.parent.push_back(static_cast<int16_t>(lowest + random.below(i - lowest)));
  }
  return plan;
}

// Borrows the parents of `plans`.
inline std::vector<LaneRows> lane_rows(std::vector<LanePlan>&& plans) = delete;
inline std::vector<LaneRows> lane_rows(const std::vector<LanePlan>& plans) {
  std::vector<LaneRows> lanes;
  int first = 0;
  for (const LanePlan& plan : plans) {
    lanes.push_back({first, plan.rows, plan.prefix, plan.settled, plan.parent});
    first += plan.rows;
  }
  return lanes;
}

inline int total_rows(const std::vector<LanePlan>& plans) {
  int rows = 0;
  for (const LanePlan& plan : plans) rows += plan.rows;
  return rows;
}

// Pages of one lane, all bytes 0xFF: NaN as fp32 and as bf16, NaN scales for int8. Copyable, so that two backends can
// start alike.
class Pages {
 public:
  Pages() = default;
  Pages(const KvLayout& layout, int64_t tokens)
      : page_floats_(layout.page_bytes() / 4), count_((tokens + kPageTokens - 1) / kPageTokens) {
    storage_ = Buffer(page_floats_ * 4 * static_cast<size_t>(count_));
    std::memset(storage_.data(), 0xFF, storage_.size());
    index();
  }
  Pages(const Pages& other) : page_floats_(other.page_floats_), count_(other.count_), storage_(other.storage_.size()) {
    std::memcpy(storage_.data(), other.storage_.data(), storage_.size());
    index();
  }
  Pages(Pages&&) = default;
  Pages& operator=(Pages&&) = default;
  PageTable table() const { return table_; }
  bool same_bytes(const Pages& other) const {
    return storage_.size() == other.storage_.size() &&
           std::memcmp(storage_.data(), other.storage_.data(), storage_.size()) == 0;
  }

 private:
  void index() {
    // Pages are handed out in reverse, so that nobody can rely on neighbours.
    for (int64_t p = 0; p < count_; ++p)
      table_.push_back(storage_.data() + static_cast<size_t>(count_ - 1 - p) * page_floats_ * 4);
  }
  size_t page_floats_ = 0;
  int64_t count_ = 0;
  Buffer storage_;
  std::vector<std::byte*> table_;
};

inline std::vector<PageTable> tables(const std::vector<Pages>& pages) {
  std::vector<PageTable> result;
  for (const Pages& p : pages) result.push_back(p.table());
  return result;
}

// Inputs of the attention operators for `rows` rows at text positions.
struct AttentionInputs {
  Matrix2 packed, q_norm, k_norm, rotary;
};

inline RotarySpec test_rotary(int rotary_dim) {
  RotarySpec spec;
  for (int j = 0; j < rotary_dim / 2; ++j) {
    spec.inverse_frequency.push_back(1.0f / (1.0f + static_cast<float>(j * j)));
    spec.axis.push_back(static_cast<uint8_t>(j % 3));
  }
  spec.magnitude = 1.25f;
  return spec;
}

// Fills slots [0, prefix) of layer `layer` as a prompt would, by the given backend.
inline void fill_prefix(Backend& backend, const AttentionShape& shape, const KvLayout& layout, int layer,
                        const Pages& pages, int64_t prefix, uint64_t seed) {
  if (prefix == 0) return;
  Random random(seed);
  const Matrix2 packed = Matrix2::random(random, prefix, shape.packed_columns());
  const Matrix2 norm = Matrix2::random(random, 1, shape.head_dim, 0.2f, 1.0f);
  const Matrix2 rotary = Matrix2::random(random, prefix, shape.head_dim / 4 * 2, 0.3f, 0.5f);
  Matrix2 queries(prefix, shape.query_heads * shape.head_dim);
  const LaneRows lane{0, static_cast<int>(prefix), 0, static_cast<int>(prefix), {}};
  const PageTable table = pages.table();
  backend.attention_inputs(packed.view(), norm.view(), norm.view(), rotary.view(), shape, Batch{{}, {&lane, 1}, {}},
                           {&table, 1}, layout, layer, queries.view());
}

// State, tail and tape of one lane. The tape starts poisoned.
struct DeltaLane {
  std::vector<float> state, tail, decay, key, delta, conv_row;
  DeltaLane() = default;
  DeltaLane(const DeltaShape& shape, int rows, uint64_t seed)
      : state(shape.state_floats()),
        tail(shape.tail_floats()),
        decay(static_cast<size_t>(rows) * static_cast<size_t>(shape.value_heads), kNaN),
        key(static_cast<size_t>(rows) * static_cast<size_t>(shape.key_heads * shape.key_dim), kNaN),
        delta(static_cast<size_t>(rows) * static_cast<size_t>(shape.value_heads * shape.value_dim), kNaN),
        conv_row(static_cast<size_t>(rows) * static_cast<size_t>(shape.channels()), kNaN) {
    Random random(seed);
    for (float& s : state) s = random.value();
    for (float& s : tail) s = random.value();
  }
  DeltaMemory memory() {
    return {state.data(), tail.data(), {decay.data(), key.data(), delta.data(), conv_row.data()}};
  }
};

inline std::vector<DeltaMemory> memories(std::vector<DeltaLane>& lanes) {
  std::vector<DeltaMemory> result;
  for (DeltaLane& lane : lanes) result.push_back(lane.memory());
  return result;
}

inline void expect_same_floats(const std::vector<float>& actual, const std::vector<float>& expected,
                               const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  expect_same_bits(View::of(const_cast<float*>(actual.data()), 1, static_cast<int64_t>(actual.size())),
                   View::of(const_cast<float*>(expected.data()), 1, static_cast<int64_t>(expected.size())), what);
}

inline void expect_same_lane(const DeltaLane& actual, const DeltaLane& expected, const std::string& what) {
  expect_same_floats(actual.state, expected.state, what + ", state");
  expect_same_floats(actual.tail, expected.tail, what + ", tail");
  expect_same_floats(actual.decay, expected.decay, what + ", tape decay");
  expect_same_floats(actual.key, expected.key, what + ", tape key");
  expect_same_floats(actual.delta, expected.delta, what + ", tape delta");
  expect_same_floats(actual.conv_row, expected.conv_row, what + ", tape rows");
}

// A weight of random values, as fp32 bytes or encoded as `format`; the bytes stay alive in the object.
struct Weight {
  std::vector<std::byte> bytes;
  MatrixSource source;
  Weight(Random& random, QuantFormat format, int64_t rows, int64_t cols, float scale = 1.0f) {
    std::vector<float> values(static_cast<size_t>(rows * cols));
    for (float& v : values) v = random.uniform() * scale;
    bytes.resize(static_cast<size_t>(rows) * row_bytes(format, cols));
    if (format == QuantFormat::kF32) std::memcpy(bytes.data(), values.data(), bytes.size());
    else if (format == QuantFormat::kBF16)
      for (size_t i = 0; i < values.size(); ++i) {
        const Bf16 b = to_bf16(values[i]);
        std::memcpy(bytes.data() + 2 * i, &b, 2);
      }
    else {
      // Q8_0: an f16 scale, then 32 signed bytes.
      CHECK(format == QuantFormat::kQ8_0);
      for (size_t b = 0; b * 34 < bytes.size(); ++b) {
        const F16 d = to_f16(scale * (0.5f + 0.4f * random.uniform()) / 127.0f);
        std::memcpy(bytes.data() + b * 34, &d, 2);
        for (size_t i = 0; i < 32; ++i) bytes[b * 34 + 2 + i] = static_cast<std::byte>(random.below(255) - 127);
      }
    }
    source = MatrixSource{"weight", format, rows, cols, bytes, {}, {}};
  }
};

}  // namespace foretoken::test
