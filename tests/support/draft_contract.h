// What every backend's operators of block drafters keep, against their scalar definition: stored K and V, convolutions, candidates and
// edges bit for bit; attention within rounding of it and with the same bits on every backend of a list.
#pragma once

#include <algorithm>
#include <cmath>

#include "support/ops_world.h"

namespace foretoken::test {

// The ring or the growing pages of one lane. Whatever was never stored is NaN.
struct BlockContext {
  std::vector<std::byte> memory;
  std::vector<std::byte*> pages;
  BlockContext(const KvLayout& layout, int64_t page_count) : memory(static_cast<size_t>(page_count) * layout.page_bytes(), std::byte{0xFF}) {
    for (int64_t p = 0; p < page_count; ++p) pages.push_back(memory.data() + static_cast<size_t>(p) * layout.page_bytes());
  }
};

struct BlockCase {
  BlockShape shape;
  KvFormat format;
  int rows;
  int64_t base, begin, end;  // of the context
};

struct BlockOutputs {
  Matrix2 queries, out;
  std::vector<std::vector<std::byte>> memory;
};

// Cosines, then sines, of random angles.
inline Matrix2 random_angles(Random& random, int64_t rows, int64_t cols) {
  Matrix2 table(rows, cols);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < cols / 2; ++j) {
      const float angle = 3.14159265f * random.uniform();
      table.at(r, j) = std::cos(angle);
      table.at(r, cols / 2 + j) = std::sin(angle);
    }
  return table;
}

// Two lanes of the case in one call, the second shorter by some rows and begun one later; the context goes in by chunks.
inline BlockOutputs run(Backend& backend, const BlockCase& c, bool definition) {
  const BlockShape& shape = c.shape;
  const KvLayout layout{1, shape.kv_heads, shape.head_dim, c.format};
  Random random(7);
  const int64_t columns = int64_t{shape.query_heads} * shape.head_dim, kv_columns = 2 * int64_t{shape.kv_heads} * shape.head_dim;
  const Matrix2 q_norm = Matrix2::random(random, 1, shape.head_dim, 0.3f, 1.0f), k_norm = Matrix2::random(random, 1, shape.head_dim, 0.3f, 1.0f);
  const int second_rows = std::max(1, c.rows - 3);
  const int64_t longest = shape.window > 0 ? shape.window - 1 + c.rows : c.end - c.base + c.rows;
  std::vector<BlockContext> contexts;
  for (int i = 0; i < 2; ++i) contexts.emplace_back(layout, (longest + kPageTokens - 1) / kPageTokens);
  const auto inputs = [&](View q, View kv, View rotary, std::span<const BlockLane> lanes) {
    if (definition) backend.Backend::block_inputs(q, kv, q_norm.view(), k_norm.view(), rotary, shape, lanes, layout);
    else backend.block_inputs(q, kv, q_norm.view(), k_norm.view(), rotary, shape, lanes, layout);
  };
  for (int i = 0; i < 2; ++i)
    for (int64_t at = c.begin + i; at < c.end;) {
      const int count = static_cast<int>(std::min<int64_t>(1 + static_cast<int64_t>(random.below(20)), c.end - at));
      const int fits = static_cast<int>(std::min<int64_t>(count, static_cast<int64_t>(contexts[0].pages.size()) * kPageTokens));
      const Matrix2 kv = Matrix2::random(random, fits, kv_columns), rotary = random_angles(random, fits, shape.head_dim);
      const BlockLane lane{0, fits, c.base, at, at, contexts[static_cast<size_t>(i)].pages};
      inputs({}, kv.view(), rotary.view(), {&lane, 1});
      at += fits;
    }
  const int rows = c.rows + second_rows;
  BlockOutputs result{Matrix2::random(random, rows, columns), Matrix2(rows, columns), {}};
  const Matrix2 kv = Matrix2::random(random, rows, kv_columns), rotary = random_angles(random, rows, shape.head_dim);
  const BlockLane lanes[] = {{0, c.rows, c.base, c.begin, c.end, contexts[0].pages},
                             {c.rows, second_rows, c.base, std::min(c.begin + 1, c.end), c.end, contexts[1].pages}};
  inputs(result.queries.view(), kv.view(), rotary.view(), lanes);
  if (definition) backend.Backend::block_attention(result.queries.view(), shape, lanes, layout, result.out.view());
  else backend.block_attention(result.queries.view(), shape, lanes, layout, result.out.view());
  EXPECT_TRUE(result.queries.padding_untouched());
  EXPECT_TRUE(result.out.padding_untouched());
  for (BlockContext& context : contexts) result.memory.push_back(std::move(context.memory));
  return result;
}

