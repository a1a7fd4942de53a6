// The scalar reference against formulas written independently in double precision: no operation order in common, so the
// tolerances are those of fp32 rounding.
#include <algorithm>
#include <cmath>
#include <map>

#include "support/finite_contract.h"

namespace foretoken::test {
namespace {

std::unique_ptr<Backend> reference() { return make_reference_backend(); }

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double silu(double x) { return x * sigmoid(x); }

void expect_near(double actual, double expected, double relative, double absolute, const std::string& what) {
  EXPECT_LE(std::abs(actual - expected), relative * std::abs(expected) + absolute)
      << what << ": " << actual << " for " << expected;
}

// RMS normalisation and the gated variant against the textbook formula, in place as well.
TEST(Reference, NormsMatchDouble) {
  Random random(1);
  for (int n : {1, 16, 100, 256}) {
    const Matrix2 x = Matrix2::random(random, 3, n), w = Matrix2::random(random, 1, n, 0.3f, 1.0f);
    Matrix2 out(3, n);
    reference()->rms_norm(x.view(), w.view(), 1e-6f, out.view());
    for (int r = 0; r < 3; ++r) {
      double ss = 0;
      for (int c = 0; c < n; ++c) ss += double{x.at(r, c)} * x.at(r, c);
      for (int c = 0; c < n; ++c)
        expect_near(out.at(r, c), x.at(r, c) / std::sqrt(ss / n + 1e-6) * w.at(0, c), 1e-6, 1e-30, "rms_norm");
    }
    EXPECT_TRUE(out.padding_untouched());
    Matrix2 in_place = x;
    reference()->rms_norm(in_place.view(), w.view(), 1e-6f, in_place.view());
    expect_same_bits(in_place, out, "rms_norm in place");
  }
  const int heads = 3, dim = 24;
  const Matrix2 x = Matrix2::random(random, 2, heads * dim), gate = Matrix2::random(random, 2, heads * dim, 3.0f);
  const Matrix2 w = Matrix2::random(random, 1, dim, 0.3f, 1.0f);
  for (bool use_sigmoid : {false, true}) {
    Matrix2 out(2, heads * dim);
    reference()->gated_norm(x.view(), gate.view(), w.view(), 1e-6f, use_sigmoid, out.view());
    for (int r = 0; r < 2; ++r) {
      for (int h = 0; h < heads; ++h) {
        double ss = 0;
        for (int c = 0; c < dim; ++c) ss += double{x.at(r, h * dim + c)} * x.at(r, h * dim + c);
        for (int c = 0; c < dim; ++c) {
          const double g = gate.at(r, h * dim + c);
          expect_near(
              out.at(r, h * dim + c),
              x.at(r, h * dim + c) / std::sqrt(ss / dim + 1e-6) * w.at(0, c) * (use_sigmoid ? sigmoid(g) : silu(g)),
              2e-6, 1e-30, "gated_norm");
        }
      }
    }
  }
}

// Products of float and of block-quantised weights, with parts of different formats, reordered rows and columns.
TEST(Reference, LinearMatchesDouble) {
  Random random(2);
  const int64_t cols = 96;
  Weight a(random, QuantFormat::kF32, 5, cols), b(random, QuantFormat::kBF16, 7, cols),
      c(random, QuantFormat::kQ8_0, 6, cols);
  b.source.row_order = {6, 0, 3};
  a.source.column_order.resize(cols);
  for (int i = 0; i < cols; ++i) a.source.column_order[static_cast<size_t>(i)] = static_cast<int32_t>((i * 5) % cols);
  const std::vector<MatrixSource> parts = {a.source, b.source, c.source};
  const MatrixPtr w = reference()->pack(parts);
  ASSERT_EQ(w->rows(), 5 + 3 + 6);
  const Matrix2 x = Matrix2::random(random, 4, cols);
  Matrix2 out(4, w->rows());
  reference()->linear(x.view(), *w, out.view());
  auto decode = [&](const MatrixSource& s, int64_t row) {
    std::vector<float> values(cols);
    const size_t stride = row_bytes(s.format, cols);
    dequantize(s.format, s.data.subspan(static_cast<size_t>(row) * stride, stride), values);
    return values;
  };
  for (int r = 0; r < 4; ++r) {
    for (int64_t o = 0; o < w->rows(); ++o) {
      const bool quantised = o >= 8;
      const std::vector<float> row = o < 5   ? decode(a.source, o)
                                     : o < 8 ? decode(b.source, b.source.row_order[size_t(o - 5)])
                                             : decode(c.source, o - 8);
      double sum = 0, magnitude = 0;
      for (int k = 0; k < cols; ++k) {
        const float weight =
            o < 5 ? row[static_cast<size_t>(a.source.column_order[static_cast<size_t>(k)])] : row[size_t(k)];
        sum += double{weight} * x.at(r, k);
        magnitude += std::abs(double{weight});
      }
      float amax = 0;
      for (int k = 0; k < cols; ++k) amax = std::max(amax, std::abs(x.at(r, k)));
      // A quantised activation is off by half a step of its block at most.
      expect_near(out.at(r, o), sum, 1e-5, quantised ? magnitude * amax / 254 * 1.01 + 1e-5 : 1e-5, "linear");
    }
  }
  EXPECT_TRUE(is_informative(out.view()));
}

TEST(Reference, WhatIsNotFiniteIsFound) { expect_all_finite(*reference(), "reference"); }

// A non-finite activation makes that row NaN in every output, and no other row.
TEST(Reference, NonFiniteActivationFailsItsRowAlone) {
  Random random(3);
  const Weight q(random, QuantFormat::kQ8_0, 5, 64);
  const MatrixPtr w = reference()->pack({&q.source, 1});
  Matrix2 x = Matrix2::random(random, 3, 64);
  Matrix2 clean(3, 5), out(3, 5);
  reference()->linear(x.view(), *w, clean.view());
  x.at(1, 40) = std::numeric_limits<float>::infinity();
  reference()->linear(x.view(), *w, out.view());
  expect_same_bits(out.row(0), clean.row(0), "row before");
  expect_same_bits(out.row(2), clean.row(2), "row after");
  for (int o = 0; o < 5; ++o) EXPECT_TRUE(std::isnan(out.at(1, o)));
}

TEST(Reference, EmbedDecodesTheTableOrCopiesTheRow) {
  Random random(4);
  const Weight table(random, QuantFormat::kQ8_0, 9, 64);
  const Matrix2 own = Matrix2::random(random, 1, 64);
  std::vector<RowInput> inputs(3);
  inputs[0].token = 8;
  inputs[1].embedding = own.view().f32();
  inputs[2].token = 0;
  Matrix2 out(3, 64);
  reference()->embed(inputs, table.source, out.view());
  std::vector<float> expected(64);
  dequantize(QuantFormat::kQ8_0, table.source.data.subspan(8 * 68, 68), expected);
  expect_same_bits(out.row(0), View::of(expected.data(), 1, 64), "token 8");
  expect_same_bits(out.row(1), own.view(), "own embedding");
  Matrix2 gathered(2, 64);
  const std::vector<int> rows = {2, 0};
  reference()->gather_rows(out.view(), rows, gathered.view());
  expect_same_bits(gathered.row(1), out.row(0), "gather");
  expect_same_bits(gathered.row(0), out.row(2), "gather");
  Matrix2 sum = gathered;
  reference()->add(gathered.view(), sum.view());
  for (int c = 0; c < 64; ++c) EXPECT_EQ(sum.at(0, c), 2 * gathered.at(0, c));
}

struct Moe {
  MoeShape shape{6, 3};
  int hidden = 32, width = 16;
  std::vector<Weight> weights;
  MoeWeights packed;
};

Moe make_moe(Backend& backend, uint64_t seed) {
  Random random(seed);
  Moe moe;
  auto add = [&](int64_t rows, int64_t cols) {
    moe.weights.emplace_back(random, QuantFormat::kF32, rows, cols);
    return backend.pack({&moe.weights.back().source, 1});
  };
  moe.packed.router = add(moe.shape.experts, moe.hidden);
  for (int e = 0; e < moe.shape.experts; ++e) {
    ExpertWeights expert;
    expert.gate_up = add(2 * moe.width, moe.hidden);
    expert.down = add(moe.hidden, moe.width);
    moe.packed.experts.push_back(std::move(expert));
  }
  moe.packed.shared.gate_up = add(2 * moe.width, moe.hidden);
  moe.packed.shared.down = add(moe.hidden, moe.width);
  moe.packed.shared_gate = add(1, moe.hidden);
  return moe;
}

// The routed sum in double, with a softmax over all experts renormalised over the chosen: another formula than the
// operator's.
TEST(Reference, MoeMatchesDouble) {
  const std::unique_ptr<Backend> backend = reference();
  const Moe moe = make_moe(*backend, 5);
  Random random(6);
  const Matrix2 x = Matrix2::random(random, 5, moe.hidden);
  Matrix2 out(5, moe.hidden);
  backend->moe(x.view(), moe.shape, moe.packed, out.view());
  EXPECT_TRUE(is_informative(out.view()));
  auto product = [](const Weight& w, const std::vector<double>& v) {
    std::vector<double> y(static_cast<size_t>(w.source.rows));
    for (int64_t o = 0; o < w.source.rows; ++o)
      for (int64_t k = 0; k < w.source.cols; ++k) {
        float value;
        std::memcpy(&value, w.bytes.data() + 4 * (o * w.source.cols + k), 4);
        y[static_cast<size_t>(o)] += value * v[static_cast<size_t>(k)];
      }
    return y;
  };
  auto ffn = [&](size_t gate_up, const std::vector<double>& v) {
    const std::vector<double> both = product(moe.weights[gate_up], v);
    std::vector<double> h(static_cast<size_t>(moe.width));
    for (size_t i = 0; i < h.size(); ++i) h[i] = silu(both[i]) * both[i + h.size()];
    return product(moe.weights[gate_up + 1], h);
  };
  for (int r = 0; r < 5; ++r) {
    std::vector<double> v(static_cast<size_t>(moe.hidden));
    for (int c = 0; c < moe.hidden; ++c) v[static_cast<size_t>(c)] = x.at(r, c);
    const std::vector<double> logits = product(moe.weights[0], v);
    std::vector<int> order(static_cast<size_t>(moe.shape.experts));
    for (size_t e = 0; e < order.size(); ++e) order[e] = static_cast<int>(e);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[size_t(a)] > logits[size_t(b)]; });
    double total = 0, chosen = 0;
    for (double l : logits) total += std::exp(l);
    for (int j = 0; j < moe.shape.top_k; ++j) chosen += std::exp(logits[size_t(order[size_t(j)])]) / total;
    std::vector<double> y(v.size());
    for (int j = 0; j < moe.shape.top_k; ++j) {
      const size_t e = static_cast<size_t>(order[static_cast<size_t>(j)]);
      const std::vector<double> f = ffn(1 + 2 * e, v);
      for (size_t c = 0; c < y.size(); ++c) y[c] += std::exp(logits[e]) / total / chosen * f[c];
    }
    const size_t shared = 1 + 2 * static_cast<size_t>(moe.shape.experts);
    const std::vector<double> s = ffn(shared, v);
    const double gate = sigmoid(product(moe.weights[shared + 2], v)[0]);
    for (size_t c = 0; c < y.size(); ++c)
      expect_near(out.at(r, static_cast<int64_t>(c)), y[c] + gate * s[c], 1e-5, 2e-4, "moe");
  }
}

