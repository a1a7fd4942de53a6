// Every operator of the CUDA backend against the scalar reference: bit for bit where the order is the reference's (all but the
// products and whole-row norms, which are held to stated bounds), and for all of them a row's bits alone and in company: row counts,
// trees and chains, chunks, K/V formats, page and span boundaries, poisoned padding, NaN in a neighbour. All of it once more with the
// plans of a smaller device. Without a device nothing runs.
#include <algorithm>
#include <cmath>

#include "cuda/plans.h"
#include "support/mirrored.h"
#include "support/ops_contract.h"

namespace foretoken::test {
namespace {

constexpr size_t kSmallShared = 99 * 1024;  // of a block of threads: consumer cards

const std::vector<Tested>& backends() {
  static const std::vector<Tested> all = [] {
    std::vector<Tested> list;
    for (const size_t most_shared : {size_t{0}, kSmallShared})
      if (Result<std::unique_ptr<Backend>> backend = make_cuda_backend({.most_shared = most_shared})) {
        const std::string name = (*backend)->info().detail + (most_shared > 0 ? ", plans of a smaller device" : "");
        list.push_back({name, std::make_unique<Mirrored>(*std::move(backend))});
        std::printf("%s\n", name.c_str());
      } else {
        std::printf("%s\n", backend.error().message.c_str());
      }
    return list;
  }();
  return all;
}

class CudaOps : public ::testing::Test {
 protected:
  void SetUp() override {
    if (backends().empty()) GTEST_SKIP() << "no device";
  }
};

Backend& tested_backend() { return *backends()[0].backend; }

// |actual - expected| over |expected|, as vectors.
double relative_error(View actual, View expected) {
  double difference = 0, size = 0;
  for (int64_t r = 0; r < expected.rows; ++r)
    for (int64_t c = 0; c < expected.cols; ++c) {
      const double e = expected.f32(r)[c], d = actual.f32(r)[c] - e;
      difference += d * d;
      size += e * e;
    }
  return std::sqrt(difference) / std::sqrt(size);
}

TEST_F(CudaOps, RowOperators) {
  Random random(1);
  for (int rows : kRowCounts) {
    for (int cols : {1, 7, 33, 256, 1040, 5120}) {
      const Matrix2 x = Matrix2::random(random, rows, cols), w = Matrix2::random(random, 1, cols, 0.3f, 1.0f);
      const Matrix2 y = Matrix2::random(random, rows, cols);
      Matrix2 norm(rows, cols), sum = y, out(rows, cols), in_place = x, added = y, scaled = y, alone(1, cols);
      reference().rms_norm(x.view(), w.view(), 1e-6f, norm.view());
      reference().add(x.view(), sum.view());
      Backend& backend = tested_backend();
      backend.rms_norm(x.view(), w.view(), 1e-6f, out.view());
      EXPECT_LT(relative_error(out.view(), norm.view()), 1e-6) << "rms_norm of " << cols;
      EXPECT_TRUE(out.padding_untouched());
      backend.rms_norm(in_place.view(), w.view(), 1e-6f, in_place.view());
      expect_same_bits(in_place, out, "rms_norm in place");
      backend.rms_norm(x.row(rows - 1), w.view(), 1e-6f, alone.view());
      expect_same_bits(alone.row(0), out.row(rows - 1), "rms_norm of a row alone");
      backend.add(x.view(), added.view());
      expect_same_bits(added, sum, "add");
      EXPECT_TRUE(added.padding_untouched());
      backend.scale(scaled.view(), 0.37f);
      Matrix2 expected = y;
      reference().scale(expected.view(), 0.37f);
      expect_same_bits(scaled, expected, "scale");
      std::vector<int> picked;
      for (int r = rows - 1; r >= 0; r -= 2) picked.push_back(r);
      Matrix2 gathered(static_cast<int64_t>(picked.size()), cols);
      backend.gather_rows(x.view(), picked, gathered.view());
      for (size_t i = 0; i < picked.size(); ++i)
        expect_same_bits(gathered.row(static_cast<int64_t>(i)), x.row(picked[i]), "gather_rows");
    }
  }
}

// A weight of every format: encoded where there is an encoder, else random bytes with small factors.
std::vector<std::byte> random_weight(Random& random, QuantFormat format, int64_t rows, int64_t cols) {
  std::vector<std::byte> bytes(static_cast<size_t>(rows) * row_bytes(format, cols));
  if (can_quantize(format)) {
    std::vector<float> values(static_cast<size_t>(rows * cols));
    for (float& v : values) v = random.value() * 0.1f;
    quantize(format, values, {}, bytes);
    return bytes;
  }
  for (std::byte& b : bytes) b = static_cast<std::byte>(random.below(256));
  const size_t block = static_cast<size_t>(format_info(format).block_bytes);
  std::vector<size_t> factors = {0};
  if (format == QuantFormat::kQ4_1 || format == QuantFormat::kQ5_1) factors = {0, 2};
  if (format == QuantFormat::kQ2_K) factors = {80, 82};
  if (format == QuantFormat::kQ3_K) factors = {108};
  for (size_t b = 0; b < bytes.size(); b += block)
    for (const size_t at : factors) {
      const F16 factor = to_f16(random.uniform() * 0.01f);
      std::memcpy(bytes.data() + b + at, &factor, 2);
    }
  return bytes;
}

std::vector<float> decoded(QuantFormat format, std::span<const std::byte> bytes, int64_t rows, int64_t cols) {
  std::vector<float> values(static_cast<size_t>(rows * cols));
  const size_t each = row_bytes(format, cols);
  for (size_t r = 0; r < static_cast<size_t>(rows); ++r)
    dequantize(format, bytes.subspan(r * each, each), std::span(values).subspan(r * static_cast<size_t>(cols), static_cast<size_t>(cols)));
  return values;
}

constexpr QuantFormat kAllFormats[] = {QuantFormat::kF32,  QuantFormat::kF16,  QuantFormat::kBF16, QuantFormat::kQ8_0,   QuantFormat::kQ4_0,
                                       QuantFormat::kQ4_1, QuantFormat::kQ5_0, QuantFormat::kQ5_1, QuantFormat::kIQ4_NL, QuantFormat::kQ2_K,
                                       QuantFormat::kQ3_K, QuantFormat::kQ4_K, QuantFormat::kQ5_K, QuantFormat::kQ6_K,   QuantFormat::kIQ4_XS};

TEST_F(CudaOps, EmbedsEveryFormat) {
  Random random(11);
  for (const QuantFormat format : kAllFormats) {
    const int64_t rows = 9, cols = 512;
    const std::vector<std::byte> bytes = random_weight(random, format, rows, cols);
    const std::vector<float> own(static_cast<size_t>(cols), 0.25f);
    MatrixSource table{"table", format, rows, cols, bytes, {}, {}};
    const RowInput inputs[] = {{.token = 3}, {.token = 0}, {.embedding = own.data()}, {.token = 8}};
    Matrix2 expected(4, cols), out(4, cols);
    reference().embed(inputs, table, expected.view());
    tested_backend().embed(inputs, table, out.view());
    expect_same_bits(out, expected, std::string(format_info(format).name));
    EXPECT_TRUE(out.padding_untouched());
  }
}

// Products of every format: within rounding of the sum in double of the same bf16 operands (fp32 ones for f32 and f16 weights), and
// bit-equal for a row alone, among others, and beside rows of NaN.
TEST_F(CudaOps, ProductsOfEveryFormat) {
  Random random(12);
  Backend& backend = tested_backend();
  const auto rounded = [](float v) { return to_float(to_bf16(v)); };
  for (const QuantFormat format : kAllFormats) {
    for (const auto& [outputs, cols] : {std::pair<int64_t, int64_t>(40, 256), std::pair<int64_t, int64_t>(129, 1280),
                                        std::pair<int64_t, int64_t>(16, 5120), std::pair<int64_t, int64_t>(7, 96)}) {
      if (cols % format_info(format).block_elements != 0) continue;
      const bool floats = format == QuantFormat::kF32 || format == QuantFormat::kF16;
      const bool integers = format == QuantFormat::kQ4_K || (format == QuantFormat::kQ6_K && cols % 256 == 0);  // codes are not rounded; sums of codes and of inputs partly cancel
      const std::vector<std::byte> bytes = random_weight(random, format, outputs, cols);
      const std::vector<float> w = decoded(format, bytes, outputs, cols);
      const MatrixSource source{"weight", format, outputs, cols, bytes, {}, {}};
      const MatrixPtr matrix = backend.pack({&source, 1});
      const int most = 130;
      const Matrix2 x = Matrix2::random(random, most, cols);
      Matrix2 whole(most, outputs), expected(most, outputs), smaller(most, outputs);
      backend.linear(x.view(), *matrix, whole.view());
      backends()[1].backend->linear(x.view(), *backends()[1].backend->pack({&source, 1}), smaller.view());
      EXPECT_TRUE(whole.padding_untouched());
      for (int r = 0; r < most; ++r)
        for (int64_t o = 0; o < outputs; ++o) {
          double sum = 0;
          for (int64_t k = 0; k < cols; ++k) {
            const float a = w[static_cast<size_t>(o * cols + k)], b = x.at(r, k);
            sum += floats ? double{a} * double{b} : double{integers ? a : rounded(a)} * double{rounded(b)};
          }
          expected.at(r, o) = static_cast<float>(sum);
        }
      const std::string what = std::string(format_info(format).name) + " " + std::to_string(outputs) + " x " + std::to_string(cols);
      EXPECT_LT(relative_error(whole.view(), expected.view()), integers ? 2e-5 : 2e-6) << what;
      expect_same_bits(smaller, whole, what + ", plans of a smaller device");
      for (int rows : {1, 2, 3, 4, 5, 8, 15, 16, 17, 33, 64, 65}) {
        Matrix2 part(rows, outputs);
        const int first = random.below(most - rows + 1);
        backend.linear(x.view().row_range(first, first + rows), *matrix, part.view());
        expect_same_bits(part.view(), whole.view().row_range(first, first + rows), what + ", rows " + std::to_string(rows));
      }
      Matrix2 poisoned = x, beside(17, outputs);
      for (int r : {1, 5, 16})
        for (int64_t c = 0; c < cols; ++c) poisoned.at(r, c) = r == 5 ? 3e38f : kNaN;
      backend.linear(poisoned.view().row_range(0, 17), *matrix, beside.view());
      for (int r : {0, 2, 3, 4, 6, 7, 8, 15}) expect_same_bits(beside.row(r), whole.row(r), what + " beside NaN, row " + std::to_string(r));
      for (int64_t o = 0; o < outputs; ++o) EXPECT_TRUE(std::isnan(beside.at(1, o))) << what;
      if (HasFailure()) return;
    }
  }
}

// Inputs of Q4_K are f16 by a power of two of their row and super-block: whatever their magnitudes, sums are within rounding of the sum in
// double of the bf16 inputs, relative to what was added up.
TEST_F(CudaOps, ProductsOfEveryMagnitude) {
  Random random(14);
  Backend& backend = tested_backend();
  const int64_t outputs = 64, cols = 768;
  const int rows = 40;
  for (const QuantFormat format : {QuantFormat::kQ4_K, QuantFormat::kQ6_K}) {
    const std::vector<std::byte> bytes = random_weight(random, format, outputs, cols);
    const std::vector<float> w = decoded(format, bytes, outputs, cols);
    const MatrixSource source{"weight", format, outputs, cols, bytes, {}, {}};
    const MatrixPtr matrix = backend.pack({&source, 1});
    Matrix2 x = Matrix2::random(random, rows, cols), out(rows, outputs), alone(1, outputs);
    for (int r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c) {
        const int64_t block = c / 256;
        float& v = x.at(r, c);
        if (r % 5 == 0) v *= 0x1p-90f;
        if (r % 5 == 1) v *= 0x1p60f;
        if (r % 5 == 2) v *= block == 1 ? 0x1p-20f : 1.0f;
        if (r % 5 == 3 && c % 256 != 17) v *= 0x1p-12f;         // one input outshines the others of its super-block
        if (r % 5 == 4 && (block == 0 || c % 256 != 3)) v = 0;  // nothing, or one input
        v = to_float(to_bf16(v));
      }
    backend.linear(x.view(), *matrix, out.view());
    for (int r = 0; r < rows; ++r) {
      for (int64_t o = 0; o < outputs; ++o) {
        // A small weight is the difference of a code and a minimum that are not.
        const auto of = w.begin() + static_cast<std::ptrdiff_t>(o * cols);
        double largest = 0, sum = 0, size = 0;
        for (int64_t k = 0; k < cols; ++k) largest = std::max(largest, std::fabs(double{of[k]}));
        for (int64_t k = 0; k < cols; ++k) sum += double{of[k]} * double{x.at(r, k)}, size += largest * std::fabs(double{x.at(r, k)});
        ASSERT_LE(std::fabs(double{out.at(r, o)} - sum), 1e-5 * size) << format_info(format).name << ", row " << r << ", output " << o;
      }
      backend.linear(x.row(r), *matrix, alone.view());
      expect_same_bits(alone.row(0), out.row(r), "row " + std::to_string(r));
    }
    EXPECT_TRUE(is_informative(out.view()));
    if (format != QuantFormat::kQ4_K) continue;
    // More than f16 can be told of: a row that fails, and no wrong one.
    Matrix2 beyond = Matrix2::random(random, 1, cols);
    for (int64_t c = 0; c < cols; ++c) beyond.at(0, c) = to_float(to_bf16((0.5f + std::fabs(beyond.at(0, c))) * 0x1p122f));
    backend.linear(beyond.view(), *matrix, alone.view());
    for (int64_t o = 0; o < outputs; ++o) EXPECT_FALSE(std::isfinite(alone.at(0, o))) << o;
  }
}

// Several parts in one matrix, reordered rows and columns.
TEST_F(CudaOps, PartsAndOrders) {
  Random random(13);
  Backend& backend = tested_backend();
  const int64_t cols = 256;
  const QuantFormat formats[] = {QuantFormat::kQ4_K, QuantFormat::kQ4_K, QuantFormat::kBF16, QuantFormat::kF32, QuantFormat::kQ6_K};
  const int64_t rows[] = {32, 24, 48, 5, 20};
  std::vector<std::vector<std::byte>> bytes;
  std::vector<MatrixSource> sources;
  for (size_t i = 0; i < 5; ++i) bytes.push_back(random_weight(random, formats[i], rows[i], cols));
  for (size_t i = 0; i < 5; ++i) {
    sources.push_back({"part", formats[i], rows[i], cols, bytes[i], {}, {}});
    if (i == 1 || i == 2)
      for (int32_t r = static_cast<int32_t>(rows[i]); r-- > 0;) sources.back().row_order.push_back(r);
    if (i == 2 || i == 3)
      for (int32_t c = 0; c < cols; ++c) sources.back().column_order.push_back((c * 37 + 5) % static_cast<int32_t>(cols));
  }
  const Matrix2 x = Matrix2::random(random, 9, cols);
  Matrix2 all(9, 129), expected(9, 129);
  backend.linear(x.view(), *backend.pack(sources), all.view());
  int64_t first = 0;
  for (size_t i = 0; i < 5; ++i) {
    // Each part alone, its orders applied to the inputs and outputs of a matrix in file order.
    MatrixSource plain = sources[i];
    plain.row_order.clear();
    plain.column_order.clear();
    Matrix2 moved = x, out(9, rows[i]);
    if (!sources[i].column_order.empty())
      for (int r = 0; r < 9; ++r)
        for (int64_t c = 0; c < cols; ++c) moved.at(r, sources[i].column_order[static_cast<size_t>(c)]) = x.at(r, c);
    backend.linear(moved.view(), *backend.pack({&plain, 1}), out.view());
    for (int r = 0; r < 9; ++r)
      for (int64_t o = 0; o < rows[i]; ++o) {
        const int64_t from = sources[i].row_order.empty() ? o : sources[i].row_order[static_cast<size_t>(o)];
        expected.at(r, first + o) = out.at(r, from);
      }
    first += rows[i];
  }
  EXPECT_LT(relative_error(all.view(), expected.view()), 1e-6);  // moved columns are summed in another order
}

TEST_F(CudaOps, GatedNorm) { expect_gated_norm(backends()); }
TEST_F(CudaOps, RotaryTable) { expect_rotary_table(backends()); }

TEST_F(CudaOps, DeltaNet) { expect_delta_net(backends()); }
// bf16 keys and values meet queries and probabilities of two bf16 in the matrix unit: 16 bits of each.
TEST_F(CudaOps, Attention) {
  expect_attention(backends(), {[](const AttentionShape& shape, KvFormat format) {
                                  return cuda::tiles_run(shape.query_heads / shape.kv_heads, shape.head_dim, format);
                                },
                                3e-5});
}
TEST_F(CudaOps, TreesEqualTokenByToken) { expect_trees_equal_token_by_token(backends()); }
TEST_F(CudaOps, RowsEqualRowsAlone) { expect_rows_equal_rows_alone(backends()); }
TEST_F(CudaOps, BadLaneFailsAlone) { expect_bad_lane_alone(backends()); }

// Routed sums: near the reference's, and bit-equal for a row alone and beside a NaN row.
TEST_F(CudaOps, Moe) {
  for (const auto& [format, shape] : {std::pair(QuantFormat::kF32, MoeShape{37, 3}), std::pair(QuantFormat::kF32, MoeShape{300, 32}),
                                      std::pair(QuantFormat::kBF16, MoeShape{37, 3}), std::pair(QuantFormat::kQ8_0, MoeShape{37, 3})}) {
    const int hidden = 96, width = 32;
    Random random(9);
    std::vector<Weight> weights;
    weights.reserve(1024);
    auto add = [&](QuantFormat f, int64_t rows, int64_t cols) -> const Weight& {
      weights.emplace_back(random, f, rows, cols);
      return weights.back();
    };
    Weight& router = const_cast<Weight&>(add(QuantFormat::kF32, shape.experts, hidden));
    std::memcpy(router.bytes.data() + 5 * hidden * 4, router.bytes.data() + 2 * hidden * 4, hidden * 4);  // experts 2, 5 and 34 tie
    std::memcpy(router.bytes.data() + 34 * hidden * 4, router.bytes.data() + 2 * hidden * 4, hidden * 4);
    for (int e = 0; e <= shape.experts; ++e) {
      add(format, 2 * width, hidden);
      add(format, hidden, width);
    }
    add(QuantFormat::kF32, 1, hidden);
    auto pack = [&](Backend& backend) {
      MoeWeights w;
      size_t next = 0;
      auto one = [&] { return backend.pack({&weights[next++].source, 1}); };
      w.router = one();
      for (int e = 0; e <= shape.experts; ++e) {
        ExpertWeights expert;
        expert.gate_up = one();
        expert.down = one();
        if (e < shape.experts) w.experts.push_back(std::move(expert));
        else w.shared = std::move(expert);
      }
      w.shared_gate = one();
      return w;
    };
    const MoeWeights reference_weights = pack(reference()), packed = pack(tested_backend());
    for (int rows : kRowCounts) {
      Matrix2 x = Matrix2::random(random, rows, hidden), expected(rows, hidden), out(rows, hidden), alone(1, hidden);
      reference().moe(x.view(), shape, reference_weights, expected.view());
      tested_backend().moe(x.view(), shape, packed, out.view());
      EXPECT_LT(relative_error(out.view(), expected.view()), format == QuantFormat::kF32 ? 1e-5 : 3e-2);
      EXPECT_TRUE(out.padding_untouched());
      for (int r = 0; r < rows; ++r) {
        tested_backend().moe(x.row(r), shape, packed, alone.view());
        expect_same_bits(alone.row(0), out.row(r), "moe row alone");
      }
    }
    Matrix2 x = Matrix2::random(random, 3, hidden), clean(3, hidden), bad(3, hidden);
    tested_backend().moe(x.view(), shape, packed, clean.view());
    x.at(1, 3) = kNaN;
    tested_backend().moe(x.view(), shape, packed, bad.view());
    expect_same_bits(bad.row(0), clean.row(0), "row before a NaN row");
    expect_same_bits(bad.row(2), clean.row(2), "row behind a NaN row");
    for (int c = 0; c < hidden; ++c) EXPECT_TRUE(std::isnan(bad.at(1, c)));
  }
}

}  // namespace
}  // namespace foretoken::test
