// Products of packed matrices: every storage format, row count, instruction set and thread count against the canonical scalar
// arithmetic, bit for bit.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "cpu/packed_layout.h"
#include "cpu/packing.h"
#include "cpu/products.h"
#include "cpu/select.h"
#include "numerics/canonical.h"

namespace foretoken {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kSentinel = 12345.0f;
constexpr int kMaxRows = 33;
constexpr int kRowCounts[] = {1, 2, 3, 4, 5, 8, 15, 16, 17, 33};

std::vector<const cpu::KernelTable*> tables() {
  std::vector<const cpu::KernelTable*> found;
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512})
    if (const cpu::KernelTable* t = cpu::find_kernels(isa)) found.push_back(t);
  return found;
}

// Byte offsets of the f16 factors of a block.
std::vector<size_t> f16_fields(QuantFormat format) {
  switch (format) {
    case QuantFormat::kQ2_K: return {80, 82};
    case QuantFormat::kQ3_K: return {108};
    case QuantFormat::kQ6_K: return {208};
    case QuantFormat::kQ4_1:
    case QuantFormat::kQ5_1:
    case QuantFormat::kQ4_K:
    case QuantFormat::kQ5_K: return {0, 2};
    default: return {0};
  }
}

// A weight of random bits with sane factors, at an odd address so that an aligned load of the source would be noticed.
struct Weight {
  QuantFormat format;
  int64_t rows, cols;
  std::vector<std::byte> memory;

  Weight(QuantFormat f, int64_t r, int64_t c, std::mt19937& random) : format(f), rows(r), cols(c) {
    const size_t bytes = static_cast<size_t>(r) * row_bytes(f, c);
    memory.resize(bytes + 1);
    std::byte* data = memory.data() + 1;
    if (is_float_format(f)) {
      std::normal_distribution<float> normal(0, 0.1f);
      for (int64_t i = 0; i < r * c; ++i) {
        const float v = normal(random);
        if (f == QuantFormat::kF32) std::memcpy(data + 4 * i, &v, 4);
        if (f == QuantFormat::kF16) std::memcpy(data + 2 * i, std::vector<F16>{to_f16(v)}.data(), 2);
        if (f == QuantFormat::kBF16) std::memcpy(data + 2 * i, std::vector<Bf16>{to_bf16(v)}.data(), 2);
      }
      return;
    }
    for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(random());
    const auto block_bytes = static_cast<size_t>(format_info(f).block_bytes);
    std::uniform_real_distribution<float> factor(-0.02f, 0.02f);
    for (size_t at = 0; at < bytes; at += block_bytes)
      for (size_t field : f16_fields(f)) {
        const F16 v = to_f16(factor(random));
        std::memcpy(data + at + field, &v, 2);
      }
  }

  const std::byte* data() const { return memory.data() + 1; }
  MatrixSource source() const {
    return {.name = "w", .format = format, .rows = rows, .cols = cols, .data = {data(), memory.size() - 1}};
  }
};

// Activation rows [kMaxRows] with a wider stride; everything around them is NaN.
struct Input {
  int64_t cols, stride;
  std::vector<float> memory;

  Input(int64_t c, std::mt19937& random) : cols(c), stride(c + 7), memory(static_cast<size_t>((kMaxRows + 2) * stride), kNan) {
    std::normal_distribution<float> normal(0, 1.0f);
    for (int r = 0; r < kMaxRows; ++r)
      for (int64_t k = 0; k < c; ++k) row(r)[k] = normal(random) * (k % 61 == 0 ? 20.0f : 1.0f);
  }
  float* row(int r) { return memory.data() + (r + 1) * stride; }
  View view(int first, int rows) {
    return {reinterpret_cast<std::byte*>(row(first)), DType::kF32, rows, cols, stride};
  }
};

