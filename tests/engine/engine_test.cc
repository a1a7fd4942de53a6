// The engine: whatever shares a pass, was restored, preempted or cancelled, every answer is the one the request has alone on a cold lane.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include "support/engine_rig.h"
#include "support/run_rules.h"

namespace foretoken {
namespace {

using test::EngineBench;
using test::EngineRig;
using test::Heard;
using test::Ids;
using test::text_like;

SamplingParams sampling_of(float temperature, uint64_t seed) {
  SamplingParams s;
  s.temperature = temperature;
  if (temperature > 0) {
    s.top_p = 0.95f;
    s.top_k = 20;
  }
  s.seed = seed;
  return s;
}

// Twelve requests of all kinds over one to five lanes, arriving at different steps: each answer is its solo answer. The solo answers
// differ from each other, and the drafters proposed and were rejected.
TEST(Engine, LanesChangeNothing) {
  EngineRig& rig = EngineRig::embedded();
  for (const int lanes : {1, 2, 5}) {
    EngineBench bench(rig, {.lanes = lanes, .max_context = 400});
    std::map<RequestId, const EngineRig::Plain*> expected;
    std::map<Ids, int> distinct;
    for (int i = 0; i < 12; ++i) {
      const Ids prompt = text_like(10 + 17 * (i % 5), i % 7);
      const SamplingParams sampling = sampling_of(i % 3 == 0 ? 0.0f : i % 3 == 1 ? 0.7f : 1.0f, 7 + static_cast<uint64_t>(i));
      Request request{.prompt = prompt, .sampling = sampling, .max_tokens = 40 + i};
      request.speculate = i % 4 != 3;
      if (i % 4 == 1) {  // whatever the clock says, these draft
        request.routes = {Route::kBlock};
        request.speculation = SpeculationOptions{.verify = VerifyMode::kTree, .width = 12};
      }
      const RequestId id = bench.submit(std::move(request));
      expected[id] = &rig.plain(prompt, 40 + i, sampling);
      ++distinct[expected[id]->tokens];
      for (int s = 0; s < i % 4; ++s) bench.engine->step();
    }
    ASSERT_GE(distinct.size(), 10u);
    bench.run();
    for (const auto& [id, plain] : expected) {
      ASSERT_TRUE(bench.heard[id].result.has_value());
      EXPECT_EQ(bench.heard[id].tokens, plain->tokens) << "request " << id << " of " << lanes << " lanes";
      EXPECT_FALSE(bench.heard[id].result->error.has_value());
      EXPECT_EQ(bench.heard[id].result->reason, FinishReason::kLength);
    }
    const EngineStatus status = bench.engine->status();
    EXPECT_GT(status.speculation.drafted, 100);
    EXPECT_GT(status.speculation.drafted, status.speculation.accepted);
    EXPECT_EQ(status.finished, 12u);
    // Rows that ran are the prompts' that were not restored, and the cycles'.
    uint64_t prompt_tokens = 0, cached = 0;
    for (const auto& [id, heard] : bench.heard) {
      prompt_tokens += static_cast<uint64_t>(heard.result->prompt_tokens);
      cached += static_cast<uint64_t>(heard.result->cached_tokens);
    }
    EXPECT_EQ(status.prompt_rows + cached, prompt_tokens);
    EXPECT_EQ(bench.target->rows_run(), status.prompt_rows + static_cast<uint64_t>(status.speculation.verified_rows));
  }
}

// Requests under rules that foresee runs, on one lane and on several: each answer is that of plain decoding under its rules, and what was
// foreseen was drafted, accepted and rejected.
TEST(Engine, ForeseenRunsOnSeveralLanes) {
  EngineRig& rig = EngineRig::embedded();
  std::map<int, Ids> plain;
  for (const int lanes : {1, 4}) {
    for (const bool speculate : {false, true}) {
      if (!speculate && lanes > 1) continue;
      EngineBench bench(rig, {.lanes = lanes, .max_context = 400});
      const int vocab = bench.target->config().vocab;
      std::map<RequestId, int> numbers;
      for (int i = 0; i < 8; ++i) {
        Request request{.prompt = text_like(12 + 9 * i, i), .sampling = sampling_of(i % 2 == 0 ? 0.0f : 0.9f, 3 + static_cast<uint64_t>(i)), .max_tokens = 48};
        request.rules = std::make_unique<test::RunRules>(vocab, 30 + i);
        request.speculate = speculate;
        request.routes = {Route::kBlock, Route::kGrammar};
        request.speculation = SpeculationOptions{.verify = i % 3 == 0 ? VerifyMode::kTree : VerifyMode::kChain, .width = 9};
        numbers[bench.submit(std::move(request))] = i;
      }
      bench.run();
      for (const auto& [id, i] : numbers) {
        ASSERT_TRUE(bench.heard[id].result.has_value());
        ASSERT_FALSE(bench.heard[id].result->error.has_value());
        EXPECT_EQ(bench.heard[id].tokens.size(), 30u + static_cast<size_t>(i));
        if (!speculate) plain[i] = bench.heard[id].tokens;
        EXPECT_EQ(bench.heard[id].tokens, plain[i]) << "request " << i << " of " << lanes << " lanes";
      }
      const EngineStatus status = bench.engine->status();
      const SpeculationCounters::Of& of = status.speculation.of(Route::kGrammar);
      EXPECT_EQ(of.drafted > 0, speculate);
      if (speculate) {
        EXPECT_GT(of.accepted, 30);
        EXPECT_GT(of.verified - of.accepted, 30);
      }
    }
  }
  std::map<Ids, int> distinct;
  for (const auto& [i, tokens] : plain) ++distinct[tokens];
  EXPECT_EQ(distinct.size(), 8u);
}

// Every residue of a page, warm and cold: the lane's state behind the answer is the cold one's, the rows that ran and the restored tokens
// add up to the prompt, and an exact resend recomputes at most what lies behind the last place where a checkpoint was promised.
TEST(Engine, PromptLengthsWarmAndCold) {
  EngineRig& rig = EngineRig::embedded();
  EngineBench bench(rig, {.lanes = 1, .max_context = 400});
  for (int length = 30; length <= 30 + 2 * kPageTokens; ++length) {
    const Ids prompt = text_like(length, 100 + length);
    const EngineRig::Plain& plain = rig.plain(prompt, 6);
    for (const bool warm : {false, true}) {
      const uint64_t before = bench.target->rows_run();
      const Heard& heard = bench.answer({.prompt = prompt, .max_tokens = 6, .boundaries = {length - 4}});
      ASSERT_EQ(heard.tokens, plain.tokens) << "length " << length << (warm ? " warm" : " cold");
      const RequestResult& r = *heard.result;
      EXPECT_EQ(r.cached_tokens, warm ? length - 4 : 0) << "length " << length;
      EXPECT_EQ(bench.target->rows_run() - before, static_cast<uint64_t>(length - r.cached_tokens + r.counters.verified_rows));
      EXPECT_FALSE(r.cache_note.empty());
    }
    // All but the last token: still restored from the boundary.
    Ids shorter(prompt.begin(), prompt.end() - 1);
    const Heard& heard = bench.answer({.prompt = shorter, .max_tokens = 6, .boundaries = {}});
    ASSERT_EQ(heard.tokens, rig.plain(shorter, 6).tokens);
    EXPECT_EQ(heard.result->cached_tokens, length - 4);
  }
}

// A conversation of three turns whose thinking is dropped from the history, a changed earlier turn, and a date that moves in the system
// prompt: all answers are the cold ones, and the reuse is what the common prefixes allow.
TEST(Engine, Conversations) {
  EngineRig& rig = EngineRig::embedded();
  EngineBench bench(rig, {.lanes = 2, .max_context = 800});
  const Ids suffix = {7, 8, 9};  // what opens an answer
  Ids history = text_like(70, 1);
  int64_t last_boundary = 0;
  for (int turn = 0; turn < 3; ++turn) {
    const Ids user = text_like(25, 50 + turn);
    history.insert(history.end(), user.begin(), user.end());
    Ids prompt = history;
    prompt.insert(prompt.end(), suffix.begin(), suffix.end());
    const int64_t boundary = static_cast<int64_t>(history.size());
    const Heard& heard = bench.answer({.prompt = prompt, .max_tokens = 20, .boundaries = {boundary}});
    ASSERT_EQ(heard.tokens, rig.plain(prompt, 20).tokens);
    EXPECT_EQ(heard.result->cached_tokens, last_boundary);  // the thinking behind the old suffix is gone, all before it is there
    last_boundary = boundary;
    history.insert(history.end(), heard.tokens.begin() + 8, heard.tokens.end());
  }
  // Without thinking the whole answer stays: the next turn continues from its last computed token.
  Ids prompt = text_like(64, 9);
  const Heard& first = bench.answer({.prompt = prompt, .max_tokens = 20});
  Ids next = prompt;
  next.insert(next.end(), first.tokens.begin(), first.tokens.end());
  const Ids more = text_like(9, 77);
  next.insert(next.end(), more.begin(), more.end());
  const Heard& second = bench.answer({.prompt = next, .max_tokens = 20});
  EXPECT_EQ(second.tokens, rig.plain(next, 20).tokens);
  EXPECT_EQ(second.result->cached_tokens, 64 + 19);
  // Changed in the middle: the third prompt that shares a prefix restores from where the second one parted from the first.
  const Ids base = text_like(200, 23);
  int64_t cached[3];
  for (int i = 0; i < 3; ++i) {
    Ids changed = base;
    if (i > 0) changed[100] = i;
    const Heard& heard = bench.answer({.prompt = changed, .max_tokens = 5});
    EXPECT_EQ(heard.tokens, rig.plain(changed, 5).tokens);
    cached[i] = heard.result->cached_tokens;
  }
  EXPECT_EQ(cached[0], 0);
  EXPECT_EQ(cached[1], 0);
  EXPECT_EQ(cached[2], 100);
}

// Preempted at every cycle, again and again: the same tokens, and the lane's state behind each cycle is plain decoding's.
TEST(Engine, PreemptionAtEveryCycle) {
  for (const char* speculate : {"auto", "mtp", "off"}) {
    EngineRig& rig = EngineRig::embedded(speculate);
    for (const bool cache : {true, false}) {
      EngineBench bench(rig, {.lanes = 2, .max_context = 300, .cache = {.enabled = cache}});
      const Ids prompt = text_like(50, 3);
      const SamplingParams sampling = sampling_of(0.7f, 11);
      const EngineRig::Plain& plain = rig.plain(prompt, 40, sampling);
      const RequestId id = bench.submit({.prompt = prompt, .sampling = sampling, .max_tokens = 40});
      int preemptions = 0, compared = 0;
      size_t emitted = 0;
      while (!bench.engine->idle()) {
        bench.engine->step();
        const LaneState* lane = bench.engine->lane_of(id);
        if (lane == nullptr) continue;
        const auto hash = plain.hashes.find(lane->length());
        if (hash == plain.hashes.end()) continue;
        ASSERT_EQ(lane->hash(), hash->second) << speculate << " length " << lane->length();
        ++compared;
        if (bench.heard[id].tokens.size() > std::exchange(emitted, bench.heard[id].tokens.size())) preemptions += bench.engine->preempt(id);
      }
      EXPECT_EQ(bench.heard[id].tokens, plain.tokens) << speculate;
      EXPECT_EQ(bench.heard[id].result->preemptions, preemptions);
      EXPECT_GE(preemptions, 5);
      EXPECT_GE(compared, 5);
      if (cache) { EXPECT_EQ(bench.engine->status().recomputed_rows, 0u); }
      else { EXPECT_GT(bench.engine->status().recomputed_rows, 100u); }
    }
  }
}

// Fewer pages than the lanes want: the engine evicts, preempts and comes to the same answers; one that cannot fit alone is an error of its
// own.
TEST(Engine, PagesRunOut) {
  EngineRig& rig = EngineRig::embedded();
  EngineBench bench(rig, {.lanes = 4, .max_context = 200, .pages = 12});
  std::map<RequestId, const EngineRig::Plain*> expected;
  for (int i = 0; i < 8; ++i) {
    const Ids prompt = text_like(60 + 5 * i, 20 + i);
    expected[bench.submit({.prompt = prompt, .max_tokens = 60})] = &rig.plain(prompt, 60);
  }
  bench.run();
  for (const auto& [id, plain] : expected) EXPECT_EQ(bench.heard[id].tokens, plain->tokens) << "request " << id;
  const EngineStatus status = bench.engine->status();
  EXPECT_GT(status.preemptions, 0u);
  EXPECT_LE(status.pages_in_use, 12u);
}

// Late arrivals that share a cold prefix wait for the one that computes it.
TEST(Engine, ASharedPrefixIsComputedOnce) {
  EngineRig& rig = EngineRig::embedded();
  EngineBench bench(rig, {.lanes = 4, .max_context = 600, .schedule = {.prefill_chunk = 64}});
  Ids shared = text_like(300, 5);
  std::map<RequestId, Ids> prompts;
  for (int i = 0; i < 4; ++i) {
    Ids prompt = shared;
    for (const TokenId t : text_like(12, 60 + i)) prompt.push_back(t);
    prompts[bench.submit({.prompt = prompt, .max_tokens = 10})] = prompt;
  }
  bench.run();
  int64_t cached = 0;
  for (const auto& [id, prompt] : prompts) {
    EXPECT_EQ(bench.heard[id].tokens, rig.plain(prompt, 10).tokens);
    cached += bench.heard[id].result->cached_tokens;
  }
  EXPECT_EQ(cached, 3 * 288);  // from the last checkpoint before they part
  EXPECT_EQ(bench.engine->status().prompt_rows, 312u + 3 * 24);
}

// The n answers of one request share the prompt and differ in the draw.
TEST(Engine, Choices) {
  EngineRig& rig = EngineRig::embedded();
  EngineBench bench(rig, {.lanes = 3, .max_context = 300});
  const Ids prompt = text_like(100, 31);
  std::map<Ids, int> distinct;
  std::map<RequestId, SamplingParams> how;
  for (uint32_t choice = 0; choice < 3; ++choice) {
    SamplingParams s = sampling_of(1.0f, 99);
    s.choice = choice;
    how[bench.submit({.prompt = prompt, .sampling = s, .max_tokens = 16})] = s;
  }
  bench.run();
  for (const auto& [id, s] : how) {
    EXPECT_EQ(bench.heard[id].tokens, rig.plain(prompt, 16, s).tokens);
    ++distinct[bench.heard[id].tokens];
  }
  EXPECT_EQ(distinct.size(), 3u);
  EXPECT_LE(bench.engine->status().prompt_rows, 100u + 2 * 4);  // from the last full page on
}

// Cancels and deadlines, while waiting, reading the prompt and answering: what was emitted stands, the others go on.
TEST(Engine, CancelsAndDeadlines) {
  EngineRig& rig = EngineRig::embedded();
  EngineBench bench(rig, {.lanes = 1, .max_context = 2000, .schedule = {.prefill_chunk = 32}});
  const Ids prompt = text_like(90, 8);
  const RequestId answering = bench.submit({.prompt = prompt, .max_tokens = 500});
  const RequestId waiting = bench.submit({.prompt = text_like(90, 9), .max_tokens = 10});
  const RequestId overdue = bench.submit({.prompt = text_like(90, 10), .max_tokens = 10, .deadline = rig.clock.now()});
  const RequestId last = bench.submit({.prompt = text_like(90, 11), .max_tokens = 10});
  while (bench.heard[answering].tokens.size() < 5) bench.engine->step();
  bench.engine->cancel(waiting);
  bench.engine->cancel(answering);
  bench.engine->cancel(12345);
  bench.run();
  EXPECT_EQ(bench.heard[answering].result->reason, FinishReason::kCancelled);
  EXPECT_EQ(bench.heard[waiting].result->reason, FinishReason::kCancelled);
  EXPECT_TRUE(bench.heard[waiting].tokens.empty());
  EXPECT_EQ(bench.heard[overdue].result->error->code, ErrorCode::kTimeout);
  const Ids& emitted = bench.heard[answering].tokens;
  EXPECT_EQ(emitted, Ids(rig.plain(prompt, 500).tokens.begin(), rig.plain(prompt, 500).tokens.begin() + static_cast<ptrdiff_t>(emitted.size())));
  EXPECT_EQ(bench.heard[last].tokens, rig.plain(text_like(90, 11), 10).tokens);
}

// Between two requests everything but the cached prefixes goes, the weights too, and comes back: the second one is restored all the same.
TEST(Engine, ReleasedWhileIdle) {
  EngineRig& rig = EngineRig::embedded("mtp");
  EngineBench bench(rig, {.lanes = 2, .max_context = 300});
  const Ids prompt = text_like(100, 71);
  const EngineRig::Plain& plain = rig.plain(prompt, 12);
  EXPECT_EQ(bench.answer({.prompt = prompt, .max_tokens = 12}).tokens, plain.tokens);
  bench.engine->release_lanes();
  test::TestModel& m = *rig.model;
  m.weights = {};
  m.weights = test::value_or_throw(Weights::load(m.bundle, m.config, *m.backend));
  const Heard& again = bench.answer({.prompt = prompt, .max_tokens = 12});
  EXPECT_EQ(again.tokens, plain.tokens);
  EXPECT_EQ(again.result->cached_tokens, 96);
}

// Requests that cannot run are refused in one sentence; a full queue says so.
TEST(Engine, Refusals) {
  EngineRig& rig = EngineRig::embedded();
  EngineBench bench(rig, {.lanes = 1, .max_context = 64, .queue = 2});
  EXPECT_EQ(bench.engine->submit({.prompt = {}}).error().code, ErrorCode::kUsage);
  EXPECT_EQ(bench.engine->submit({.prompt = {-1}}).error().code, ErrorCode::kUsage);
  EXPECT_EQ(bench.engine->submit({.prompt = text_like(65, 1)}).error().code, ErrorCode::kUsage);
  SamplingParams bad;
  bad.top_p = 0;
  EXPECT_EQ(bench.engine->submit({.prompt = {5}, .sampling = bad}).error().code, ErrorCode::kUsage);
  bench.submit({.prompt = text_like(60, 1), .max_tokens = 100});
  bench.submit({.prompt = text_like(9, 2), .max_tokens = 0});
  EXPECT_EQ(bench.engine->submit({.prompt = {5}}).error().code, ErrorCode::kBusy);
  bench.run();
  // The answer ends where the context does.
  EXPECT_EQ(bench.heard[1].tokens.size(), 5u);
  EXPECT_EQ(bench.heard[1].result->reason, FinishReason::kLength);
  EXPECT_TRUE(bench.heard[2].tokens.empty());
}

// A request without tokens to answer ends before it has a lane, even one that another's event submits in the middle of a step.
TEST(Engine, NoTokensNoLane) {
  EngineRig& rig = EngineRig::embedded();
  EngineBench bench(rig, {.lanes = 2, .max_context = 64});
  Engine& engine = *bench.engine;
  std::vector<std::pair<FinishReason, int64_t>> ended;  // reasons and tokens of the requests that events submitted
  const auto submit_empty = [&] {
    Request request{.prompt = text_like(9, 2), .max_tokens = 0};
    request.events = [&](const RequestEvent& e) {
      ASSERT_EQ(e.kind, RequestEvent::Kind::kFinished);
      ended.emplace_back(e.result->reason, e.result->answer_tokens);
    };
    ASSERT_TRUE(engine.submit(std::move(request)).ok());
  };
  RequestId first = 0;
  for (int i = 0; i < 2; ++i) {  // one that is cancelled while it waits, one that runs
    Request request{.prompt = text_like(20, i), .max_tokens = 5};
    request.events = [&](const RequestEvent&) { submit_empty(); };
    const Result<RequestId> id = engine.submit(std::move(request));
    if (i == 0) first = *id;
  }
  engine.cancel(first);
  for (int idle = 0; !engine.idle(); idle = engine.step() ? 0 : idle + 1) ASSERT_LT(idle, 3);
  EXPECT_GE(ended.size(), 4u);
  for (const auto& [reason, tokens] : ended) {
    EXPECT_EQ(reason, FinishReason::kLength);
    EXPECT_EQ(tokens, 0);
  }
  EXPECT_EQ(bench.target->rows_run(), engine.status().prompt_rows + engine.status().decode_rows);
  EXPECT_EQ(engine.status().prompt_rows, 20u);
}

// Stop tokens and callbacks end an answer at the exact token inside an accepted block, whoever shares the pass.
TEST(Engine, StopsAtTheExactToken) {
  EngineRig& rig = EngineRig::embedded();
  const Ids prompt = text_like(60, 13);
  const Ids& plain = rig.plain(prompt, 40).tokens;
  EngineBench bench(rig, {.lanes = 4, .max_context = 300});
  std::map<RequestId, size_t> expected;
  for (size_t at = 0; at < plain.size(); at += 3) {
    auto seen = std::make_shared<size_t>(0);
    Request request{.prompt = prompt, .max_tokens = 40};
    request.ends = [seen, at](TokenId) { return ++*seen == at + 1; };
    expected[bench.submit(std::move(request))] = at + 1;
  }
  bench.run();
  for (const auto& [id, size] : expected) {
    EXPECT_EQ(bench.heard[id].tokens, Ids(plain.begin(), plain.begin() + static_cast<ptrdiff_t>(size)));
    EXPECT_EQ(bench.heard[id].result->reason, FinishReason::kStop);
  }
}

}  // namespace
}  // namespace foretoken
