// Every operator of the CUDA backend against the scalar reference: bit for bit where the order is the reference's (all but the
// products and whole-row norms, which are held to stated bounds), and for all of them a row's bits alone and in company: row counts,
// trees and chains, chunks, K/V formats, page and span boundaries, poisoned padding, NaN in a neighbour. Without a device nothing runs.
#include <algorithm>
#include <cmath>

#include "support/mirrored.h"
#include "support/ops_rows.h"

namespace foretoken::test {
namespace {

constexpr int kRowCounts[] = {1, 2, 3, 4, 5, 8, 15, 16, 17, 33};

struct Tested {
  std::string name;
  std::unique_ptr<Backend> backend;
};

const std::vector<Tested>& backends() {
  static const std::vector<Tested> all = [] {
    std::vector<Tested> list;
    if (Result<std::unique_ptr<Backend>> backend = make_cuda_backend()) {
      const std::string name = (*backend)->info().detail;
      list.push_back({name, std::make_unique<Mirrored>(*std::move(backend))});
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

Backend& reference() {
  static const std::unique_ptr<Backend> backend = make_reference_backend();
  return *backend;
}

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
      const bool integers = format == QuantFormat::kQ4_K;  // codes are not rounded; sums of codes and of inputs partly cancel
      const std::vector<std::byte> bytes = random_weight(random, format, outputs, cols);
      std::vector<float> w(static_cast<size_t>(outputs * cols));
      for (int64_t o = 0; o < outputs; ++o)
        dequantize(format, std::span(bytes).subspan(static_cast<size_t>(o) * row_bytes(format, cols), row_bytes(format, cols)),
                   std::span(w).subspan(static_cast<size_t>(o * cols), static_cast<size_t>(cols)));
      const MatrixSource source{"weight", format, outputs, cols, bytes, {}, {}};
      const MatrixPtr matrix = backend.pack({&source, 1});
      const int most = 130;
      const Matrix2 x = Matrix2::random(random, most, cols);
      Matrix2 whole(most, outputs), expected(most, outputs);
      backend.linear(x.view(), *matrix, whole.view());
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

TEST_F(CudaOps, GatedNorm) {
  Random random(2);
  for (int rows : kRowCounts) {
    for (int dim : {6, 16, 40, 128}) {
      const int heads = 3;
      const Matrix2 x = Matrix2::random(random, rows, heads * dim),
                    gate = Matrix2::random(random, rows, heads * dim, 4.0f);
      const Matrix2 w = Matrix2::random(random, 1, dim, 0.3f, 1.0f);
      for (bool use_sigmoid : {false, true}) {
        Matrix2 expected(rows, heads * dim);
        reference().gated_norm(x.view(), gate.view(), w.view(), 1e-6f, use_sigmoid, expected.view());
        ASSERT_TRUE(is_informative(expected.view()));
        for (const Tested& tested : backends()) {
          Matrix2 out = x;
          tested.backend->gated_norm(out.view(), gate.view(), w.view(), 1e-6f, use_sigmoid, out.view());
          expect_same_bits(out, expected, "gated_norm on " + tested.name);
          EXPECT_TRUE(out.padding_untouched());
        }
      }
    }
  }
}

TEST_F(CudaOps, RotaryTable) {
  Random random(3);
  const RotarySpec spec = test_rotary(44);
  std::vector<RowInput> inputs(33);
  for (RowInput& input : inputs)
    for (int32_t& position : input.position) position = random.below(1 << 20);
  Matrix2 expected(33, 44);
  reference().rotary_table(inputs, spec, expected.view());
  for (const Tested& tested : backends()) {
    Matrix2 out(33, 44);
    tested.backend->rotary_table(inputs, spec, out.view());
    expect_same_bits(out, expected, "rotary_table on " + tested.name);
  }
}

// Lanes of a batch: a chain that leaves tape, a prompt chunk, and a tree behind settled rows, dealt from `rows`.
std::vector<LanePlan> mixed_lanes(Random& random, int rows, int64_t prefix) {
  if (rows == 1) return {{1, prefix, random.below(2), {}}};
  if (rows < 4) return {random_tree(random, rows, prefix, random.below(2))};
  const int a = 1 + rows / 4, b = 1 + rows / 3;
  std::vector<LanePlan> plans = {{a, prefix, random.below(a + 1), {}}, {b, prefix / 2, b, {}}};
  if (rows - a - b > 0)
    plans.push_back(random_tree(random, rows - a - b, prefix + 1, random.below(3) % (rows - a - b + 1)));
  return plans;
}

// Convolution and delta rule: outputs, state, tail and tape of every lane, then of a commit.
TEST_F(CudaOps, DeltaNet) {
  Random random(4);
  const DeltaShape shapes[] = {{2, 4, 8, 6, 4, false},     {2, 4, 16, 80, 4, true},   {1, 3, 24, 16, 2, false},
                               {2, 2, 128, 128, 4, false}, {1, 2, 33, 100, 1, false}, {3, 18, 16, 16, 5, false}};
  for (const DeltaShape& shape : shapes) {
    for (int rows : kRowCounts) {
      for (int variant = 0; variant < 3; ++variant) {
        std::vector<LanePlan> plans;
        if (variant == 0) plans = mixed_lanes(random, rows, 10);
        else if (variant == 1) plans = {random_tree(random, rows, 3, 0)};
        else plans = {{rows, 3, rows, {}}};
        const std::vector<LaneRows> lanes = lane_rows(plans);
        const DeltaWorld world(shape, rows, random.bits());
        const uint64_t seed = random.bits();
        std::vector<DeltaLane> expected;
        for (const LanePlan& plan : plans) expected.emplace_back(shape, plan.rows, seed + expected.size());
        const std::vector<DeltaLane> start = expected;
        const Matrix2 out = world.forward(reference(), lanes, memories(expected));
        ASSERT_TRUE(is_informative(out.view()));
        std::vector<DeltaLane> committed = expected;
        std::vector<std::vector<int>> paths(lanes.size());
        for (size_t l = 0; l < lanes.size(); ++l) {
          path_to(lanes[l], lanes[l].rows - 1, paths[l]);
          reference().commit_delta(shape, committed[l].memory(), lanes[l].settled, paths[l]);
        }
        for (const Tested& tested : backends()) {
          std::vector<DeltaLane> actual = start;
          const Matrix2 result = world.forward(*tested.backend, lanes, memories(actual));
          const std::string what =
              "delta, " + std::to_string(rows) + " rows, variant " + std::to_string(variant) + " on " + tested.name;
          expect_same_bits(result, out, what);
          for (size_t l = 0; l < lanes.size(); ++l) {
            expect_same_lane(actual[l], expected[l], what + ", lane " + std::to_string(l));
            tested.backend->commit_delta(shape, actual[l].memory(), lanes[l].settled, paths[l]);
            expect_same_lane(actual[l], committed[l], what + ", committed lane " + std::to_string(l));
          }
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

struct AttentionCase {
  AttentionShape shape;
  std::vector<int64_t> prefixes;
  std::vector<int> rows;
};

// Attention and its inputs: outputs, and every byte of the pages, for every format, from empty prefixes to several
// spans.
TEST_F(CudaOps, Attention) {
  Random random(5);
  const std::vector<int> all(std::begin(kRowCounts), std::end(kRowCounts));
  const AttentionCase cases[] = {{{4, 2, 16, 1e-6f}, {0, 1, 30, 32, 511, 513, 1100}, all},
                                 {{5, 1, 24, 1e-6f}, {0, 40, 505}, {1, 3, 8, 17}},
                                 {{3, 3, 64, 1e-5f}, {17, 480}, {1, 5, 33}},
                                 {{40, 1, 20, 1e-6f}, {600}, {1, 2}},
                                 {{6, 1, 256, 1e-6f}, {33}, {1, 8, 16}},
                                 {{7, 1, 48, 1e-6f}, {40}, {3}},
                                 {{6, 2, 128, 1e-6f}, {100}, {1, 4, 16}},
                                 {{8, 2, 256, 1e-6f}, {0, 530}, {1, 8}}};
  for (const AttentionCase& test : cases) {
    for (KvFormat format : {KvFormat::kF32, KvFormat::kBF16, KvFormat::kInt8}) {
      const KvLayout layout{2, test.shape.kv_heads, test.shape.head_dim, format};
      for (int64_t prefix : test.prefixes) {
        for (int rows : test.rows) {
          const std::vector<LanePlan> plans = mixed_lanes(random, rows, prefix);
          const std::vector<LaneRows> lanes = lane_rows(plans);
          const AttentionWorld world(test.shape, layout, rows, random.bits());
          std::vector<Pages> start;
          for (const LanePlan& plan : plans) {
            start.emplace_back(layout, plan.prefix + plan.rows + 33);
            fill_prefix(reference(), test.shape, layout, 1, start.back(), plan.prefix, random.bits());
          }
          const std::vector<Pages> expected_pages = start;
          const Matrix2 expected = world.forward(reference(), lanes, tables(expected_pages), 1);
          ASSERT_TRUE(is_informative(expected.view()));
          for (const Tested& tested : backends()) {
            const std::vector<Pages> pages = start;
            const Matrix2 out = world.forward(*tested.backend, lanes, tables(pages), 1);
            const std::string what = "attention, dim " + std::to_string(test.shape.head_dim) + ", format " +
                                     std::to_string(int(format)) + ", prefix " + std::to_string(prefix) + ", " +
                                     std::to_string(rows) + " rows on " + tested.name;
            expect_same_bits(out, expected, what);
            for (size_t l = 0; l < pages.size(); ++l) EXPECT_TRUE(pages[l].same_bytes(expected_pages[l])) << what;
            if (::testing::Test::HasFailure()) return;
          }
        }
      }
    }
  }
}

// A row's bits are those of its own path alone, on each backend by itself; commit moves what it should and nothing
// else.
TEST_F(CudaOps, TreesEqualTokenByToken) {
  Random random(6);
  for (const Tested& tested : backends()) {
    SCOPED_TRACE(tested.name);
    for (int settled : {0, 1, 2}) {
      expect_delta_paths(*tested.backend, {2, 4, 24, 40, 4, false}, random_tree(random, 8, 3, settled), random.bits());
      for (KvFormat format : {KvFormat::kF32, KvFormat::kBF16, KvFormat::kInt8})
        expect_attention_paths(*tested.backend, {4, 2, 32, 1e-6f}, format, random_tree(random, 8, 507, settled),
                               random.bits());
    }
  }
}

// Rows of a chain in one pass, in chunks, and one by one: the same bits and the same state, for every row count.
TEST_F(CudaOps, RowsEqualRowsAlone) {
  Random random(7);
  const DeltaShape shape{2, 4, 16, 32, 4, false};
  const AttentionShape attention{4, 2, 32, 1e-6f};
  const KvLayout layout{1, 2, 32, KvFormat::kBF16};
  const DeltaWorld delta_world(shape, 33, 70);
  const AttentionWorld attention_world(attention, layout, 33, 71);
  for (const Tested& tested : backends()) {
    Backend& backend = *tested.backend;
    Pages start(layout, 100);
    fill_prefix(backend, attention, layout, 0, start, 40, 72);
    for (int rows : kRowCounts) {
      DeltaLane whole(shape, rows, 73), single(shape, 1, 73);
      const Pages pages = start, single_pages = start;
      const Matrix2 d = delta_world.forward(backend, {LaneRows{0, rows, 40, rows, {}}}, {whole.memory()});
      const Matrix2 a = attention_world.forward(backend, {LaneRows{0, rows, 40, 0, {}}}, {pages.table()});
      for (int i = 0; i < rows; ++i) {
        expect_same_bits(delta_world.forward(backend, {LaneRows{0, 1, 40 + i, 1, {}}}, {single.memory()}, i).row(0),
                         d.row(i), "delta row alone on " + tested.name);
        expect_same_bits(
            attention_world.forward(backend, {LaneRows{0, 1, 40 + i, 0, {}}}, {single_pages.table()}, 0, i).row(0),
            a.row(i), "attention row alone on " + tested.name);
      }
      expect_same_floats(single.state, whole.state, "state on " + tested.name);
      expect_same_floats(single.tail, whole.tail, "tail on " + tested.name);
      EXPECT_TRUE(pages.same_bytes(single_pages));
    }
  }
}

// A lane full of NaN and infinities leaves the bits of the lanes beside it alone, and says so in its own rows.
TEST_F(CudaOps, BadLaneFailsAlone) {
  const DeltaShape shape{2, 4, 16, 32, 4, false};
  const AttentionShape attention{4, 2, 32, 1e-6f};
  const KvLayout layout{1, 2, 32, KvFormat::kInt8};
  const int rows = 9;
  const std::vector<LanePlan> plans = {{3, 40, 1, {}}, {3, 40, 1, {}}, {3, 40, 1, {-1, 0, 0}}};
  const std::vector<LaneRows> lanes = lane_rows(plans);
  for (const Tested& tested : backends()) {
    Matrix2 out[2][2];
    for (int bad : {0, 1}) {
      DeltaWorld delta(shape, rows, 80);
      AttentionWorld world(attention, layout, rows, 81);
      if (bad)
        for (int64_t c = 0; c < world.packed.cols(); ++c)
          world.packed.at(4, c) = c % 2 ? kNaN : std::numeric_limits<float>::infinity();
      if (bad)
        for (int64_t c = 0; c < delta.packed.cols(); ++c) delta.packed.at(4, c) = kNaN;
      std::vector<DeltaLane> memory;
      std::vector<Pages> pages;
      for (size_t l = 0; l < plans.size(); ++l) {
        memory.emplace_back(shape, 3, 82 + l);
        pages.emplace_back(layout, 80);
        fill_prefix(*tested.backend, attention, layout, 0, pages.back(), 40, 83 + l);
      }
      out[bad][0] = delta.forward(*tested.backend, lanes, memories(memory));
      out[bad][1] = world.forward(*tested.backend, lanes, tables(pages));
    }
    for (int op : {0, 1}) {
      for (int row = 0; row < rows; ++row) {
        if (row == 4 || row == 5) continue;  // the bad row and the row behind it
        expect_same_bits(out[1][op].row(row), out[0][op].row(row), "row " + std::to_string(row) + " on " + tested.name);
      }
      for (int64_t c = 0; c < out[1][op].cols(); ++c) {
        EXPECT_TRUE(std::isnan(out[1][op].at(4, c)));
        EXPECT_TRUE(std::isnan(out[1][op].at(5, c)));
      }
      EXPECT_TRUE(is_informative(out[0][op].view()));
    }
  }
}

// Routed sums: near the reference's, and bit-equal for a row alone and beside a NaN row.
TEST_F(CudaOps, Moe) {
  for (QuantFormat format : {QuantFormat::kF32, QuantFormat::kBF16, QuantFormat::kQ8_0}) {
    const MoeShape shape{37, 3};
    const int hidden = 96, width = 32;
    Random random(9);
    std::vector<Weight> weights;
    weights.reserve(128);
    auto add = [&](QuantFormat f, int64_t rows, int64_t cols) -> const Weight& {
      weights.emplace_back(random, f, rows, cols);
      return weights.back();
    };
    Weight& router = const_cast<Weight&>(add(QuantFormat::kF32, shape.experts, hidden));
    std::memcpy(router.bytes.data() + 5 * hidden * 4, router.bytes.data() + 2 * hidden * 4, hidden * 4);  // experts 2 and 5 tie
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