inline void expect_block_attention(const std::vector<std::unique_ptr<Backend>>& backends) {
  const auto reference = make_reference_backend();
  Random random(3);
  std::vector<BlockCase> cases;
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kBF16, KvFormat::kInt8})
    for (const auto& [query_heads, kv_heads, dim] : {std::tuple(8, 4, 64), std::tuple(4, 4, 32), std::tuple(6, 1, 24), std::tuple(2, 2, 128)})
      for (const int window : {0, 1, 16, 40})
        for (const int64_t length : {0, 1, 31, 33, 100, 300}) {
          const int64_t begin = 32 + random.below(32);
          cases.push_back({{query_heads, kv_heads, dim, 1e-6f, window, random.below(2) == 1}, format, 1 + random.below(16), 32, begin, begin + length});
        }
  // Heads of a released drafter: windows that have come round their ring, contexts of many pieces, blocks with more rows than share a piece.
  for (const auto& [query_heads, kv_heads, rows, window, length] :
       {std::tuple(8, 2, 8, 200, 700), std::tuple(8, 2, 7, 2048, 2300), std::tuple(4, 1, 16, 0, 4600), std::tuple(6, 2, 5, 0, 900)})
    for (const bool causal : {false, true})
      cases.push_back({{query_heads, kv_heads, 128, 1e-6f, window, causal}, KvFormat::kBF16, rows, 64, 70, 70 + length});
  for (const BlockCase& c : cases) {
    SCOPED_TRACE(::testing::Message() << "heads " << c.shape.query_heads << "/" << c.shape.kv_heads << " x " << c.shape.head_dim << ", window "
                                      << c.shape.window << ", causal " << c.shape.causal << ", format " << int(c.format) << ", rows " << c.rows
                                      << ", context [" << c.begin << ", " << c.end << ")");
    const BlockOutputs expected = run(*reference, c, true);
    ASSERT_TRUE(is_informative(expected.out.view()));
    BlockOutputs first;
    for (const auto& backend : backends) {
      const BlockOutputs actual = run(*backend, c, false);
      expect_same_bits(actual.queries, expected.queries, "queries");
      EXPECT_EQ(actual.memory, expected.memory);
      EXPECT_LT(max_abs_difference(actual.out.view(), expected.out.view()), 1e-4f);
      if (first.memory.empty()) first = actual;
      expect_same_bits(actual.out, first.out, "attention on " + backend->info().detail);
    }
    if (::testing::Test::HasFailure()) return;
  }
}

inline void expect_block_convolution(const std::vector<std::unique_ptr<Backend>>& backends) {
  Random random(4);
  for (const auto& [cols, group, taps] : {std::tuple(64, 16, 2), std::tuple(96, 32, 3), std::tuple(40, 8, 1), std::tuple(30, 5, 4)}) {
    const Matrix2 x = Matrix2::random(random, 13, cols), base = Matrix2::random(random, taps, cols);
    const Matrix2 delta = Matrix2::random(random, 13, int64_t{taps} * (cols / group));
    const BlockLane lanes[] = {{0, 8}, {8, 1}, {9, 4}};
    Matrix2 expected(13, cols);
    make_reference_backend()->block_conv(x.view(), base.view(), delta.view(), group, lanes, expected.view());
    ASSERT_TRUE(is_informative(expected.view()));
    for (const auto& backend : backends) {
      Matrix2 out(13, cols);
      backend->block_conv(x.view(), base.view(), delta.view(), group, lanes, out.view());
      expect_same_bits(out, expected, "convolution on " + backend->info().detail);
      EXPECT_TRUE(out.padding_untouched());
    }
  }
}