// The canonical value of one output, straight from canonical.h and unpack_block.
float expected_value(const Weight& w, int64_t output, const float* x) {
  const std::byte* row = w.data() + static_cast<size_t>(output) * row_bytes(w.format, w.cols);
  auto at = [row]<class T>(int64_t i, T value) {
    std::memcpy(&value, row + static_cast<size_t>(i) * sizeof value, sizeof value);
    return value;
  };
  switch (w.format) {
    case QuantFormat::kF32: return canonical::dot16([&](int64_t i) { return at(i, float{}); }, x, w.cols);
    case QuantFormat::kF16: return canonical::dot16([&](int64_t i) { return to_float(at(i, F16{})); }, x, w.cols);
    case QuantFormat::kBF16: return canonical::dot16([&](int64_t i) { return to_float(at(i, Bf16{})); }, x, w.cols);
    default: break;
  }
  const FormatInfo& info = format_info(w.format);
  float acc = 0;
  for (int64_t b = 0; b < w.cols / info.block_elements; ++b) {
    UnpackedBlock block;
    unpack_block(w.format, row + b * info.block_bytes, block);
    int8_t q[256];
    const float scale = canonical::quantize_activation(x + b * info.block_elements, info.block_elements, q);
    acc = canonical::add_block(block, q, scale, acc);
  }
  return acc;
}

// Equal bits; any NaN equals any NaN, since the payload of a NaN is no part of the contract.
bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

struct Case {
  std::vector<Weight> weights;
  int64_t cols, outputs = 0;
  std::vector<float> expected;  // [kMaxRows, outputs]
  Input input;

  Case(std::vector<Weight> parts, std::mt19937& random) : weights(std::move(parts)), cols(weights[0].cols), input(cols, random) {
    for (const Weight& w : weights) outputs += w.rows;
  }
  void evaluate() {
    expected.clear();
    for (int r = 0; r < kMaxRows; ++r)
      for (const Weight& w : weights)
        for (int64_t o = 0; o < w.rows; ++o) expected.push_back(expected_value(w, o, input.row(r)));
  }
  std::vector<MatrixSource> sources() const {
    std::vector<MatrixSource> all;
    for (const Weight& w : weights) all.push_back(w.source());
    return all;
  }
};

void expect_canonical(Case& c, const std::string& what) {
  set_float_environment();
  c.evaluate();
  for (const cpu::KernelTable* kernels : tables())
    for (int threads : {1, 2}) {
      ThreadPool pool(threads);
      cpu::Products products(*kernels, pool);
      const auto matrix = cpu::pack_matrix(c.sources(), pool);
      ASSERT_EQ(matrix->rows(), c.outputs);
      for (int rows : kRowCounts) {
        const int first = (kMaxRows - rows) / 2;  // the same row in different places of a tile
        const int64_t stride = c.outputs + 5;
        std::vector<float> out(static_cast<size_t>((rows + 2) * stride), kSentinel);
        const View view{reinterpret_cast<std::byte*>(out.data() + stride), DType::kF32, rows, c.outputs, stride};
        products.linear(c.input.view(first, rows), *matrix, view);
        int64_t wrong = 0;
        for (int r = 0; r < rows; ++r)
          for (int64_t o = 0; o < c.outputs; ++o) {
            const float want = c.expected[static_cast<size_t>((first + r) * c.outputs + o)];
            if (!same(view.f32(r)[o], want) && wrong++ == 0)
              ADD_FAILURE() << what << ", " << kernels->name << ", " << threads << " threads, " << rows << " rows: row " << r
                            << ", output " << o << ": " << view.f32(r)[o] << " instead of " << want;
          }
        for (int64_t i = 0; i < static_cast<int64_t>(out.size()); ++i) {
          const int64_t r = i / stride - 1, o = i % stride;
          if ((r < 0 || r >= rows || o >= c.outputs) && out[static_cast<size_t>(i)] != kSentinel)
            FAIL() << what << ", " << kernels->name << ": wrote outside of the output at row " << r << ", column " << o;
        }
        if (wrong > 0) return;
      }
    }
}

QuantFormat format_of(int i) { return static_cast<QuantFormat>(i); }

