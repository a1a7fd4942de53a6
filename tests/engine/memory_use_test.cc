// What a living model takes of memory, part by part, against its footprint: weights, drafters, lanes, pages and the working memory of the
// largest passes, measured as the growth of this process's own (anonymous) pages.
#include <gtest/gtest.h>
#include <malloc.h>

#include <fstream>
#include <memory>
#include <numeric>
#include <string>

#include "base/clock.h"
#include "decode/draft_models.h"
#include "decode/generation.h"
#include "engine/footprint.h"
#include "support/shared.h"
#include "support/test_model.h"

namespace foretoken {
namespace {

uint64_t anonymous_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("RssAnon:")) return std::stoull(line.substr(8)) * 1024;
  return 0;
}

class MemoryUse : public ::testing::TestWithParam<const char*> {
 protected:
  // What earlier tests freed goes back to the system now, and what is freed later at once, so that growth is what is taken.
  void SetUp() override {
    ::mallopt(M_MMAP_THRESHOLD, 128 << 10);
    ::malloc_trim(0);
  }
};

void expect_close(const char* what, uint64_t planned, uint64_t actual, uint64_t slack) {
  const double ratio = static_cast<double>(actual) / static_cast<double>(planned);
  ::testing::Test::RecordProperty(what, std::to_string(planned) + " planned, " + std::to_string(actual) + " taken");
  printf("%-12s planned %10.2f MiB, taken %10.2f MiB, ratio %.3f\n", what, static_cast<double>(planned) / (1 << 20), static_cast<double>(actual) / (1 << 20), ratio);
  EXPECT_LE(actual, planned + planned / 10 + slack) << what;
  EXPECT_GE(actual + slack, planned - planned / 10) << what;
}

TEST_P(MemoryUse, IsWhatTheFootprintSays) {
  const std::filesystem::path path = test::demo_dir(GetParam());
  FORETOKEN_NEEDS_DEMO(GetParam());
  constexpr int kThreads = 2, kLanes = 2, kChunk = 512;
  constexpr int64_t kContext = 1100;
  auto bundle = test::value_or_throw(Bundle::open(path));
  const auto config = test::value_or_throw(ModelConfig::from_bundle(bundle));
  const auto backend = test::value_or_throw(make_cpu_backend({.threads = kThreads}));
  const DraftSettings settings;
  const DraftResolution resolution = resolve_drafters(bundle, config, settings);
  const WeightSizes sizes = test::value_or_throw(weight_sizes(bundle, config, resolution, settings));

  const uint64_t before = anonymous_bytes();
  const auto weights = test::value_or_throw(Weights::load(bundle, config, *backend));
  const uint64_t with_weights = anonymous_bytes();
  expect_close("weights", sizes.packed, with_weights - before, 2 << 20);

  const TargetOptions options{.max_rows = kChunk, .kv_format = KvFormat::kBF16};
  const auto drafts = DraftModels::load(bundle, config, weights, *backend, settings, options.kv_format, kChunk);
  const uint64_t with_drafters = anonymous_bytes();
  if (sizes.drafter > 0) expect_close("drafters", sizes.drafter, with_drafters - with_weights, 2 << 20);

  DrafterShapes shapes{.copy = true, .mtp = drafts->mtp() != nullptr, .block = drafts->block() ? &drafts->block()->config() : nullptr};
  const ModelFootprint footprint = footprint_of(config, sizes, shapes, {.kv_format = options.kv_format, .tape_rows = options.tape_rows, .threads = kThreads});

  TargetModel target(config, weights, *backend, options);
  std::vector<std::unique_ptr<LaneState>> lanes;
  std::vector<std::unique_ptr<Generation>> answers;
  const SteadyClock clock;
  std::vector<TokenId> prompt;
  for (int64_t i = 0; i < kContext; ++i) prompt.push_back(static_cast<TokenId>((i * 7919 + i / 13) % std::min(config.vocab, 4000)));
  for (int lane = 0; lane < kLanes; ++lane) {
    lanes.push_back(target.make_lane());
    GenerationOptions generation{.max_tokens = 12, .prefill_chunk = kChunk};
    generation.sampling.temperature = 1.0f;
    answers.push_back(std::make_unique<Generation>(target, *lanes.back(), generation, clock,
                                                   Speculation{.drafters = drafts->make(), .options = {}, .memory = &drafts->memory()}));
    ASSERT_TRUE(answers.back()->start(prompt));
    while (!answers.back()->finished()) ASSERT_TRUE(answers.back()->step());
  }
  // The widest pass that verifies: all rows want logits.
  std::vector<RowInput> inputs;
  for (int i = 0; i < options.tape_rows; ++i) inputs.push_back(text_row(prompt[static_cast<size_t>(i)], lanes[0]->length() + i));
  std::vector<int> rows(inputs.size());
  std::iota(rows.begin(), rows.end(), 0);
  const LaneRows lane_rows{.first_row = 0, .rows = options.tape_rows, .prefix = lanes[0]->length(), .settled = 0, .parent = {}};
  LaneState* one[] = {lanes[0].get()};
  target.forward({.inputs = inputs, .lanes = {&lane_rows, 1}, .logits_rows = rows}, one);

  const uint64_t slab = footprint.page * footprint.pages_per_slab, pages = target.pages().pages_in_use();
  const uint64_t tokens = static_cast<uint64_t>(kLanes) * kContext;
  const uint64_t pool = (pages * footprint.page + slab - 1) / slab * slab + tokens / kPageTokens * footprint.drafter_page + tokens * footprint.history_token;
  const uint64_t scratch = footprint.scratch_of({.rows = kChunk, .logits_rows = options.tape_rows, .lanes = 1, .context = kContext});
  printf("  lanes %.2f, pages %.2f, scratch %.2f MiB\n", static_cast<double>(kLanes * footprint.lane()) / (1 << 20), static_cast<double>(pool) / (1 << 20), static_cast<double>(scratch) / (1 << 20));
  expect_close("running", kLanes * footprint.lane() + pool + scratch, anonymous_bytes() - with_drafters, 2 << 20);
}

INSTANTIATE_TEST_SUITE_P(Models, MemoryUse, ::testing::Values("demo-dense", "demo-moe"));

}  // namespace
}  // namespace foretoken