// Rows full of ties, infinities and NaN among them; one whose largest lie at one distance from each other, as those of one thread do.
inline void expect_top_k(const std::vector<std::unique_ptr<Backend>>& backends) {
  Random random(5);
  for (const int cols : {16, 17, 100, 5000, 40000})
    for (const int k : {1, 4, 16, 48, 64}) {
      if (k > cols) continue;
      Matrix2 logits = Matrix2::random(random, 6, cols);
      for (int i = 0; i < cols; ++i) logits.at(1, i) = static_cast<float>(random.below(3));
      for (int i = 0; i < cols; ++i) logits.at(2, i) = random.below(4) == 0 ? kNaN : logits.at(2, i);
      for (int i = 0; i < cols; ++i) logits.at(3, i) = static_cast<float>(i);
      for (int i = 0; i < cols; ++i) logits.at(4, i) = kNaN;
      for (int i = 7; i < cols; i += 256) logits.at(5, i) += 100;
      std::vector<TokenId> expected_ids(static_cast<size_t>(6 * k));
      Matrix2 expected(6, k);
      make_reference_backend()->top_k(logits.view(), k, expected_ids, expected.view());
      std::vector<int> order(static_cast<size_t>(cols));
      for (int i = 0; i < cols; ++i) order[static_cast<size_t>(i)] = i;
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits.at(1, a) > logits.at(1, b); });
      for (int i = 0; i < k; ++i) EXPECT_EQ(expected_ids[static_cast<size_t>(k + i)], order[static_cast<size_t>(i)]);
      for (const auto& backend : backends) {
        std::vector<TokenId> ids(expected_ids.size(), -1);
        Matrix2 values(6, k);
        backend->top_k(logits.view(), k, ids, values.view());
        EXPECT_EQ(ids, expected_ids) << backend->info().detail << ", " << k << " of " << cols;
        expect_same_bits(values, expected, "largest values");
      }
    }
}

// Everything that can be asked of rows of logits, of rows with ties, infinities and NaN.
inline void expect_choices(const std::vector<std::unique_ptr<Backend>>& backends) {
  Random random(9);
  int tokens = 0;
  for (const int cols : {1, 31, 100, 5000, 40000}) {
    Matrix2 logits = Matrix2::random(random, 9, cols);
    for (int r = 0; r < 9; ++r)
      for (int i = 0; i < cols; ++i) logits.at(r, i) *= 4;
    for (int i = 0; i < cols; ++i) logits.at(1, i) = static_cast<float>(random.below(3));
    logits.at(2, cols / 2) = kNaN;
    logits.at(3, cols - 1) = std::numeric_limits<float>::infinity();
    for (int i = 0; i < cols; ++i) logits.at(4, i) = -std::numeric_limits<float>::infinity();
    for (int i = 0; i < cols; i += 3) logits.at(5, i) = -std::numeric_limits<float>::infinity();
    for (int i = 0; i < cols; ++i) logits.at(6, i) = i % 2 ? 0.0f : -0.0f;
    for (const float temperature : {0.0f, 0.7f, 1.0f, 2.5f})
      for (const float least : {-std::numeric_limits<float>::infinity(), -2.0f})
        for (const bool leaders : {false, true}) {
          std::vector<ChoiceSpec> specs;
          for (int r = 0; r < 9; ++r)
            specs.push_back({.temperature = temperature, .least = least, .noisy = temperature > 0 && r % 4 != 3, .mass = temperature > 0 && r % 3 != 1,
                             .leaders = leaders && r == 2, .choice = static_cast<uint32_t>(r), .seed = 0x123456789ABCDEFull + static_cast<uint64_t>(r),
                             .position = (uint64_t{1} << 33) + static_cast<uint64_t>(r * 1000)});
          Choices expected;
          make_reference_backend()->choose(logits.view(), specs, expected);
          EXPECT_EQ(expected.leader_count, leaders ? std::min(cols, kLeaders) : 0);
          for (const RowChoice& row : expected.rows) tokens += row.noisy > 0;
          for (const auto& backend : backends) {
            Choices found;
            backend->choose(logits.view(), specs, found);
            EXPECT_EQ(found.leader_count, expected.leader_count);
            EXPECT_EQ(found.leaders, expected.leaders);
            EXPECT_TRUE(found.values.size() == expected.values.size() &&
                        std::memcmp(found.values.data(), expected.values.data(), found.values.size() * sizeof(float)) == 0);
            for (size_t r = 0; r < 9; ++r) {
              const RowChoice &a = found.rows[r], &b = expected.rows[r];
              EXPECT_EQ(a.finite, b.finite) << cols << " row " << r;
              if (!b.finite) continue;
              EXPECT_EQ(a.largest, b.largest) << cols << " row " << r;
              EXPECT_EQ(a.best, b.best) << cols << " row " << r;
              if (b.best < 0) continue;
              EXPECT_TRUE(!specs[r].noisy || a.noisy == b.noisy) << cols << " row " << r << " T " << temperature;
              EXPECT_TRUE(!specs[r].mass || a.mass == b.mass) << cols << " row " << r << " T " << temperature;
            }
          }
        }
  }
  EXPECT_GT(tokens, 100);
}