// Equal router logits are taken by ascending expert id: with identical rows in the router every choice is the first
// experts.
TEST(Reference, MoeTiesGoToTheLowerExpert) {
  const std::unique_ptr<Backend> backend = reference();
  Moe moe = make_moe(*backend, 7);
  Random random(8);
  Weight router(random, QuantFormat::kF32, moe.shape.experts, moe.hidden);
  for (int e = 1; e < moe.shape.experts; ++e)
    std::memcpy(router.bytes.data() + e * moe.hidden * 4, router.bytes.data(), static_cast<size_t>(moe.hidden) * 4);
  moe.packed.router = backend->pack({&router.source, 1});
  const Matrix2 x = Matrix2::random(random, 1, moe.hidden);
  Matrix2 out(1, moe.hidden), y(1, moe.hidden);
  backend->moe(x.view(), moe.shape, moe.packed, out.view());
  std::vector<double> expected(static_cast<size_t>(moe.hidden));
  for (int e = 0; e < moe.shape.top_k; ++e) {
    backend->gated_ffn(x.view(), moe.packed.experts[static_cast<size_t>(e)], y.view());
    for (int c = 0; c < moe.hidden; ++c) expected[static_cast<size_t>(c)] += y.at(0, c) / double(moe.shape.top_k);
  }
  Matrix2 gate(1, 1);
  backend->linear(x.view(), *moe.packed.shared_gate, gate.view());
  backend->gated_ffn(x.view(), moe.packed.shared, y.view());
  for (int c = 0; c < moe.hidden; ++c)
    expect_near(out.at(0, c), expected[static_cast<size_t>(c)] + sigmoid(gate.at(0, 0)) * y.at(0, c), 1e-5, 1e-4,
                "ties");
}