class EveryFormat : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Linear, EveryFormat, testing::Range(0, kQuantFormatCount), [](const auto& info) {
  return std::string(format_info(format_of(info.param)).name);
});

// Every output has the bits of canonical::add_block or canonical::dot16 for every row count, instruction set and thread count,
// outputs that do not fill a group included; nothing beside the inputs is read into a result and nothing beside the
// output is written.
TEST_P(EveryFormat, HasTheCanonicalBits) {
  const QuantFormat format = format_of(GetParam());
  const int block = format_info(format).block_elements;
  std::mt19937 random(static_cast<unsigned>(GetParam()) + 1);
  const std::vector<std::pair<int64_t, int64_t>> shapes =
      block == 256  ? std::vector<std::pair<int64_t, int64_t>>{{1, 256}, {33, 512}, {70, 768}}
      : block == 32 ? std::vector<std::pair<int64_t, int64_t>>{{1, 32}, {33, 96}, {70, 288}, {40, 512}}
                    : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {17, 15}, {16, 16}, {20, 33}, {50, 81}, {33, 256}};
  for (auto [rows, cols] : shapes) {
    std::vector<Weight> parts;
    parts.emplace_back(format, rows, cols, random);
    Case c(std::move(parts), random);
    expect_canonical(c, std::string(format_info(format).name) + " " + std::to_string(rows) + "x" + std::to_string(cols));
    // The reference is not trivial: values differ from each other and from zero.
    if (rows > 16) {
      EXPECT_NE(c.expected[0], 0.0f);
      EXPECT_NE(c.expected[0], c.expected[1]);
      EXPECT_NE(c.expected[0], c.expected[static_cast<size_t>(c.outputs)]);
    }
  }
}

// Blocks whose quants, scales and minimums are all extreme, and activations of one sign at full scale, so that every integer
// sum reaches its bound: saturation or overflow anywhere changes bits.
TEST_P(EveryFormat, ExtremeSumsAreExact) {
  const QuantFormat format = format_of(GetParam());
  if (is_float_format(format)) return;
  std::mt19937 random(7);
  for (std::byte fill : {std::byte{0xFF}, std::byte{0x7F}, std::byte{0x80}, std::byte{0x00}}) {
    std::vector<Weight> parts;
    parts.emplace_back(format, 35, 512, random);
    Weight& w = parts[0];
    const auto block_bytes = static_cast<size_t>(format_info(format).block_bytes);
    for (size_t at = 1; at < w.memory.size(); at += block_bytes)
      for (size_t i = 0; i < block_bytes; ++i) {
        bool factor = false;
        for (size_t field : f16_fields(format)) factor |= i == field || i == field + 1;
        if (!factor) w.memory[at + i] = fill;
      }
    Case c(std::move(parts), random);
    for (int r = 0; r < kMaxRows; ++r)
      for (int64_t k = 0; k < c.cols; ++k) c.input.row(r)[k] = r % 3 == 0 ? 1.0f : r % 3 == 1 ? -1.0f : (k & 1 ? 1.0f : -1.0f);
    expect_canonical(c, std::string(format_info(format).name) + " extreme");
  }
}