inline void expect_edges(const std::vector<std::unique_ptr<Backend>>& backends) {
  Random random(6);
  for (const auto& [slots, k, rank] : {std::tuple(7, 16, 64), std::tuple(3, 4, 8), std::tuple(2, 5, 33)}) {
    const auto packed = [&](int64_t rows, int64_t cols) {
      Matrix2 m(rows, cols, 0);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < cols; ++c) m.at(r, c) = random.value();
      return m;
    };
    const Matrix2 weights = Matrix2::random(random, slots, rank), before = packed(slots * k, rank), after = packed(slots * k, rank);
    Matrix2 expected(slots * k, k, 0);
    make_reference_backend()->selector_edges(weights.view(), before.view(), after.view(), expected.view());
    ASSERT_TRUE(is_informative(expected.view()));
    for (const auto& backend : backends) {
      Matrix2 edges(slots * k, k, 0);
      backend->selector_edges(weights.view(), before.view(), after.view(), edges.view());
      expect_same_bits(edges, expected, "edges on " + backend->info().detail);
    }
  }
}

// Candidates of blocks and the scores between them, against the operators that define them, of tables in several formats.
inline void expect_lattice(const std::vector<std::unique_ptr<Backend>>& backends) {
  Random random(12);
  for (const auto& [format, rank, vocab, k] : {std::tuple(QuantFormat::kF32, 64, 3000, 16), std::tuple(QuantFormat::kBF16, 33, 40, 5),
                                               std::tuple(QuantFormat::kQ8_0, 256, 20000, 16), std::tuple(QuantFormat::kF32, 8, 5, 1)}) {
    const std::vector<LatticeBlock> blocks = {{0, 4, vocab - 1}, {4, 1, 0}, {5, 0, 1}, {5, 3, 2}};
    const int slots = 8;
    std::vector<std::byte> bytes[2];
    std::vector<float> decoded[2];
    MatrixSource tables[2];
    for (int t = 0; t < 2; ++t) {
      decoded[t].resize(static_cast<size_t>(vocab * rank));
      for (float& v : decoded[t]) v = random.value();
      bytes[t].resize(static_cast<size_t>(vocab) * row_bytes(format, rank));
      quantize(format, decoded[t], {}, bytes[t]);
      dequantize(format, bytes[t], decoded[t]);
      tables[t] = {"table", format, vocab, rank, bytes[t], {}, {}};
    }
    const Matrix2 logits = Matrix2::random(random, slots, vocab), weights = Matrix2::random(random, slots, rank);
    std::vector<TokenId> ids(static_cast<size_t>(slots * k));
    Matrix2 unary(slots, k, 0), before(slots * k, rank, 0), after(slots * k, rank, 0), edges(slots * k, k, 0);
    const auto reference = make_reference_backend();
    reference->top_k(logits.view(), k, ids, unary.view());
    for (const LatticeBlock& block : blocks)
      for (int s = block.first; s < block.first + block.slots; ++s)
        for (int i = 0; i < k; ++i) {
          const TokenId token = ids[static_cast<size_t>(s * k + i)],
                        previous = s == block.first ? block.anchor : ids[static_cast<size_t>((s - 1) * k + i)];
          for (int c = 0; c < rank; ++c) {
            before.at(s * k + i, c) = decoded[0][static_cast<size_t>(previous * rank + c)];
            after.at(s * k + i, c) = decoded[1][static_cast<size_t>(token * rank + c)];
          }
        }
    reference->selector_edges(weights.view(), before.view(), after.view(), edges.view());
    ASSERT_TRUE(is_informative(edges.view()));
    const auto same = [](const std::vector<float>& a, View b) {
      return a.size() == static_cast<size_t>(b.rows * b.cols) && std::memcmp(a.data(), b.data, a.size() * sizeof(float)) == 0;
    };
    for (const auto& backend : backends) {
      SCOPED_TRACE(backend->info().detail);
      for (const MatrixSource& table : tables) backend->keep_table(table);
      for (const bool selector : {true, false, true}) {
        Lattice found;
        backend->lattice(logits.view(), k, selector ? weights.view() : View(), tables[0], tables[1], blocks, found);
        EXPECT_EQ(found.ids, ids);
        EXPECT_TRUE(same(found.unary, unary.view()));
        EXPECT_TRUE(selector ? same(found.edges, edges.view()) : found.edges.empty());
      }
    }
  }
}

}  // namespace foretoken::test