// cos and sin of every pair by its own position axis, correct to fp32 at a million positions.
TEST(Reference, RotaryTableMatchesLibrary) {
  const RotarySpec spec = test_rotary(12);
  std::vector<RowInput> inputs(3);
  inputs[1].position = {7, 1000, 3};
  inputs[2].position = {1048575, 262144, 999983};
  Matrix2 table(3, 12);
  reference()->rotary_table(inputs, spec, table.view());
  for (int r = 0; r < 3; ++r) {
    for (int j = 0; j < 6; ++j) {
      const long double angle = static_cast<double>(inputs[size_t(r)].position[spec.axis[size_t(j)]]) *
                                static_cast<double>(spec.inverse_frequency[size_t(j)]);
      EXPECT_NEAR(table.at(r, j), static_cast<double>(std::cos(angle)) * 1.25, 2e-7);
      EXPECT_NEAR(table.at(r, 6 + j), static_cast<double>(std::sin(angle)) * 1.25, 2e-7);
    }
  }
}

// Query, key and value rows after norm, rotation and rounding, read back from the pages of every storage format.
TEST(Reference, AttentionInputsMatchDouble) {
  const AttentionShape shape{4, 2, 16, 1e-6f};
  const int rotary_dim = 8;
  Random random(9);
  const Matrix2 packed = Matrix2::random(random, 3, shape.packed_columns());
  const Matrix2 qw = Matrix2::random(random, 1, 16, 0.3f, 1.0f), kw = Matrix2::random(random, 1, 16, 0.3f, 1.0f);
  const Matrix2 rotary = Matrix2::random(random, 3, rotary_dim);
  auto expected_head = [&](int64_t row, int64_t column, const Matrix2& w) {
    std::vector<double> y(16);
    double ss = 0;
    for (int d = 0; d < 16; ++d) ss += double{packed.at(row, column + d)} * packed.at(row, column + d);
    for (int d = 0; d < 16; ++d) y[size_t(d)] = packed.at(row, column + d) / std::sqrt(ss / 16 + 1e-6) * w.at(0, d);
    for (int j = 0; j < 4; ++j) {
      const double a = y[size_t(j)], b = y[size_t(j + 4)], c = rotary.at(row, j), s = rotary.at(row, 4 + j);
      y[size_t(j)] = a * c - b * s;
      y[size_t(j + 4)] = b * c + a * s;
    }
    return y;
  };
  for (KvFormat format : {KvFormat::kF32, KvFormat::kBF16, KvFormat::kInt8}) {
    const KvLayout layout{2, 2, 16, format};
    const Pages pages(layout, 64);
    const PageTable table = pages.table();
    Matrix2 queries(3, 64);
    const LaneRows lane{0, 3, 31, 0, {}};  // rows on both sides of a page boundary
    reference()->attention_inputs(packed.view(), qw.view(), kw.view(), rotary.view(), shape, Batch{{}, {&lane, 1}, {}},
                                  {&table, 1}, layout, 1, queries.view());
    const double step = format == KvFormat::kF32 ? 0 : format == KvFormat::kBF16 ? 1.0 / 256 : 0;
    for (int row = 0; row < 3; ++row) {
      for (int h = 0; h < 4; ++h) {
        const std::vector<double> q = expected_head(row, 32 * h, qw);
        for (int d = 0; d < 16; ++d) expect_near(queries.at(row, 16 * h + d), q[size_t(d)], 1e-5, 1e-5, "query");
      }
      const int slot = 31 + row;
      const std::byte* page = table[size_t(slot / 32)];
      for (int h = 0; h < 2; ++h) {
        const std::vector<double> k = expected_head(row, 128 + 16 * h, kw);
        double k_max = 0, v_max = 0;
        for (int d = 0; d < 16; ++d) {
          k_max = std::max(k_max, std::abs(k[size_t(d)]));
          v_max = std::max(v_max, std::abs(double{packed.at(row, 160 + 16 * h + d)}));
        }
        for (int d = 0; d < 16; ++d) {
          double stored_k = 0, stored_v = 0;
          const std::byte* key = page + layout.key_offset(1, h);
          const std::byte* value = page + layout.value_offset(1, h);
          const size_t ki = size_t(d) * 32 + size_t(slot % 32), vi = size_t(slot % 32) * 16 + size_t(d);
          if (format == KvFormat::kF32) {
            stored_k = reinterpret_cast<const float*>(key)[ki];
            stored_v = reinterpret_cast<const float*>(value)[vi];
          } else if (format == KvFormat::kBF16) {
            stored_k = to_float(reinterpret_cast<const Bf16*>(key)[ki]);
            stored_v = to_float(reinterpret_cast<const Bf16*>(value)[vi]);
          } else {
            const float* ks = reinterpret_cast<const float*>(page + layout.key_scale_offset(1, h));
            const float* vs = reinterpret_cast<const float*>(page + layout.value_scale_offset(1, h));
            stored_k = reinterpret_cast<const int8_t*>(key)[ki] * double{ks[slot % 32]};
            stored_v = reinterpret_cast<const int8_t*>(value)[vi] * double{vs[slot % 32]};
          }
          const double k_step = format == KvFormat::kInt8 ? k_max / 253 : 0,
                       v_step = format == KvFormat::kInt8 ? v_max / 253 : 0;
          expect_near(stored_k, k[size_t(d)], step + 1e-5, k_step + 1e-5, "key");
          expect_near(stored_v, packed.at(row, 160 + 16 * h + d), step, v_step, "value");
        }
      }
    }
  }
}

