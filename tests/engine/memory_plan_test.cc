// Plans of memory for made-up machines and models: what is planned when there is enough, what shrinks in which order when there is not, and
// what a refusal says. Properties are checked over random models, machines and demands: a plan keeps within its limit, keeps every demand,
// and more memory never gives less of anything; a refusal's advice, followed, gives a plan.
#include "engine/memory_plan.h"

#include <gtest/gtest.h>

#include <random>

namespace foretoken {
namespace {

constexpr uint64_t kKiB = 1 << 10, kMiB = 1 << 20, kGiB = 1 << 30;

MachineFacts machine_with(uint64_t available) {
  return {.total_bytes = 64 * kGiB, .available_bytes = available, .limits = {}, .processors = 8, .notes = {}};
}

// About a model of 27 billion parameters at four bits, with a block drafter.
ModelFootprint large_model() {
  ModelFootprint f{.vocab = 248320, .max_positions = 262144, .program = 70 * kMiB, .weights = 14 * kGiB, .mapped = kGiB,
                   .drafter_weights = 2 * kGiB};
  f.state = 150 * kMiB;
  f.tape = 250 * kMiB;
  f.drafter_lane = 60 * kMiB;
  f.sampling = 3 * kMiB;
  f.history_token = 32;
  f.page = 2 * kMiB;
  f.drafter_page = 128 * kKiB;
  f.checkpoint = 200 * kMiB;
  f.scratch = {{.per_row = 400 * kKiB}, {.per_logits_row = 4 * 248320}, {.per_span = 64 * kKiB, .fixed = kMiB, .spare = true}};
  return f;
}

MemoryPlan planned(const MachineFacts& machine, const ModelFootprint& model, const EngineMemoryOptions& options = {}) {
  auto answer = plan_memory(machine, model, options);
  if (const auto* refusal = std::get_if<MemoryRefusal>(&answer)) {
    ADD_FAILURE() << refusal->error().message;
    return {};
  }
  return std::get<MemoryPlan>(std::move(answer));
}

MemoryRefusal refused(const MachineFacts& machine, const ModelFootprint& model, const EngineMemoryOptions& options = {}) {
  auto answer = plan_memory(machine, model, options);
  if (std::holds_alternative<MemoryPlan>(answer)) {
    ADD_FAILURE() << "a plan was made";
    return {};
  }
  return std::get<MemoryRefusal>(std::move(answer));
}

uint64_t item(const std::vector<MemoryItem>& items, std::string_view name) {
  for (const MemoryItem& one : items)
    if (one.name == name) return one.bytes;
  return 0;
}

TEST(MemoryPlan, EnoughMemoryGivesEverythingWanted) {
  const MemoryPlan plan = planned(machine_with(60 * kGiB), large_model());
  EXPECT_EQ(plan.lanes, kWantedLanes);
  EXPECT_GE(plan.context, kWantedContext);
  EXPECT_EQ(plan.prefill_chunk, kWantedChunk);
  EXPECT_EQ(plan.cache_ram, kMostCacheRam);
  EXPECT_GE(plan.pool_pages * kPageTokens, static_cast<uint64_t>(kWantedLanes * kWantedContext));
  EXPECT_TRUE(plan.notes.empty());
  EXPECT_LE(plan.bytes() + large_model().mapped, plan.limit);
  EXPECT_EQ(plan.limited_by, "the machine's available memory");
}

TEST(MemoryPlan, MappedWeightsAreReportedAndNotCounted) {
  const MemoryPlan plan = planned(machine_with(60 * kGiB), large_model());
  EXPECT_EQ(item(plan.items, "mapped weights"), kGiB);
  uint64_t sum = 0;
  for (const MemoryItem& one : plan.items) sum += one.kind == MemoryKind::kMapped ? 0 : one.bytes;
  EXPECT_EQ(plan.bytes(), sum);
  EXPECT_GT(sum, 20 * kGiB);
}

// Walking down from plenty, each quantity goes when those before it in the order are at their least.
TEST(MemoryPlan, WhatIsNotDemandedShrinksInOrder) {
  const ModelFootprint model = large_model();
  bool saw_less_cache = false, saw_less_pool = false, saw_fewer_lanes = false, saw_less_context = false, saw_smaller_chunk = false;
  for (uint64_t available = 60 * kGiB; available > 16 * kGiB; available -= 16 * kMiB) {
    auto answer = plan_memory(machine_with(available), model, {});
    const auto* plan = std::get_if<MemoryPlan>(&answer);
    if (!plan) break;
    const bool less_pool = plan->pool_pages * kPageTokens < static_cast<uint64_t>(kWantedLanes * kWantedContext);
    if (less_pool) EXPECT_LE(plan->cache_ram, plan->limit / 100) << available;  // not even a slab of pages
    if (plan->lanes < kWantedLanes) {
      EXPECT_TRUE(less_pool);
      EXPECT_EQ(plan->cache_ram, 0u);
    }
    if (plan->context < kWantedContext) EXPECT_EQ(plan->lanes, 1);
    if (plan->prefill_chunk < kWantedChunk) EXPECT_EQ(plan->context, kLeastContext);
    saw_less_cache |= plan->cache_ram < kMostCacheRam;
    saw_less_pool |= less_pool;
    saw_fewer_lanes |= plan->lanes == 2;
    saw_less_context |= plan->context < kWantedContext;
    saw_smaller_chunk |= plan->prefill_chunk < kWantedChunk;
    EXPECT_GE(item(plan->items, "working memory of a pass"), model.scratch_of({.rows = kLeastChunk, .logits_rows = 72, .lanes = 1}));
  }
  EXPECT_TRUE(saw_less_cache && saw_less_pool && saw_fewer_lanes && saw_less_context && saw_smaller_chunk);
}

TEST(MemoryPlan, DemandsAreKept) {
  const MemoryPlan plan = planned(machine_with(60 * kGiB), large_model(),
                                  {.lanes = 2, .context = 100000, .max_memory = 40 * kGiB, .cache_ram = kGiB, .prefill_chunk = 1000});
  EXPECT_EQ(plan.lanes, 2);
  EXPECT_EQ(plan.context, 100000);
  EXPECT_EQ(plan.cache_ram, kGiB);
  EXPECT_EQ(plan.prefill_chunk, 1000);
  EXPECT_EQ(plan.pass_rows, 1000);
  EXPECT_EQ(plan.limit, 40 * kGiB);
  EXPECT_EQ(plan.limited_by, "--max-memory");
}

TEST(MemoryPlan, LanesShareAPoolThatHoldsOneWholeContext) {
  const MemoryPlan plan = planned(machine_with(40 * kGiB), large_model(), {.lanes = 4, .context = 200000});
  EXPECT_EQ(plan.lanes, 4);
  EXPECT_GE(plan.pool_pages * kPageTokens, static_cast<uint64_t>(200000 + 3 * kLaneShare));
  EXPECT_LT(plan.pool_pages * kPageTokens, 4u * 200000u);
}

TEST(MemoryPlan, ALargerLimitThanThereIsChangesNothing) {
  const MemoryPlan plan = planned(machine_with(30 * kGiB), large_model(), {.max_memory = 100 * kGiB});
  EXPECT_LT(plan.limit, 30 * kGiB);
  ASSERT_FALSE(plan.notes.empty());
  EXPECT_NE(plan.notes[0].find("--max-memory"), std::string::npos);
}

TEST(MemoryPlan, AControlGroupsLimitIsNamed) {
  MachineFacts machine = machine_with(60 * kGiB);
  machine.limits.push_back({.where = "/sys/fs/cgroup/job", .limit_bytes = 25 * kGiB, .used_bytes = kGiB});
  const MemoryPlan plan = planned(machine, large_model());
  EXPECT_LT(plan.limit, 24 * kGiB);
  EXPECT_EQ(plan.limited_by, "the memory limit of /sys/fs/cgroup/job");
}

// Weights in mapped files larger than memory run slowly, and with the least of everything; the plan says so.
TEST(MemoryPlan, MappedWeightsThatDoNotFitLeaveTheLeast) {
  ModelFootprint model = large_model();
  model.weights = 0;
  model.mapped = 20 * kGiB;
  const MemoryPlan plan = planned(machine_with(16 * kGiB), model);
  EXPECT_EQ(plan.lanes, 1);
  EXPECT_EQ(plan.context, kLeastContext);
  ASSERT_FALSE(plan.notes.empty());
  EXPECT_NE(plan.notes[0].find("read again"), std::string::npos);
}

TEST(MemoryPlan, ARefusalNamesEveryItemAndWhatWouldHelp) {
  const EngineMemoryOptions options{.lanes = 16, .context = 200000, .cache_ram = 20 * kGiB};
  const MemoryRefusal refusal = refused(machine_with(40 * kGiB), large_model(), options);
  EXPECT_EQ(refusal.code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(exit_status(refusal.error().code), 4);
  EXPECT_GT(refusal.needed_bytes(), refusal.limit);
  EXPECT_EQ(item(refusal.needed, "weights"), 14 * kGiB);
  EXPECT_EQ(item(refusal.needed, "prefix cache"), 20 * kGiB);
  const std::string text = refusal.error().message;
  for (const char* part : {"weights 14.0 GiB", "K/V pages", "recurrent state", "leaves"}) EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_FALSE(refusal.advice.empty());
}

TEST(MemoryPlan, AModelThatIsTooLargeIsRefusedWhateverIsAsked) {
  const MemoryRefusal refusal = refused(machine_with(10 * kGiB), large_model());
  ASSERT_EQ(refusal.advice.size(), 1u);
  EXPECT_TRUE(refusal.advice[0].option.empty());
  EXPECT_NE(refusal.error().message.find("smaller model"), std::string::npos);
}

TEST(MemoryPlan, ImpossibleDemandsAreTheUsersMistake) {
  for (const EngineMemoryOptions& options : {EngineMemoryOptions{.lanes = 0}, EngineMemoryOptions{.context = 0}, EngineMemoryOptions{.context = 300000},
                                             EngineMemoryOptions{.prefill_chunk = 0}}) {
    const MemoryRefusal refusal = refused(machine_with(60 * kGiB), large_model(), options);
    EXPECT_EQ(refusal.code, ErrorCode::kUsage);
    EXPECT_EQ(exit_status(refusal.error().code), 2);
  }
}

TEST(MemoryPlan, AMachineThatSaysNothingNeedsALimit) {
  EXPECT_EQ(refused({}, large_model()).advice.at(0).option, "--max-memory");
  EXPECT_EQ(planned({}, large_model(), {.max_memory = 30 * kGiB}).limit, 30 * kGiB);
}

// ---- Random models, machines and demands

struct World {
  ModelFootprint model;
  EngineMemoryOptions options;
  uint64_t available;
};

World random_world(uint32_t seed) {
  std::mt19937_64 random(seed);
  const auto upto = [&](uint64_t most) { return std::uniform_int_distribution<uint64_t>(0, most)(random); };
  const auto power = [&](int low, int high) { return (uint64_t{1} << (low + static_cast<int>(upto(static_cast<uint64_t>(high - low))))) + upto(1 << 20); };
  World w{.model = {.vocab = 1000, .max_positions = static_cast<int64_t>(power(11, 18)), .program = upto(64 * kMiB), .weights = power(20, 34),
                    .mapped = upto(1) ? power(20, 34) : 0, .drafter_weights = upto(kGiB)},
          .options = {},
          .available = power(24, 36)};
  w.model.state = power(16, 28);
  w.model.tape = power(16, 28);
  w.model.drafter_lane = upto(64 * kMiB);
  w.model.sampling = upto(4 * kMiB);
  w.model.history_token = upto(64);
  w.model.page = power(10, 21);
  w.model.pages_per_slab = std::max<uint64_t>(1, kMiB / w.model.page);
  w.model.drafter_page = upto(256 * kKiB);
  w.model.scratch = {{.per_row = upto(kMiB)}, {.per_logits_row = upto(kMiB)}, {.per_lane = upto(kMiB)}, {.per_span = upto(kMiB), .fixed = upto(kMiB), .spare = true}};
  if (upto(2) == 0) w.options.lanes = 1 + static_cast<int>(upto(15));
  if (upto(2) == 0) w.options.context = 1 + static_cast<int64_t>(upto(static_cast<uint64_t>(w.model.max_positions - 1)));
  if (upto(3) == 0) w.options.max_memory = power(24, 36);
  if (upto(2) == 0) w.options.cache_ram = upto(4 * kGiB);
  if (upto(3) == 0) w.options.prefill_chunk = 1 + static_cast<int>(upto(4095));
  return w;
}

uint64_t parsed(const std::string& value) {
  return value.back() == 'M' ? std::stoull(value) * kMiB : std::stoull(value);
}

EngineMemoryOptions following(EngineMemoryOptions options, const MemoryAdvice& advice) {
  if (advice.option == "--lanes") options.lanes = static_cast<int>(parsed(advice.value));
  if (advice.option == "--max-context") options.context = static_cast<int64_t>(parsed(advice.value));
  if (advice.option == "--cache-ram") options.cache_ram = parsed(advice.value);
  if (advice.option == "--prefill-chunk") options.prefill_chunk = static_cast<int>(parsed(advice.value));
  if (advice.option == "--max-memory") options.max_memory = parsed(advice.value);
  return options;
}

TEST(MemoryPlan, PropertiesOverRandomWorlds) {
  int plans = 0, refusals = 0, advices = 0;
  for (uint32_t seed = 0; seed < 4000; ++seed) {
    const World w = random_world(seed);
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto answer = plan_memory(machine_with(w.available), w.model, w.options);
    if (const auto* plan = std::get_if<MemoryPlan>(&answer)) {
      ++plans;
      EXPECT_LE(plan->bytes(), plan->limit);
      EXPECT_LE(plan->limit, w.available);
      EXPECT_LE(plan->limit, w.options.max_memory.value_or(UINT64_MAX));
      EXPECT_EQ(plan->lanes, w.options.lanes.value_or(plan->lanes));
      EXPECT_EQ(plan->context, w.options.context.value_or(plan->context));
      EXPECT_EQ(plan->cache_ram, w.options.cache_ram.value_or(plan->cache_ram));
      EXPECT_EQ(plan->prefill_chunk, w.options.prefill_chunk.value_or(plan->prefill_chunk));
      EXPECT_GE(plan->pool_pages * kPageTokens, static_cast<uint64_t>(plan->context));
      EXPECT_GE(plan->pass_rows, plan->prefill_chunk);
      EXPECT_LE(plan->context, w.model.max_positions);
      EXPECT_EQ(item(plan->items, "working memory of a pass"),
                w.model.scratch_of({.rows = plan->pass_rows, .logits_rows = std::max(w.options.decode_rows, plan->lanes), .lanes = plan->lanes,
                                    .context = static_cast<int64_t>(plan->pool_pages * kPageTokens)}));
    } else {
      ++refusals;
      const auto& refusal = std::get<MemoryRefusal>(answer);
      EXPECT_GT(refusal.needed_bytes(), refusal.limit);
      EXPECT_FALSE(refusal.advice.empty());
      for (const MemoryAdvice& advice : refusal.advice) {
        if (advice.option.empty()) continue;
        ++advices;
        EXPECT_TRUE(std::holds_alternative<MemoryPlan>(plan_memory(machine_with(w.available), w.model, following(w.options, advice))))
            << advice.option << " " << advice.value;
      }
    }
  }
  EXPECT_GT(plans, 500);
  EXPECT_GT(refusals, 500);
  EXPECT_GT(advices, 200);
}

TEST(MemoryPlan, MoreMemoryNeverGivesLessOfAnything) {
  int rises = 0;
  for (uint32_t seed = 0; seed < 400; ++seed) {
    World w = random_world(seed);
    w.options.max_memory.reset();
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::optional<MemoryPlan> last;
    const uint64_t base = w.model.weights + w.model.drafter_weights + (seed % 2 ? w.model.mapped : 0), top = base + 12 * kGiB;
    for (uint64_t available = base; available < top; available += (top - base) / 60) {
      auto answer = plan_memory(machine_with(available), w.model, w.options);
      const auto* plan = std::get_if<MemoryPlan>(&answer);
      if (!plan) {
        EXPECT_FALSE(last) << "a plan with less memory, and none with " << available;
        continue;
      }
      if (last) {
        EXPECT_GE(plan->lanes, last->lanes);
        EXPECT_GE(plan->context, last->context);
        EXPECT_GE(plan->pool_pages, last->pool_pages);
        EXPECT_GE(plan->prefill_chunk, last->prefill_chunk);
        rises += plan->bytes() > last->bytes();
      }
      last = *plan;
    }
  }
  EXPECT_GT(rises, 1000);
}

// A card of 24 GiB that holds 18 GiB by now: lanes, pages and cached prefixes share what is left, whatever the weights were thought to take, and
// the sum stays below the card's memory. Demands are kept or refused by the device's name.
TEST(MemoryPlan, BesideTheWeightsOfADevice) {
  const BackendMemory card{.total_bytes = 24 * kGiB, .free_bytes = 6 * kGiB};
  auto answer = plan_beside_weights(card, large_model(), {});
  ASSERT_TRUE(std::holds_alternative<MemoryPlan>(answer));
  const MemoryPlan plan = std::get<MemoryPlan>(std::move(answer));
  EXPECT_EQ(plan.items[0].bytes, 18 * kGiB);
  EXPECT_EQ(item(plan.items, "weights"), 0u);
  EXPECT_LE(plan.bytes(), plan.limit);
  EXPECT_LT(plan.limit, 24 * kGiB);
  EXPECT_GT(plan.bytes(), 20 * kGiB);
  EXPECT_GE(plan.context, kLeastContext);
  EXPECT_LT(plan.context, 262144);
  EXPECT_NE(plan.limited_by.find("device"), std::string::npos);

  answer = plan_beside_weights(card, large_model(), {.context = 200000});
  ASSERT_TRUE(std::holds_alternative<MemoryRefusal>(answer));
  EXPECT_NE(std::get<MemoryRefusal>(answer).error().message.find("the device"), std::string::npos);

  // --max-memory counts what is there already.
  answer = plan_beside_weights(card, large_model(), {.max_memory = 21 * kGiB});
  ASSERT_TRUE(std::holds_alternative<MemoryPlan>(answer));
  EXPECT_LE(std::get<MemoryPlan>(answer).bytes(), 21 * kGiB);
}

TEST(MemoryPlan, HostTier) {
  EXPECT_EQ(host_cache_bytes(machine_with(60 * kGiB), std::nullopt), 30 * kGiB);
  EXPECT_EQ(host_cache_bytes(machine_with(60 * kGiB), 3 * kGiB), 3 * kGiB);
  EXPECT_EQ(host_cache_bytes(machine_with(60 * kGiB), 0), 0u);
}

}  // namespace
}  // namespace foretoken