// Dot products of a sub-block on both sides of what 16 bits hold, where the kernels change their way of scaling: rows whose
// magnitudes add up to 2179..2211 (times 15, Q4_K) and to 1016..1048 (times -32, Q6_K) around 32767.
TEST(Linear, SumsAroundSixteenBitsAreExact) {
  struct Edge {
    QuantFormat format;
    size_t scales, scale_bytes;  // in a block: set to the largest positive value
    std::byte quants, scale;
    int sub, ones, first;        // activations: `ones` of 127, then one of first + row
  };
  for (const Edge& edge : {Edge{QuantFormat::kQ4_K, 4, 12, std::byte{0xFF}, std::byte{0xFF}, 32, 17, 20},
                           Edge{QuantFormat::kQ6_K, 192, 16, std::byte{0x00}, std::byte{0x7F}, 16, 8, 0}}) {
    std::mt19937 random(23);
    std::vector<Weight> parts;
    parts.emplace_back(edge.format, 33, 512, random);
    Weight& w = parts[0];
    const auto block_bytes = static_cast<size_t>(format_info(edge.format).block_bytes);
    for (size_t at = 1; at < w.memory.size(); at += block_bytes)
      for (size_t i = 0; i < block_bytes; ++i) {
        bool factor = false;
        for (size_t field : f16_fields(edge.format)) factor |= i == field || i == field + 1;
        if (!factor) w.memory[at + i] = i >= edge.scales && i < edge.scales + edge.scale_bytes ? edge.scale : edge.quants;
      }
    Case c(std::move(parts), random);
    for (int r = 0; r < kMaxRows; ++r)
      for (int64_t k = 0; k < c.cols; ++k) {
        const int64_t i = k % edge.sub;
        c.input.row(r)[k] = i < edge.ones ? 1.0f : i == edge.ones ? static_cast<float>(edge.first + r) / 127.0f : 0.0f;
      }
    expect_canonical(c, std::string(format_info(edge.format).name) + " around 16 bits");
    EXPECT_NE(c.expected[0], 0.0f);
    EXPECT_NE(c.expected[0], c.expected[static_cast<size_t>(c.outputs)]);
  }
}

// A row that holds a non-finite value gives NaN in its own outputs and changes no other row; rows of zeros and of values too
// small to quantise give what the canonical arithmetic says.
TEST_P(EveryFormat, StrangeRowsStayAlone) {
  const QuantFormat format = format_of(GetParam());
  std::mt19937 random(11);
  std::vector<Weight> parts;
  parts.emplace_back(format, 40, 512, random);
  Case c(std::move(parts), random);
  c.input.row(15)[300] = kNan;
  c.input.row(17)[5] = std::numeric_limits<float>::infinity();
  for (int64_t k = 0; k < c.cols; ++k) {
    c.input.row(14)[k] = 0.0f;
    c.input.row(18)[k] = k % 2 ? 1e-31f : -1e-33f;
    c.input.row(19)[k] = k < 256 ? -0.0f : 3e38f;
  }
  expect_canonical(c, std::string(format_info(format).name) + " strange rows");
  EXPECT_TRUE(std::isnan(c.expected[static_cast<size_t>(15 * c.outputs)]));
  EXPECT_FALSE(std::isnan(c.expected[static_cast<size_t>(16 * c.outputs)]));
}

// Parts of different formats in one matrix land side by side, each with its own bits.
TEST(Linear, PartsKeepTheirFormats) {
  std::mt19937 random(3);
  std::vector<Weight> parts;
  parts.emplace_back(QuantFormat::kQ4_K, 45, 512, random);
  parts.emplace_back(QuantFormat::kQ6_K, 7, 512, random);
  parts.emplace_back(QuantFormat::kBF16, 3, 512, random);
  parts.emplace_back(QuantFormat::kQ8_0, 64, 512, random);
  parts.emplace_back(QuantFormat::kQ5_K, 33, 512, random);
  parts.emplace_back(QuantFormat::kF32, 18, 512, random);
  Case c(std::move(parts), random);
  expect_canonical(c, "parts");
}