// Softmax attention over a prefix that crosses pages and spans, in double over the K and V that the cache returns.
TEST(Reference, AttentionMatchesDouble) {
  const AttentionShape shape{4, 2, 16, 1e-6f};
  const std::unique_ptr<Backend> backend = reference();
  for (KvFormat format : {KvFormat::kF32, KvFormat::kBF16, KvFormat::kInt8}) {
    for (int64_t prefix : {0, 31, 40, 511, 1100}) {
      const KvLayout layout{1, 2, 16, format};
      const Pages pages(layout, prefix + 3);
      const PageTable table = pages.table();
      fill_prefix(*backend, shape, layout, 0, pages, prefix, 10);
      Random random(11);
      const Matrix2 packed = Matrix2::random(random, 3, shape.packed_columns());
      const Matrix2 norm = Matrix2::random(random, 1, 16, 0.3f, 1.0f), rotary = Matrix2::random(random, 3, 8);
      Matrix2 queries(3, 64), out(3, 64);
      const std::vector<int16_t> parent = {-1, 0, 0};  // two branches after the first row
      const LaneRows lane{0, 3, prefix, 0, parent};
      const Batch batch{{}, {&lane, 1}, {}};
      backend->attention_inputs(packed.view(), norm.view(), norm.view(), rotary.view(), shape, batch, {&table, 1},
                                layout, 0, queries.view());
      backend->attention(queries.view(), packed.view(), shape, batch, {&table, 1}, layout, 0, out.view());
      auto element = [&](int64_t slot, int head, int d, bool key) -> double {
        const std::byte* page = table[size_t(slot / 32)];
        const size_t t = size_t(slot % 32), index = key ? size_t(d) * 32 + t : t * 16 + size_t(d);
        const std::byte* block = page + (key ? layout.key_offset(0, head) : layout.value_offset(0, head));
        if (format == KvFormat::kF32) return reinterpret_cast<const float*>(block)[index];
        if (format == KvFormat::kBF16) return to_float(reinterpret_cast<const Bf16*>(block)[index]);
        const size_t offset = key ? layout.key_scale_offset(0, head) : layout.value_scale_offset(0, head);
        return reinterpret_cast<const int8_t*>(block)[index] * double{reinterpret_cast<const float*>(page + offset)[t]};
      };
      for (int row = 0; row < 3; ++row) {
        std::vector<int64_t> slots;
        for (int64_t s = 0; s <= prefix; ++s) slots.push_back(s);  // the prefix and the first row
        if (row > 0) slots.push_back(prefix + row);
        for (int h = 0; h < 4; ++h) {
          std::vector<double> weight(slots.size()), o(16);
          double sum = 0;
          for (size_t t = 0; t < slots.size(); ++t) {
            double dot = 0;
            for (int d = 0; d < 16; ++d) dot += queries.at(row, 16 * h + d) * element(slots[t], h / 2, d, true);
            sum += weight[t] = std::exp(dot / 4);
          }
          for (size_t t = 0; t < slots.size(); ++t)
            for (int d = 0; d < 16; ++d) o[size_t(d)] += weight[t] / sum * element(slots[t], h / 2, d, false);
          for (int d = 0; d < 16; ++d)
            expect_near(out.at(row, 16 * h + d), o[size_t(d)] * sigmoid(packed.at(row, 32 * h + 16 + d)), 2e-5, 2e-6,
                        "attention");
        }
      }
    }
  }
}

