// MTP head and block drafters against float64 results on tiny random bundles, in every form that files take; and what their lanes
// promise: bits do not depend on other lanes, on how the context came in, or on where it begins.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "model/dflash.h"
#include "model/mtp.h"
#include "support/drafting.h"
#include "support/golden.h"
#include "support/test_model.h"

namespace foretoken {
namespace {

using test::Golden;
using test::value_or_throw;

float worst_difference(std::span<const float> actual, std::span<const float> expected) {
  EXPECT_EQ(actual.size(), expected.size());
  float worst = 0;
  for (size_t i = 0; i < std::min(actual.size(), expected.size()); ++i) worst = std::max(worst, std::fabs(actual[i] - expected[i]));
  return worst;
}

std::vector<float> values_of(View view) {
  std::vector<float> values;
  for (int64_t r = 0; r < view.rows; ++r) values.insert(values.end(), view.f32(r), view.f32(r) + view.cols);
  return values;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](float x, float y) {
           return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y);
         });
}

View rows_of(const test::GoldenArray<float>& array) {
  return View::of(const_cast<float*>(array.values.data()), array.rows(), array.row_elements());
}

// ---- MTP

struct MtpFixture {
  MtpFixture(const Golden& golden, const std::string& form, KvFormat kv_format = KvFormat::kF32)
      : model(test::load_model(golden.path(form))),
        weights(value_or_throw(load_mtp(model->bundle, model->config, *model->backend))),
        head(model->config, model->weights, weights, *model->backend, {.kv_format = kv_format}) {}
  std::unique_ptr<test::TestModel> model;
  MtpWeights weights;
  MtpHead head;
};

class MtpGolden : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

// Logits of every pair of the prompt in one call, and four drafts fed back on themselves.
TEST_P(MtpGolden, LogitsAndRecursion) {
  const auto [folder, form] = GetParam();
  const Golden golden(folder);
  MtpFixture f(golden, form);
  auto tokens = golden.i32("tokens").values;
  const auto hidden = golden.f32("hidden"), logits = golden.f32("mtp_logits"), chain_logits = golden.f32("mtp_chain_logits");
  const auto chain = golden.i32("mtp_chain").values;
  const int rows = static_cast<int>(logits.rows());
  auto lane = f.head.make_lane();
  std::vector<RowInput> inputs;
  std::vector<int> all(static_cast<size_t>(rows));
  std::iota(all.begin(), all.end(), 0);
  for (int i = 0; i < rows; ++i) inputs.push_back(text_row(tokens[static_cast<size_t>(i) + 1], i));
  const LaneRows lane_rows{.first_row = 0, .rows = rows, .prefix = 0, .settled = rows};
  MtpLane* lanes[] = {lane.get()};
  MtpResult result = f.head.forward(rows_of(hidden).row_range(0, rows),
                                    {.inputs = inputs, .lanes = {&lane_rows, 1}, .logits_rows = all}, lanes);
  EXPECT_LT(worst_difference(values_of(result.logits), logits.values), 1e-4f);
  EXPECT_EQ(lane->end(), rows);

  tokens.push_back(golden.i32("greedy").values[0]);
  result = test::append_pairs(f.head, *lane, rows_of(hidden), tokens, rows, rows + 1);
  for (size_t depth = 0; depth < chain.size(); ++depth) {
    const int64_t at = static_cast<int64_t>(depth);
    EXPECT_LT(worst_difference(values_of(result.logits), {chain_logits.row(at), static_cast<size_t>(chain_logits.row_elements())}), 1e-4f)
        << "depth " << depth;
    const test::Top top = test::top_of(result.logits.f32(), f.model->config.vocab);
    ASSERT_EQ(top.token, chain[depth]);
    result = test::chain_step(f.head, *lane, result, top.token);
  }
}

INSTANTIATE_TEST_SUITE_P(AllForms, MtpGolden,
                         ::testing::Values(std::pair("qwen35", "hf"), std::pair("qwen35", "hf-bf16"), std::pair("qwen35", "model-f32.gguf"),
                                           std::pair("qwen35", "model-bf16.gguf"), std::pair("qwen35moe", "hf"),
                                           std::pair("qwen35moe", "model-f32.gguf")));