// Row orders and column orders choose source rows and columns before anything is computed.
TEST(Linear, OrdersAreApplied) {
  std::mt19937 random(5);
  set_float_environment();
  for (QuantFormat format : {QuantFormat::kQ4_K, QuantFormat::kBF16}) {
    const Weight w(format, 40, 256, random);
    Input input(256, random);
    MatrixSource source = w.source();
    for (int i = 0; i < 37; ++i) source.row_order.push_back((i * 7 + 3) % 40);
    std::vector<float> x(256);
    for (int i = 0; i < 256; ++i) x[static_cast<size_t>(i)] = input.row(0)[i];
    if (format == QuantFormat::kBF16) {
      for (int i = 0; i < 256; ++i) source.column_order.push_back((i * 5 + 1) % 256);
    }
    ThreadPool pool(2);
    cpu::Products products(*cpu::find_kernels(Isa::kAuto), pool);
    const auto matrix = cpu::pack_matrix({&source, 1}, pool);
    ASSERT_EQ(matrix->rows(), 37);
    std::vector<float> out(37);
    products.linear(input.view(0, 1), *matrix, View::of(out.data(), 1, 37));
    // Packed column c is source column order[c]: the same product as the source row on x with the inverse order.
    for (int o = 0; o < 37; ++o) {
      const int row = (o * 7 + 3) % 40;
      float want = expected_value(w, row, x.data());
      if (format == QuantFormat::kBF16) {
        const std::byte* data = w.data() + static_cast<size_t>(row) * row_bytes(format, 256);
        want = canonical::dot16(
            [&](int64_t i) {
              Bf16 v;
              std::memcpy(&v, data + 2 * ((i * 5 + 1) % 256), 2);
              return to_float(v);
            },
            x.data(), 256);
      }
      EXPECT_TRUE(same(out[static_cast<size_t>(o)], want)) << o;
    }
  }
}

// The gated feed-forward equals its two products with canonical::silu between them, on every instruction set: for gate and up in parts of
// their own and in one, in formats that differ, and where the halves cannot be told apart by groups of outputs.
TEST(Linear, GatedFfnHasTheCanonicalBits) {
  struct Case {
    const char* name;
    QuantFormat gate;
    std::optional<QuantFormat> up;  // none: rows behind gate's of one matrix
    QuantFormat down;
    int width;
  };
  const Case cases[] = {{"parts", QuantFormat::kQ4_K, QuantFormat::kQ6_K, QuantFormat::kQ8_0, 512},
                        {"one matrix", QuantFormat::kQ4_K, {}, QuantFormat::kQ8_0, 256},
                        {"ragged parts", QuantFormat::kQ8_0, QuantFormat::kQ5_K, QuantFormat::kF32, 40},
                        {"one ragged matrix", QuantFormat::kQ8_0, {}, QuantFormat::kF32, 40},
                        {"a float", QuantFormat::kQ4_K, QuantFormat::kBF16, QuantFormat::kQ8_0, 64}};
  std::mt19937 random(9);
  set_float_environment();
  Input input(256, random);
  input.row(2)[3] = kNan;
  constexpr int kMostRows = 20, kOutputs = 70;
  for (const Case& c : cases) {
    const Weight gate(c.gate, c.up ? c.width : 2 * c.width, 256, random), up(c.up.value_or(c.gate), c.width, 256, random);
    const Weight down(c.down, kOutputs, c.width, random);
    std::vector<float> expected;
    for (int r = 0; r < kMostRows; ++r) {
      std::vector<float> hidden;
      for (int i = 0; i < c.width; ++i)
        hidden.push_back(canonical::silu(expected_value(gate, i, input.row(r))) *
                         (c.up ? expected_value(up, i, input.row(r)) : expected_value(gate, c.width + i, input.row(r))));
      for (int o = 0; o < kOutputs; ++o) expected.push_back(expected_value(down, o, hidden.data()));
    }
    EXPECT_NE(expected[0], expected[1]);
    std::vector<MatrixSource> gate_up = {gate.source()};
    if (c.up) gate_up.push_back(up.source());
    const MatrixSource down_source = down.source();
    for (const cpu::KernelTable* kernels : tables())
      for (const int threads : {1, 2}) {
        ThreadPool pool(threads);
        cpu::Products products(*kernels, pool);
        const ExpertWeights w{.gate_up = cpu::pack_matrix(gate_up, pool), .down = cpu::pack_matrix({&down_source, 1}, pool)};
        for (const int rows : {1, 5, kMostRows}) {
          std::vector<float> out(static_cast<size_t>(rows) * kOutputs);
          products.gated_ffn(input.view(0, rows), w, View::of(out.data(), rows, kOutputs));
          for (size_t i = 0; i < out.size(); ++i)
            ASSERT_TRUE(same(out[i], expected[i])) << c.name << ", " << kernels->name << ", " << rows << " rows, value " << i;
        }
      }
  }
}