// Convolution and delta rule over several tokens from a random state, in double: two head mappings, one committed
// chain.
TEST(Reference, DeltaNetMatchesDouble) {
  const std::unique_ptr<Backend> backend = reference();
  for (bool grouped : {false, true}) {
    const DeltaShape shape{2, 4, 8, 6, 4, grouped};
    const int rows = 6;
    Random random(12);
    DeltaLane lane(shape, rows, 13);
    const DeltaLane before = lane;
    const Matrix2 packed = Matrix2::random(random, rows, shape.channels() + 3);
    const Matrix2 weight = Matrix2::random(random, shape.channels(), 4);
    const Matrix2 beta_alpha = Matrix2::random(random, rows, 8), rate = Matrix2::random(random, 1, 4, 0.1f, -0.5f);
    const Matrix2 bias = Matrix2::random(random, 1, 4);
    Matrix2 conv(rows, shape.channels()), out(rows, 24);
    const LaneRows lane_rows{0, rows, 5, rows, {}};
    const Batch batch{{}, {&lane_rows, 1}, {}};
    const DeltaMemory memory = lane.memory();
    backend->causal_conv(packed.view(), weight.view(), shape, batch, {&memory, 1}, conv.view());
    backend->delta_rule(conv.view(), beta_alpha.view(), rate.view(), bias.view(), shape, batch, {&memory, 1},
                        out.view());
    const size_t channels = static_cast<size_t>(shape.channels());
    auto input = [&](int t, size_t c) -> double {  // t < 0: the tail
      return t >= 0 ? packed.at(t, static_cast<int64_t>(c)) : before.tail[static_cast<size_t>(3 + t) * channels + c];
    };
    std::vector<double> state(before.state.begin(), before.state.end());
    for (int t = 0; t < rows; ++t) {
      std::vector<double> x(channels);
      for (size_t c = 0; c < channels; ++c) {
        double acc = 0;
        for (int j = 0; j < 4; ++j) acc += weight.at(static_cast<int64_t>(c), j) * input(t - 3 + j, c);
        x[c] = silu(acc);
        expect_near(conv.at(t, static_cast<int64_t>(c)), x[c], 1e-5, 1e-6, "causal_conv");
      }
      for (int h = 0; h < 4; ++h) {
        const int kh = grouped ? h / 2 : h % 2;
        const double* q = x.data() + kh * 8;
        const double* k = x.data() + 16 + kh * 8;
        const double* v = x.data() + 32 + h * 6;
        double qq = 1e-6, kk = 1e-6;
        for (int i = 0; i < 8; ++i) qq += q[i] * q[i], kk += k[i] * k[i];
        const double beta = sigmoid(beta_alpha.at(t, h));
        const double g = rate.at(0, h) * std::log1p(std::exp(double{beta_alpha.at(t, 4 + h)} + bias.at(0, h)));
        for (int c = 0; c < 6; ++c) {
          double u = 0, o = 0;
          for (int i = 0; i < 8; ++i) {
            double& s = state[size_t(h * 48 + i * 6 + c)];
            s *= std::exp(g);
            u += k[i] / std::sqrt(kk) * s;
          }
          for (int i = 0; i < 8; ++i) {
            double& s = state[size_t(h * 48 + i * 6 + c)];
            s += k[i] / std::sqrt(kk) * beta * (v[c] - u);
            o += q[i] / std::sqrt(qq) / std::sqrt(8.0) * s;
          }
          expect_near(out.at(t, h * 6 + c), o, 1e-4, 1e-5, "delta_rule");
        }
      }
    }
    for (size_t i = 0; i < state.size(); ++i) expect_near(lane.state[i], state[i], 1e-4, 1e-5, "state");
    for (size_t i = 0; i < lane.tail.size(); ++i)
      EXPECT_EQ(lane.tail[i],
                packed.at(rows - 3 + static_cast<int64_t>(i / channels), static_cast<int64_t>(i % channels)));
    EXPECT_NE(lane.state, before.state);
  }
}

}  // namespace
}  // namespace foretoken::test