// Entries made from drafts are forgotten: after truncation, true pairs give the bits of a lane that never drafted.
TEST(MtpLanes, CatchUpReplacesDraftedEntries) {
  const Golden golden("qwen35");
  MtpFixture f(golden, "hf", KvFormat::kBF16);
  const auto tokens = golden.i32("tokens").values;
  const auto hidden = golden.f32("hidden");
  auto plain = f.head.make_lane(), drafted = f.head.make_lane();
  MtpResult result = test::append_pairs(f.head, *drafted, rows_of(hidden), tokens, 0, 30);
  for (int depth = 0; depth < 7; ++depth) result = test::chain_step(f.head, *drafted, result, tokens[static_cast<size_t>(depth)]);
  EXPECT_EQ(drafted->end(), 37);
  drafted->truncate(30);
  const auto after = values_of(test::append_pairs(f.head, *drafted, rows_of(hidden), tokens, 30, 40).logits);
  test::append_pairs(f.head, *plain, rows_of(hidden), tokens, 0, 30);
  const auto expected = values_of(test::append_pairs(f.head, *plain, rows_of(hidden), tokens, 30, 40).logits);
  EXPECT_TRUE(same_bits(after, expected));
  // The test can fail: without truncation the entries differ.
  auto wrong = f.head.make_lane();
  result = test::append_pairs(f.head, *wrong, rows_of(hidden), tokens, 0, 30);
  test::chain_step(f.head, *wrong, result, tokens[0]);
  EXPECT_FALSE(same_bits(values_of(test::append_pairs(f.head, *wrong, rows_of(hidden), tokens, 30, 40).logits), expected));
}

// Three lanes of different lengths in one call give the bits of three calls; a lane full of NaN touches only itself.
TEST(MtpLanes, LanesDoNotMeet) {
  const Golden golden("qwen35");
  MtpFixture f(golden, "hf", KvFormat::kBF16);
  const auto tokens = golden.i32("tokens").values;
  auto hidden = golden.f32("hidden");
  const int64_t length[] = {5, 33, 64};
  const int rows[] = {1, 4, 2};
  std::vector<float> single[3];
  for (int i = 0; i < 3; ++i) {
    auto lane = f.head.make_lane();
    test::append_pairs(f.head, *lane, rows_of(hidden), tokens, 0, length[i]);
    single[i] = values_of(test::append_pairs(f.head, *lane, rows_of(hidden), tokens, length[i], length[i] + rows[i]).hidden);
  }
  for (const bool poisoned : {false, true}) {
    std::vector<std::unique_ptr<MtpLane>> owners;
    std::vector<MtpLane*> lanes;
    std::vector<RowInput> inputs;
    std::vector<LaneRows> lane_rows;
    std::vector<float> values;
    for (int i = 0; i < 3; ++i) {
      owners.push_back(f.head.make_lane());
      lanes.push_back(owners.back().get());
      test::append_pairs(f.head, *lanes.back(), rows_of(hidden), tokens, 0, length[i]);
      lane_rows.push_back({.first_row = static_cast<int>(inputs.size()), .rows = rows[i], .prefix = length[i], .settled = rows[i]});
      for (int r = 0; r < rows[i]; ++r) {
        inputs.push_back(text_row(tokens[static_cast<size_t>(length[i] + r + 1)], length[i] + r));
        const float* row = hidden.row(length[i] + r);
        for (int64_t c = 0; c < hidden.row_elements(); ++c)
          values.push_back(poisoned && i == 1 ? std::numeric_limits<float>::quiet_NaN() : row[c]);
      }
    }
    const MtpResult result = f.head.forward(View::of(values.data(), static_cast<int64_t>(inputs.size()), hidden.row_elements()),
                                            {.inputs = inputs, .lanes = lane_rows}, lanes);
    for (int i = 0; i < 3; ++i) {
      const View own = result.hidden.row_range(lane_rows[static_cast<size_t>(i)].first_row,
                                               lane_rows[static_cast<size_t>(i)].first_row + rows[i]);
      EXPECT_EQ(same_bits(values_of(own), single[i]), !(poisoned && i == 1)) << "lane " << i;
    }
  }
}

// ---- Block drafters

