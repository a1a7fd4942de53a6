// The host tier: prefixes that had to leave a backend's own memory come back with the same bytes, whenever their copies
// are done, and a backend without such memory has none. Answers are compared with plain decoding on an ordinary
// backend.
#include "engine/host_tier.h"

#include <gtest/gtest.h>

#include "support/engine_rig.h"
#include "support/far_backend.h"
#include "support/scripted_clock.h"
#include "support/simulated_files.h"

namespace foretoken {
namespace {

using test::EngineBench;
using test::EngineRig;
using test::FarBackend;
using test::Ids;
using test::text_like;

constexpr size_t kPlenty = size_t{1} << 30;

// The embedded model behind memory of its own; transfers are done up to `late` polls after they began.
struct FarRig {
  explicit FarRig(int late = 0) {
    auto made = std::make_unique<FarBackend>(test::cpu_backend(Isa::kAuto, 1));
    backend = made.get();
    rig = EngineRig::load(std::filesystem::path(FORETOKEN_SOURCE_DIR) / "models" / "demo-dense", "auto",
                          KvFormat::kBF16, std::move(made));
    backend->set_late(late);
  }
  static FarRig& shared(int late) {
    static FarRig r;
    r.backend->set_late(late);
    return r;
  }
  std::unique_ptr<EngineRig> rig;
  FarBackend* backend = nullptr;
};

HostTierStatistics host(const EngineBench& bench) { return *bench.engine->status().host; }

// Conversations that together need several times the pages there are, in turns: each turn continues from the tier,
// whenever copies are done, and every answer is the ordinary backend's. The same without a tier computes again what the
// tier keeps.
TEST(HostTier, ConversationsComeBack) {
  EngineRig& plain = EngineRig::embedded();
  for (const int late : {0, 9}) {
    FarRig& far = FarRig::shared(late);
    std::map<bool, uint64_t> prompt_rows;
    for (const bool tier : {true, false}) {
      if (!tier && late > 0) continue;  // as before
      EngineBench bench(*far.rig,
                        {.lanes = 2, .max_context = 400, .pages = 20, .cache = {.host_bytes = tier ? kPlenty : 0}});
      std::vector<Ids> histories;
      for (int i = 0; i < 6; ++i) histories.push_back(text_like(90 + 7 * i, i));
      int64_t restored = 0;
      for (int turn = 0; turn < 3; ++turn) {
        std::vector<RequestId> ids;
        for (const Ids& history : histories)
          ids.push_back(bench.submit(
              {.prompt = history, .max_tokens = 20, .boundaries = {static_cast<int64_t>(history.size()) - 1}}));
        bench.run();
        for (size_t i = 0; i < ids.size(); ++i) {
          const test::Heard& heard = bench.heard[ids[i]];
          ASSERT_FALSE(heard.result->error.has_value()) << heard.result->error->message;
          ASSERT_EQ(heard.tokens, plain.plain(histories[i], 20).tokens)
              << "late " << late << " turn " << turn << " conversation " << i;
          if (tier && turn > 0) ASSERT_GE(heard.result->cached_tokens, 90) << "turn " << turn << " conversation " << i;
          restored += heard.result->cached_tokens;
          histories[i].insert(histories[i].end(), heard.tokens.begin(), heard.tokens.end());
          for (const TokenId t : text_like(9, 70 + turn)) histories[i].push_back(t);
        }
      }
      const EngineStatus status = bench.engine->status();
      prompt_rows[tier] = status.prompt_rows;
      ASSERT_EQ(status.host.has_value(), tier);
      EXPECT_LE(status.pages_in_use, 20u);
      if (!tier) continue;
      EXPECT_GE(status.host->hits, 10u);
      EXPECT_GE(status.host->moved_in, 10u);
      EXPECT_GE(status.host->moved_out, 10u);
      EXPECT_GT(status.host->tokens_in, 1000u);
      EXPECT_GT(status.host->bytes_in, 1000u * 1000u);
      EXPECT_EQ(status.host->dropped, 0u);
      EXPECT_EQ(status.host->no_room, 0u);
      EXPECT_GT(status.host->entries, 6u);
      EXPECT_GE(static_cast<uint64_t>(restored), status.restored_tokens);
    }
    if (late == 0) EXPECT_LT(2 * prompt_rows[true], prompt_rows[false]);
  }
}

// More lanes than pages for them: requests are suspended, their memory goes to the host, and every state behind a cycle
// is plain decoding's.
TEST(HostTier, SuspendedRequests) {
  EngineRig& plain = EngineRig::embedded();
  for (const int late : {0, 5}) {
    FarRig& far = FarRig::shared(late);
    EngineBench bench(*far.rig, {.lanes = 5, .max_context = 260, .pages = 14, .cache = {.host_bytes = kPlenty}});
    std::map<RequestId, const EngineRig::Plain*> expected;
    for (int i = 0; i < 8; ++i) {
      const Ids prompt = text_like(60 + 9 * i, 20 + i);
      SamplingParams sampling;
      sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;
      sampling.seed = 5 + static_cast<uint64_t>(i);
      Request request{.prompt = prompt, .sampling = sampling, .max_tokens = 60};
      request.priority = i % 3 == 2 ? 1 : 0;
      expected[bench.submit(std::move(request))] = &plain.plain(prompt, 60, sampling);
    }
    int compared = 0;
    for (int idle = 0; !bench.engine->idle();) {
      idle = bench.engine->step() ? 0 : idle + 1;
      ASSERT_LT(idle, 1000);
      for (const auto& [id, answer] : expected) {
        const LaneState* lane = bench.engine->lane_of(id);
        const auto hash = lane != nullptr ? answer->hashes.find(lane->length()) : answer->hashes.end();
        if (hash == answer->hashes.end()) continue;
        ASSERT_EQ(lane->hash(), hash->second) << "request " << id << " length " << lane->length();
        ++compared;
      }
    }
    for (const auto& [id, answer] : expected) EXPECT_EQ(bench.heard[id].tokens, answer->tokens) << "request " << id;
    const EngineStatus status = bench.engine->status();
    EXPECT_GT(status.preemptions, 3u);
    EXPECT_GT(status.host->hits, 3u);
    EXPECT_GT(compared, 40);
    // When requests are suspended depends on the clock; each would compute sixty rows and more again.
    EXPECT_LT(status.recomputed_rows, 12 * status.preemptions) << status.preemptions << " preemptions";
    EXPECT_LE(status.pages_in_use, 14u);
  }
}

// A tier that holds little: its limit is kept at every step, what goes is counted, and answers are the same. One that
// holds nothing whole moves nothing.
TEST(HostTier, LimitsAreKept) {
  EngineRig& plain = EngineRig::embedded();
  FarRig& far = FarRig::shared(3);
  const size_t checkpoint = far.rig->model->config.recurrent_bytes_per_lane();
  for (const size_t limit : {checkpoint / 2, 3 * checkpoint, 6 * checkpoint}) {
    EngineBench bench(*far.rig, {.lanes = 2, .max_context = 300, .pages = 12, .cache = {.host_bytes = limit}});
    for (int i = 0; i < 10; ++i) {
      const Ids prompt = text_like(80 + 3 * (i % 7), i % 7);
      const RequestId id = bench.submit({.prompt = prompt, .max_tokens = 12});
      while (!bench.engine->idle()) {
        bench.engine->step();
        ASSERT_LE(host(bench).bytes, limit);
      }
      ASSERT_EQ(bench.heard[id].tokens, plain.plain(prompt, 12).tokens);
    }
    const HostTierStatistics s = host(bench);
    EXPECT_EQ(s.limit_bytes, limit);
    EXPECT_GT(bench.engine->status().cache.evictions, 5u);
    if (limit < checkpoint) {
      EXPECT_EQ(s.moved_out, 0u);
      EXPECT_GT(s.no_room, 5u);
      EXPECT_EQ(s.bytes, 0u);
    } else {
      EXPECT_GT(s.moved_out, 5u);
      EXPECT_GT(s.dropped, 2u);
    }
  }
}

// A request that is cancelled, or overdue, while its prefix is on the way: it ends at once, the lane goes to the next
// one, and the prefix serves whoever asks later.
TEST(HostTier, CancelledOnTheWay) {
  EngineRig& plain = EngineRig::embedded();
  FarRig& far = FarRig::shared(0);
  EngineBench bench(*far.rig, {.lanes = 1, .max_context = 300, .cache = {.host_bytes = kPlenty}});
  const Ids prompt = text_like(120, 4), other = text_like(50, 5);
  bench.answer({.prompt = prompt, .max_tokens = 8});
  while (bench.engine->cache().evict()) {
  }
  EXPECT_EQ(bench.engine->status().pages_in_use, 0u);
  far.backend->set_late(1000);
  const RequestId cancelled = bench.submit({.prompt = prompt, .max_tokens = 8});
  bench.engine->step();
  ASSERT_EQ(bench.engine->status().loading, 1);
  EXPECT_TRUE(bench.engine->waits_for_copies());
  EXPECT_EQ(bench.engine->lane_of(cancelled)->length(), 0);
  bench.engine->cancel(cancelled);
  const RequestId next = bench.submit({.prompt = other, .max_tokens = 8});
  bench.run();
  EXPECT_EQ(bench.heard[cancelled].result->reason, FinishReason::kCancelled);
  EXPECT_TRUE(bench.heard[cancelled].tokens.empty());
  EXPECT_EQ(bench.heard[next].tokens, plain.plain(other, 8).tokens);
  const test::Heard& heard = bench.answer({.prompt = prompt, .max_tokens = 8});
  EXPECT_EQ(heard.tokens, plain.plain(prompt, 8).tokens);
  EXPECT_GE(heard.result->cached_tokens, 96);
  EXPECT_GE(host(bench).moved_in, 1u);
}

// Two requests whose prefix is away: it crosses once, and both continue from it.
TEST(HostTier, OneWayForTwo) {
  EngineRig& plain = EngineRig::embedded();
  FarRig& far = FarRig::shared(6);
  EngineBench bench(*far.rig, {.lanes = 2, .max_context = 300, .cache = {.host_bytes = kPlenty}});
  const Ids shared = text_like(128, 8);
  bench.answer({.prompt = shared, .max_tokens = 4});
  while (bench.engine->cache().evict()) {
  }
  std::map<RequestId, Ids> prompts;
  for (int i = 0; i < 2; ++i) {
    Ids prompt = shared;
    for (const TokenId t : text_like(11, 30 + i)) prompt.push_back(t);
    prompts[bench.submit({.prompt = prompt, .max_tokens = 10})] = prompt;
  }
  bench.run();
  for (const auto& [id, prompt] : prompts) {
    EXPECT_EQ(bench.heard[id].tokens, plain.plain(prompt, 10).tokens);
    EXPECT_EQ(bench.heard[id].result->cached_tokens, 128);
  }
  EXPECT_EQ(host(bench).moved_in, 1u);
  EXPECT_EQ(host(bench).hits, 2u);
}

// Four of them where the pages suffice for the prefix and three lanes' own: the fourth waits for its page.
TEST(HostTier, EveryLaneNeedsAPageOfItsOwn) {
  EngineRig& plain = EngineRig::embedded();
  FarRig& far = FarRig::shared(6);
  EngineBench bench(*far.rig, {.lanes = 4, .max_context = 145, .pages = 7, .cache = {.host_bytes = kPlenty}});
  const Ids shared = text_like(128, 8);
  bench.answer({.prompt = shared, .max_tokens = 1});
  while (bench.engine->cache().evict()) {
  }
  std::map<RequestId, Ids> prompts;
  for (int i = 0; i < 4; ++i) {
    Ids prompt = shared;
    for (const TokenId t : text_like(9, 40 + i)) prompt.push_back(t);
    prompts[bench.submit({.prompt = prompt, .max_tokens = 6, .speculate = false})] = prompt;
  }
  bench.run();
  for (const auto& [id, prompt] : prompts) {
    ASSERT_FALSE(bench.heard[id].result->error.has_value()) << bench.heard[id].result->error->message;
    EXPECT_EQ(bench.heard[id].tokens, plain.plain(prompt, 6).tokens);
  }
  EXPECT_GE(host(bench).moved_in, 1u);
}

// A conversation that grows crosses page by page once: the pages that an earlier turn left on the host are shared by
// later ones.
TEST(HostTier, SharedPagesCrossOnce) {
  FarRig& far = FarRig::shared(0);
  EngineBench bench(*far.rig, {.lanes = 1, .max_context = 600, .cache = {.host_bytes = kPlenty}});
  const size_t page = far.rig->model->target->pages().layout().page_bytes(),
               recurrent = far.rig->model->config.recurrent_bytes_per_lane();
  const Ids base = text_like(320, 2);
  uint64_t crossed = 0;
  for (int turn = 0; turn < 3; ++turn) {
    const Ids prompt(base.begin(), base.begin() + 256 + 32 * turn);
    bench.answer({.prompt = prompt, .max_tokens = 1, .boundaries = {static_cast<int64_t>(prompt.size())}});
    while (bench.engine->cache().evict()) {
    }
    const uint64_t now = host(bench).bytes_out;
    if (turn > 0) EXPECT_LE(now - crossed, 3 * recurrent + 4 * page) << "turn " << turn;
    else EXPECT_GE(now - crossed, 8 * page + recurrent);
    crossed = now;
  }
  // A checkpoint is few pieces.
  EXPECT_LT(far.backend->counts().pieces, 20 * far.backend->counts().transfers);
}

// Publishing brings no recurrent memory to the host: neither at a prompt's boundaries nor in an answer, nor when what
// was published is continued. With a disk it does, once for every entry that goes there.
TEST(HostTier, PublishingBringsNoStateHere) {
  FarRig& far = FarRig::shared(0);
  const uint64_t recurrent = far.rig->model->config.recurrent_bytes_per_lane();
  testing::SimulatedFiles files;
  const test::ScriptedClock clock;
  for (const bool with_disk : {false, true}) {
    const auto disk = with_disk ? DiskTier::open({.folder = "/cache",
                                                  .fingerprint = "far",
                                                  .page_bytes = far.rig->model->target->pages().layout().page_bytes(),
                                                  .least_free_bytes = 0,
                                                  .background = false},
                                                 files, clock)
                                : nullptr;
    EngineBench bench(*far.rig, {.lanes = 1, .max_context = 600, .cache = {.checkpoint_every = 32}}, disk.get());
    const uint64_t before = far.backend->counts().downloaded;
    Ids history = text_like(150, 7);
    for (int turn = 0; turn < 3; ++turn) {
      const test::Heard& heard =
          bench.answer({.prompt = history, .max_tokens = 70, .boundaries = {64, 149}, .speculate = false});
      history.insert(history.end(), heard.tokens.begin(), heard.tokens.end());
    }
    const uint64_t published = bench.engine->status().cache.published,
                   brought = far.backend->counts().downloaded - before;
    EXPECT_GE(published, 9u);
    if (!with_disk) {
      EXPECT_EQ(brought, 0u);
      continue;
    }
    EXPECT_GE(disk->statistics().stored, 1u);
    EXPECT_GE(brought, recurrent * disk->statistics().stored);
  }
}

// The disk tier beside it: what the host keeps is not asked of the disk, and what is nowhere else comes from there.
TEST(HostTier, BesideTheDisk) {
  EngineRig& plain = EngineRig::embedded();
  FarRig& far = FarRig::shared(4);
  testing::SimulatedFiles files;
  const test::ScriptedClock clock;
  const auto open = [&] {
    return DiskTier::open({.folder = "/cache",
                           .fingerprint = "far",
                           .page_bytes = far.rig->model->target->pages().layout().page_bytes(),
                           .least_free_bytes = 0,
                           .least_gain_tokens = 32,
                           .background = false},
                          files, clock);
  };
  const Ids prompt = text_like(150, 12);
  {
    const auto disk = open();
    EngineBench bench(*far.rig, {.lanes = 1, .max_context = 300, .cache = {.host_bytes = kPlenty}}, disk.get());
    bench.answer({.prompt = prompt, .max_tokens = 8, .boundaries = {140}});
    disk->flush();
    while (bench.engine->cache().evict()) {
    }
    const test::Heard& again = bench.answer({.prompt = prompt, .max_tokens = 8});
    EXPECT_EQ(again.tokens, plain.plain(prompt, 8).tokens);
    EXPECT_GE(again.result->cached_tokens, 128);
    EXPECT_EQ(host(bench).hits, 1u);
    EXPECT_EQ(disk->statistics().hits, 0u);
    EXPECT_GT(disk->statistics().stored, 0u);
  }
  const auto disk = open();
  EngineBench bench(*far.rig, {.lanes = 1, .max_context = 300, .cache = {.host_bytes = kPlenty}}, disk.get());
  const test::Heard& heard = bench.answer({.prompt = prompt, .max_tokens = 8});
  EXPECT_EQ(heard.tokens, plain.plain(prompt, 8).tokens);
  EXPECT_EQ(disk->statistics().hits, 1u);
  EXPECT_EQ(host(bench).hits, 0u);
  while (bench.engine->cache().evict()) {
  }
  EXPECT_EQ(bench.answer({.prompt = prompt, .max_tokens = 8}).tokens, heard.tokens);
  EXPECT_EQ(disk->statistics().hits, 1u);
  EXPECT_EQ(host(bench).hits, 1u);
}

// Copies that go on beside passes: when pages run short, what leaves next is copied before it has to leave.
TEST(HostTier, CopiesAhead) {
  FarRig& far = FarRig::shared(2);
  EngineBench bench(*far.rig, {.lanes = 1, .max_context = 300, .pages = 40, .cache = {.host_bytes = kPlenty}});
  for (int i = 0; i < 14; ++i) bench.answer({.prompt = text_like(100, i), .max_tokens = 12});
  const EngineStatus status = bench.engine->status();
  EXPECT_GT(status.cache.evictions, 10u);
  EXPECT_GT(status.host->moved_out, 10u);
  EXPECT_LT(status.host->waits, status.cache.evictions / 2);
}

TEST(HostTier, NoneWhereMemoryIsTheHosts) {
  EngineRig& rig = EngineRig::embedded();
  EngineBench bench(rig, {.lanes = 1, .max_context = 300, .pages = 12, .cache = {.host_bytes = kPlenty}});
  for (int i = 0; i < 4; ++i) bench.answer({.prompt = text_like(100, i), .max_tokens = 4});
  EXPECT_FALSE(bench.engine->status().host.has_value());
  EXPECT_GT(bench.engine->status().cache.evictions, 0u);
}

}  // namespace
}  // namespace foretoken