// silu over the whole range of floats equals canonical::silu on every instruction set, special values and tails included.
TEST(Linear, SiluIsCanonical) {
  set_float_environment();
  std::vector<float> x = {0.0f, -0.0f, kNan, 1e-40f, 88.9f, -88.9f, 87.3f, -87.4f, 3e38f, -3e38f,
                          std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()};
  for (uint32_t bits = 1; bits < 0xFFFF0000u; bits += 0x00012345u) x.push_back(std::bit_cast<float>(bits));
  const std::vector<float> one(x.size(), 1.0f);
  for (const cpu::KernelTable* kernels : tables()) {
    std::vector<float> y(x.size());
    kernels->linear.silu_product(x.data(), one.data(), static_cast<int64_t>(x.size()), y.data());
    for (size_t i = 0; i < x.size(); ++i)
      ASSERT_TRUE(same(y[i], canonical::silu(x[i]) * 1.0f)) << kernels->name << " silu(" << x[i] << ") = " << y[i];
  }
}

// exp(-t), seen through the weights of two experts, equals canonical::exp on every instruction set: over the range, and at every float
// around where it underflows.
TEST(Linear, ExponentialsAreCanonical) {
  set_float_environment();
  std::vector<float> ts = {0.0f, 1e-40f, 1e-8f, 200.0f, 3e38f};
  for (uint32_t bits = std::bit_cast<uint32_t>(1e-7f); bits < std::bit_cast<uint32_t>(120.0f); bits += 4001) ts.push_back(std::bit_cast<float>(bits));
  const uint32_t limit = std::bit_cast<uint32_t>(87.33654f);
  for (uint32_t bits = limit - 20000; bits < limit + 40000; ++bits) ts.push_back(std::bit_cast<float>(bits));
  int least = 0;
  for (const cpu::KernelTable* kernels : tables())
    for (const float t : ts) {
      const float logits[2] = {0.0f, -t};
      int32_t chosen[2];
      float weights[2];
      kernels->moe.route(logits, 2, 2, chosen, weights);
      const float e = canonical::exp(-t);
      ASSERT_TRUE(same(weights[1], e / (1.0f + e))) << kernels->name << " exp(" << -t << ")";
      least += weights[1] > 0 && weights[1] < 2e-38f;
    }
  EXPECT_GT(least, 0) << "values beside the smallest float were seen";
}

// Packing keeps close to the file's size: the figures that the bandwidth targets assume.
TEST(Packing, SizesStayCloseToTheFile) {
  struct Limit { QuantFormat format; double factor; };
  for (auto [format, factor] : {Limit{QuantFormat::kQ4_K, 1.04}, Limit{QuantFormat::kQ5_K, 1.03}, Limit{QuantFormat::kQ6_K, 1.001},
                                Limit{QuantFormat::kQ8_0, 1.001}, Limit{QuantFormat::kIQ4_XS, 1.02},
                                Limit{QuantFormat::kQ3_K, 1.04}, Limit{QuantFormat::kQ2_K, 1.2}, Limit{QuantFormat::kQ4_0, 1.001},
                                Limit{QuantFormat::kQ4_1, 1.001}, Limit{QuantFormat::kQ5_0, 1.001},
                                Limit{QuantFormat::kQ5_1, 1.001}, Limit{QuantFormat::kIQ4_NL, 1.001}}) {
    const cpu::PackedLayout layout = cpu::packed_layout(format);
    const double packed = static_cast<double>(layout.block_bytes()) / cpu::kGroupOutputs;
    EXPECT_LE(packed, factor * format_info(format).block_bytes) << format_info(format).name;
  }
}

}  // namespace
}  // namespace foretoken