struct DflashFixture {
  explicit DflashFixture(const Golden& golden, const std::string& form, DflashOptions options = {.kv_format = KvFormat::kF32})
      : target(test::load_model(Golden("qwen35").path("hf"))),
        bundle(value_or_throw(Bundle::open(golden.path(form)))),
        model(value_or_throw(DflashModel::load(bundle, target->config, target->weights, *target->backend, options))) {}
  std::unique_ptr<test::TestModel> target;
  Bundle bundle;
  std::unique_ptr<DflashModel> model;

  const DflashDraft& draft(DflashLane& lane, TokenId anchor, int rows) {
    const DflashBlock block{&lane, anchor, rows};
    return model->draft({&block, 1})[0];
  }
};

// Everything a draft holds, as bits to compare.
std::vector<float> bits_of(const DflashDraft& draft) {
  std::vector<float> bits = values_of(draft.hidden);
  const auto logits = values_of(draft.logits);
  bits.insert(bits.end(), logits.begin(), logits.end());
  bits.insert(bits.end(), draft.unary.begin(), draft.unary.end());
  bits.insert(bits.end(), draft.edges.begin(), draft.edges.end());
  bits.insert(bits.end(), draft.candidates.begin(), draft.candidates.end());
  return bits;
}

using DrafterForm = std::pair<const char*, const char*>;
class DflashGolden : public ::testing::TestWithParam<DrafterForm> {};

// Hidden rows, logits, candidates, scores and the draft itself, from the reference's own features. DFlash 2's window of 16 is
// shorter than its context of 40.
TEST_P(DflashGolden, MatchesFloat64) {
  const auto [kind, form] = GetParam();
  const Golden golden(kind);
  DflashFixture f(golden, form);
  EXPECT_EQ(drafter_kind_name(f.model->config().kind), std::string(kind) == "dflash1" ? "dflash" : kind);
  const auto features = golden.f32("features"), hidden = golden.f32("hidden"), logits = golden.f32("logits");
  const auto rows = golden.i32("rows").values, expected = golden.i32("draft").values;
  auto lane = f.model->make_lane();
  test::extend_to(*f.model, *lane, rows_of(features), features.rows());
  const DflashDraft& draft = f.draft(*lane, rows[0], static_cast<int>(rows.size()));
  ASSERT_EQ(draft.slots, static_cast<int>(expected.size()));
  const int64_t skipped = hidden.rows() - draft.slots;  // the anchor's row, unless it predicts
  EXPECT_LT(worst_difference(values_of(draft.hidden), std::span(hidden.values).subspan(static_cast<size_t>(skipped * hidden.row_elements()))), 1e-4f);
  EXPECT_LT(worst_difference(values_of(draft.logits), logits.values), 2e-4f);
  ASSERT_GT(*std::max_element(logits.values.begin(), logits.values.end()), 1.0f) << "a trivial reference proves nothing";
  std::vector<int> path;
  draft.greedy_walk(path);
  for (int slot = 0; slot < draft.slots; ++slot)
    EXPECT_EQ(draft.candidate(slot, path[static_cast<size_t>(slot)]), expected[static_cast<size_t>(slot)]) << "slot " << slot;
  if (golden.has("confidence")) {
    EXPECT_LT(worst_difference(draft.confidence, golden.f32("confidence").values), 1e-5f);
  } else {
    EXPECT_TRUE(draft.confidence.empty());
  }
  if (!golden.has("scores")) return;
  const auto candidates = golden.i32("candidates").values;
  EXPECT_TRUE(std::equal(candidates.begin(), candidates.end(), draft.candidates.begin(), draft.candidates.end()));
  EXPECT_LT(worst_difference(draft.unary, golden.f32("unary").values), 2e-4f);
  const auto scores = golden.f32("scores");
  for (int slot = 0; slot < draft.slots; ++slot)
    for (int k = 0; k < draft.top_k; ++k)
      EXPECT_NEAR(draft.score(slot, slot == 0 ? 0 : path[static_cast<size_t>(slot) - 1], k), scores.row(slot)[k], 3e-4f) << slot << "," << k;
}

INSTANTIATE_TEST_SUITE_P(AllForms, DflashGolden,
                         ::testing::Values(DrafterForm{"dflash1", "hf"}, DrafterForm{"dflash1", "drafter.gguf"},
                                           DrafterForm{"dspark", "hf"}, DrafterForm{"dspark", "drafter.gguf"},
                                           DrafterForm{"dflash2", "hf"}, DrafterForm{"dflash2", "drafter.gguf"}));

class DflashLanes : public ::testing::TestWithParam<const char*> {};

// The same weights from safetensors and from GGUF draft the same bits, and so does a context that came in by any chunks.
TEST_P(DflashLanes, BitsDoNotDependOnFormOrChunks) {
  const Golden golden(GetParam());
  const auto features = golden.f32("features");
  const auto rows = golden.i32("rows").values;
  std::vector<float> first;
  for (const char* form : {"hf", "drafter.gguf"})
    for (const int64_t chunk : {40, 1, 7, 16, 33}) {
      DflashFixture f(golden, form, {.kv_format = KvFormat::kBF16});
      auto lane = f.model->make_lane();
      for (int64_t end = 0; end < features.rows();) {
        end = std::min(end + chunk, features.rows());
        test::extend_to(*f.model, *lane, rows_of(features), end);
        f.draft(*lane, rows[0], f.model->config().block_size);  // block rows written behind the context leave no trace in it
      }
      const auto bits = bits_of(f.draft(*lane, rows[0], static_cast<int>(rows.size())));
      if (first.empty()) first = bits;
      EXPECT_TRUE(same_bits(bits, first)) << form << ", chunks of " << chunk;
    }
}

// Blocks of several lanes, of different context lengths and widths, in one call give the bits of one call each.
TEST_P(DflashLanes, LanesDoNotMeet) {
  const Golden golden(GetParam());
  const auto features = golden.f32("features");
  const auto tokens = golden.i32("tokens").values;
  DflashFixture f(golden, "hf", {.kv_format = KvFormat::kBF16});
  const int64_t length[] = {3, 40, 0, 17};
  const int rows[] = {2, 5, 3, 4};
  std::vector<float> single[4];
  for (int i = 0; i < 4; ++i) {
    auto lane = f.model->make_lane();
    test::extend_to(*f.model, *lane, rows_of(features), length[i]);
    single[i] = bits_of(f.draft(*lane, tokens[static_cast<size_t>(i)], rows[i]));
  }
  EXPECT_FALSE(same_bits(single[0], single[1]));
  std::vector<std::unique_ptr<DflashLane>> lanes;
  std::vector<std::vector<int>> context_rows;
  std::vector<DflashContext> contexts;
  std::vector<DflashBlock> blocks;
  for (int i = 0; i < 4; ++i) {
    lanes.push_back(f.model->make_lane());
    context_rows.emplace_back(static_cast<size_t>(length[i]));
    std::iota(context_rows.back().begin(), context_rows.back().end(), 0);
    blocks.push_back({lanes.back().get(), tokens[static_cast<size_t>(i)], rows[i]});
  }
  for (int i = 0; i < 4; ++i) contexts.push_back({lanes[static_cast<size_t>(i)].get(), context_rows[static_cast<size_t>(i)]});
  f.model->extend(rows_of(features), contexts);
  const auto drafts = f.model->draft(blocks);
  ASSERT_EQ(drafts.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(same_bits(bits_of(drafts[i]), single[i])) << "lane " << i;
}

// Q8_0 at load: smaller, and near enough that nearly every slot keeps its best candidate among the first.
TEST_P(DflashLanes, QuantisedAtLoad) {
  const Golden golden(GetParam());
  const auto features = golden.f32("features");
  const auto rows = golden.i32("rows").values;
  DflashFixture plain(golden, "hf"), small(golden, "hf", {.weights = QuantFormat::kQ8_0});
  EXPECT_LT(small.model->packed_bytes(), plain.model->packed_bytes());
  auto lane = plain.model->make_lane(), small_lane = small.model->make_lane();
  test::extend_to(*plain.model, *lane, rows_of(features), features.rows());
  test::extend_to(*small.model, *small_lane, rows_of(features), features.rows());
  const int count = static_cast<int>(rows.size());
  const DflashDraft& a = plain.draft(*lane, rows[0], count);
  const DflashDraft& b = small.draft(*small_lane, rows[0], count);
  int kept = 0;
  for (int slot = 0; slot < a.slots; ++slot)
    for (int k = 0; k < std::min(3, b.top_k); ++k) kept += b.candidate(slot, k) == a.candidate(slot, 0);
  EXPECT_GE(kept, a.slots - 1);
}

INSTANTIATE_TEST_SUITE_P(Kinds, DflashLanes, ::testing::Values("dflash1", "dspark", "dflash2"),
                         [](const auto& info) { return std::string(info.param); });

// A window that begins anywhere: rows older than it are never read, so a lane restarted at the window's first position drafts the
// bits of a lane that saw everything; with less it drafts something else, and still works.
TEST(DflashWindow, MayBeginAnywhere) {
  const Golden golden("dflash2");
  const auto features = golden.f32("features");
  const auto rows = golden.i32("rows").values;
  DflashFixture f(golden, "hf");
  const int64_t n = features.rows(), reach = f.model->config().context_reach();
  ASSERT_EQ(reach, 15);
  auto whole = f.model->make_lane();
  test::extend_to(*f.model, *whole, rows_of(features), n);
  const int count = static_cast<int>(rows.size());
  const auto expected = bits_of(f.draft(*whole, rows[0], count));
  for (const int64_t begin : {n - reach - 20, n - reach - 1, n - reach, n - reach + 1, n - 1, n}) {
    auto lane = f.model->make_lane();
    lane->restart(begin);
    test::extend_to(*f.model, *lane, rows_of(features), n);
    EXPECT_EQ(lane->first(), begin);
    EXPECT_EQ(lane->end(), n);
    const auto bits = bits_of(f.draft(*lane, rows[0], count));
    EXPECT_EQ(same_bits(bits, expected), begin <= n - reach) << "begin " << begin;
    for (const float v : bits) ASSERT_TRUE(std::isfinite(v));
  }
}

// A context far longer than the ring: the pages stop growing, and the draft is that of the last rows.
TEST(DflashWindow, RingStopsGrowing) {
  const Golden golden("dflash2");
  const auto features = golden.f32("features");
  const auto rows = golden.i32("rows").values;
  DflashFixture f(golden, "hf");
  const int64_t n = features.rows();
  auto lane = f.model->make_lane(), other = f.model->make_lane();
  for (int round = 0; round < 9; ++round) {
    std::vector<int> all(static_cast<size_t>(n));
    std::iota(all.begin(), all.end(), 0);
    const DflashContext context{lane.get(), all};
    f.model->extend(rows_of(features), {&context, 1});
  }
  const size_t pages = f.model->pages().pages_in_use();
  EXPECT_EQ(pages, size_t(f.model->config().layers));  // 15 context rows and 6 block rows in one page of 32
  EXPECT_EQ(lane->end(), 9 * n);
  other->restart(8 * n);
  std::vector<int> all(static_cast<size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  const DflashContext context{other.get(), all};
  f.model->extend(rows_of(features), {&context, 1});
  const int count = static_cast<int>(rows.size());
  const auto expected = bits_of(f.draft(*other, rows[0], count));
  EXPECT_TRUE(same_bits(bits_of(f.draft(*lane, rows[0], count)), expected));
  lane.reset();
  other.reset();
  EXPECT_EQ(f.model->pages().pages_in_use(), 0u);
}

// Rounded K and V stay near: bf16 and int8 contexts keep hidden rows within a few hundredths.
TEST(DflashWindow, RoundedContext) {
  const Golden golden("dflash2");
  const auto features = golden.f32("features"), hidden = golden.f32("hidden");
  const auto rows = golden.i32("rows").values;
  for (const auto& [format, tolerance] : {std::pair(KvFormat::kF32, 1e-4f), std::pair(KvFormat::kBF16, 0.05f), std::pair(KvFormat::kInt8, 0.15f)}) {
    DflashFixture f(golden, "hf", {.kv_format = format});
    auto lane = f.model->make_lane();
    test::extend_to(*f.model, *lane, rows_of(features), features.rows());
    const DflashDraft& draft = f.draft(*lane, rows[0], static_cast<int>(rows.size()));
    const float worst = worst_difference(values_of(draft.hidden), std::span(hidden.values).subspan(static_cast<size_t>(hidden.row_elements())));
    EXPECT_LT(worst, tolerance);
    if (format != KvFormat::kF32) {
      EXPECT_GT(worst, 1e-4f);
    }
  }
}

}  // namespace
}  // namespace foretoken
