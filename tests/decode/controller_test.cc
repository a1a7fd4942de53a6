// The controller without tensors: costs, calibration, choices under scripted clocks, and its regret on traces recorded from real weights.
#include "decode/controller.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "decode/rig.h"
#include "support/traces.h"
#include "text/tokenizer.h"

namespace foretoken {
namespace {

using namespace test;

// Costs are close where measured, linear between, continue by the measured slope beyond, and follow a change of the machine's speed.
TEST(Controller, CostCurve) {
  CostCurve curve;
  EXPECT_EQ(curve.at(1), 0);
  for (int i = 0; i < 20; ++i) {
    curve.observe(1, 1.0);
    curve.observe(9, 1.8);
  }
  EXPECT_NEAR(curve.at(1), 1.0, 0.01);
  EXPECT_NEAR(curve.at(5), 1.4, 0.05);
  EXPECT_NEAR(curve.at(17), 2.6, 0.2);
  curve.observe(9, 100);  // an outlier moves it little
  EXPECT_LT(curve.at(9), 3.0);
  for (int i = 0; i < 30; ++i) curve.observe(9, 3.6);  // everything is twice as slow now
  EXPECT_NEAR(curve.at(9), 3.6, 0.15);
  EXPECT_GT(curve.at(1), 1.3);
}

// Estimates that are too high by a factor are corrected within tens of observations, and good ones are left alone.
TEST(Controller, CalibrationLearns) {
  Calibration c;
  EXPECT_FLOAT_EQ(c.measured(Route::kMtp, 0.7f, 0), 0.7f);
  TestRandom random(5);
  for (int i = 0; i < 400; ++i) {
    c.record(Route::kMtp, 0.85f, 0, random.uniform() < 0.4);
    c.record(Route::kBlock, 0.85f, 0, random.uniform() < 0.85);
  }
  EXPECT_NEAR(c.measured(Route::kMtp, 0.85f, 0), 0.4, 0.15);
  EXPECT_NEAR(c.measured(Route::kBlock, 0.85f, 0), 0.85, 0.12);
  EXPECT_FLOAT_EQ(c.measured(Route::kMtp, 0.85f, 1), 0.85f);  // alternatives are another matter
}

// What one model taught ends with it: memories are separate objects, and a new one knows nothing.
TEST(Controller, MemoryBelongsToTheModel) {
  SpeculationMemory first;
  first.observe_verify(8, 100, 0.5);
  EXPECT_GT(first.verify_seconds(8, 100), 0);
  EXPECT_GT(first.verify_seconds(8, 5000), 0);  // another context bucket starts from the nearest
  SpeculationMemory second;
  EXPECT_EQ(second.verify_seconds(8, 100), 0);
}

// A toy generation's time under the controller, in plain passes per token.
double free_run(ScriptedDrafter::Guess guess, const Costs& costs, int tokens, const ToyTarget& target, bool copy = false) {
  ScriptedClock clock;
  std::vector<std::unique_ptr<Drafter>> drafters;
  drafters.push_back(std::make_unique<ScriptedDrafter>(std::move(guess), Route::kBlock, &clock, [&](int) { return costs.block; }));
  if (copy) drafters.push_back(make_lookup_drafter());
  Speculator speculator(std::move(drafters), {}, nullptr, clock);
  const SamplingParams sampling;
  TestRandom random(3);
  const auto answer = toy_generate(target, speculator, clock, {1, 2, 3}, tokens, sampling, [&](int rows) {
    return (1 + costs.row * (rows - 1)) * (1 + costs.noise * (2 * random.uniform() - 1));
  });
  EXPECT_EQ(answer.tokens, toy_plain(target, {1, 2, 3}, tokens, sampling));
  return answer.seconds / (tokens - 1);
}

// A drafter that is always wrong and sure of itself costs at most 2 % of plain decoding, from the first token on, whatever a row costs.
TEST(Controller, NeverMuchWorseThanPlain) {
  const ToyTarget target(200, 3, 12);
  const SamplingParams sampling;
  const auto wrong = [&](std::span<const TokenId> sequence, const DraftRequest& request, Draft& draft) {
    std::vector<TokenId> context(sequence.begin(), sequence.end());
    const TokenId truth = toy_token(target, context, sampling);
    for (int i = 0; i < std::min(request.depth, 7); ++i) draft.add((truth + 1 + i) % 200, i - 1, 0.95f);
  };
  for (const double row : {0.02, 0.1, 0.5})
    for (const double block : {0.2, 0.8, 1.5}) {
      const double seconds = free_run(wrong, {.name = "", .row = row, .block = block, .noise = 0.05}, 320, target, true);
      EXPECT_LT(seconds, 1.021) << "row " << row << " block " << block;
    }
}

// A drafter that is always right is used at once, and as wide as rows are cheap.
TEST(Controller, GoodDraftersAreUsed) {
  const ToyTarget target(200, 3, 12);
  const SamplingParams sampling;
  const auto right = [&](std::span<const TokenId> sequence, const DraftRequest& request, Draft& draft) {
    std::vector<TokenId> context(sequence.begin(), sequence.end());
    for (int i = 0; i < std::min(request.depth, 7); ++i) {
      context.push_back(toy_token(target, context, sampling));
      draft.add(context.back(), i - 1, 0.9f);
    }
  };
  const double cheap = free_run(right, {.name = "", .row = 0.03, .block = 0.5, .noise = 0.05}, 320, target);
  EXPECT_LT(cheap, 1.1 * (1 + 0.03 * 7 + 0.5) / 8);
  const double dear = free_run(right, {.name = "", .row = 1.2, .block = 0.5, .noise = 0.05}, 320, target);
  EXPECT_LT(dear, 1.021);  // every row costs more than the token it brings
}

// A drafter that a bad hour of the machine made look hopeless is found again: what it seemed to cost then is believed only as long as nobody
// could have looked again. The hour comes first, or behind answers that the drafter made fast.
TEST(Controller, ABadHourIsNotForever) {
  const ToyTarget target(200, 3, 12);
  const SamplingParams sampling;
  for (const auto& [good_answers, bad_cost] : {std::pair(0, 80.0), {10, 2.5}, {10, 12.0}, {10, 80.0}}) {
    SCOPED_TRACE(bad_cost);
    SpeculationMemory memory;
    double draft_cost = 0.5, drafted_seconds = 0;
    const auto answer = [&] {
      constexpr int kTokens = 100;
      ScriptedClock clock;
      std::vector<std::unique_ptr<Drafter>> drafters;
      drafters.push_back(std::make_unique<ScriptedDrafter>(
          [&](std::span<const TokenId> sequence, const DraftRequest& request, Draft& draft) {
            std::vector<TokenId> context(sequence.begin(), sequence.end());
            for (int i = 0; i < std::min(request.depth, 7); ++i) {
              context.push_back(draft_cost < 1 || i > 0 ? toy_token(target, context, sampling) : 0);
              draft.add(context.back(), i - 1, 0.9f);
            }
          },
          Route::kBlock, &clock,
          [&](int) {
            drafted_seconds += draft_cost;
            return draft_cost;
          }));
      Speculator speculator(std::move(drafters), {}, &memory, clock);
      return toy_generate(target, speculator, clock, {1, 2, 3}, kTokens, sampling, [](int rows) { return 1 + 0.03 * (rows - 1); }).seconds / (kTokens - 1);
    };
    for (int i = 0; i < good_answers; ++i) EXPECT_LT(answer(), 0.5);
    draft_cost = bad_cost;
    drafted_seconds = 0;
    for (int i = 0; i < 8; ++i) answer();
    EXPECT_GT(drafted_seconds, 0);  // it was tried, and lost
    EXPECT_GT(answer(), 0.98);
    draft_cost = 0.5;
    int answers = 0;
    while (answers < 200 && answer() > 0.5) ++answers;
    EXPECT_LT(answers, 100);
    for (int i = 0; i < 5; ++i) EXPECT_LT(answer(), 0.5) << "once found it stays in use";
  }
}

// ---- Regret on recorded traces

struct FixedPlan {
  std::string name;
  std::optional<Route> route;
  SpeculationOptions options;
};

std::vector<FixedPlan> fixed_plans() {
  std::vector<FixedPlan> plans = {{"plain", {}, {}}};
  for (const int k : {1, 2, 3, 5, 7}) plans.push_back({"mtp " + std::to_string(k), Route::kMtp, {.verify = VerifyMode::kChain, .width = k}});
  for (const int k : {3, 5, 7}) plans.push_back({"dflash chain " + std::to_string(k), Route::kBlock, {.verify = VerifyMode::kChain, .width = k}});
  for (const float t : {0.05f, 0.2f, 0.5f})
    plans.push_back({"dflash live " + std::to_string(t).substr(0, 4), Route::kBlock, {.verify = VerifyMode::kLive, .width = 7, .live_threshold = t}});
  for (const int n : {8, 16, 32, 64}) plans.push_back({"dflash tree " + std::to_string(n), Route::kBlock, {.verify = VerifyMode::kTree, .width = n}});
  for (const int n : {6, 12}) plans.push_back({"mtp tree " + std::to_string(n), Route::kMtp, {.verify = VerifyMode::kTree, .width = n}});
  for (const int k : {3, 7, 16, 64}) plans.push_back({"copy " + std::to_string(k), Route::kCopy, {.verify = VerifyMode::kChain, .width = k}});
  return plans;
}

std::vector<std::unique_ptr<Drafter>> recorded(const Trace& trace, std::span<const Route> routes, const Costs& costs, ScriptedClock& clock) {
  std::vector<std::unique_ptr<Drafter>> d;
  for (const Route route : routes) {
    if (route == Route::kCopy) d.push_back(make_lookup_drafter());
    else d.push_back(std::make_unique<RecordedDrafter>(trace, route, costs, clock));
  }
  return d;
}

Replayed replay_fixed(const Trace& trace, const FixedPlan& plan, const Costs& costs) {
  ScriptedClock clock;
  std::vector<Route> routes;
  if (plan.route) routes.push_back(*plan.route);
  Speculator speculator(recorded(trace, routes, costs, clock), plan.options, nullptr, clock);
  return replay(trace, speculator, clock, costs);
}

std::string chat(const std::string& user) {
  return "<|im_start|>user\n" + user + "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
}

std::vector<std::pair<std::string, std::string>> cohort() {
  const std::string code_a =
      "```python\ndef word_count(text):\n    counts = {}\n    for word in text.lower().split():\n        counts[word] = counts.get(word, 0) + 1\n"
      "    return counts\n\ndef longest(text):\n    best = ''\n    for word in text.split():\n        if len(word) > len(best):\n"
      "            best = word\n    return best\n```";
  const std::string code_b =
      "```python\ndef total(items):\n    result = 0\n    for item in items:\n        result = result + item\n    return result\n\n"
      "def mean(items):\n    if not items:\n        return 0\n    return total(items) / len(items)\n```";
  const std::string code_c =
      "```python\ndef read_lines(path):\n    with open(path) as handle:\n        lines = handle.readlines()\n    return [line.strip() for line in "
      "lines]\n\ndef count_lines(path):\n    return len(read_lines(path))\n```";
  return {{"chat", chat("What does the command tar do?")},
          {"chat", chat("What is the package zsh for?")},
          {"chat", chat("What does the word anchor mean?")},
          {"edit", chat("Rename `text` to `document` in this code:\n\n" + code_a)},
          {"edit", chat("Rename `items` to `values` in this code:\n\n" + code_b)},
          {"edit", chat("Rename `path` to `file_name` in this code:\n\n" + code_c)},
          {"structured", chat("Show this CSV as a Markdown table:\n\nid,name,color,qty\n1,rope,black,71\n2,knife,gray,5\n3,fork,purple,30\n"
                              "4,spoon,blue,74\n5,oven,blue,8")},
          {"structured", chat("List the numbers from 3 to 40 in steps of 4 as a JSON object.")},
          {"structured", "id,name,price\n1,apple,3.20\n2,pear,1.75\n3,plum,2.10\n"},
          {"prose", "The quick brown fox"},
          {"prose", "The library provides functions for"},
          {"code", "def fibonacci(n):\n"},
          {"code", "static int parse_header(const char *line, size_t length)\n{\n"}};
}

// Answers of at most `tokens` tokens, ended by the model's own stop tokens.
std::vector<Trace> record_all(const SamplingParams& sampling, const SamplingParams& draft_sampling, int tokens) {
  Rig& rig = Rig::dense();
  const auto tokenizer = value_or_throw(
      Tokenizer::from_json(value_or_throw(rig.model->bundle.side_file("tokenizer.json"))));
  std::vector<Trace> traces;
  const auto mtp = make_mtp_drafter(rig.model->config, *rig.mtp);
  const auto block = make_block_drafter(*rig.block);
  for (const auto& [name, text] : cohort())
    traces.push_back(record(*rig.model->target, mtp.get(), block.get(), name, value_or_throw(tokenizer.encode(text)), tokens, sampling,
                            draft_sampling));
  return traces;
}

// Over real traces and four machines, the controller's time is within 5 % of the best fixed plan that hindsight chooses for each class,
// summed over the classes. A class is three short answers here (50 to 300 plain passes), of which one trial draft is a percent or two:
// single classes get more room.
TEST(Controller, RegretOnRecordedTraces) {
  FORETOKEN_NEEDS_DEMO("demo-dense");
  const auto traces = record_all({}, {}, 112);
  const std::vector<Costs> machines = {{.name = "few cores", .row = 0.10, .mtp = 0.2, .block = 0.9, .noise = 0.1},
                                       {.name = "many cores", .row = 0.03, .mtp = 0.15, .block = 0.4, .noise = 0.1},
                                       {.name = "experts", .row = 0.25, .mtp = 0.25, .block = 0.6, .noise = 0.1},
                                       {.name = "dear rows", .row = 0.7, .mtp = 0.3, .block = 1.2, .noise = 0.1}};
  for (const Costs& costs : machines) {
    std::map<std::string, std::map<std::string, double>> seconds;  // [class][plan]
    std::map<std::string, double> own;
    SpeculationMemory memory;
    std::map<std::string, int64_t> chosen;
    constexpr int kRounds = 6;  // the first meets an empty memory and is not counted; the others differ in the noise of the clock
    for (int round = 0; round <= kRounds; ++round) {
      if (round == 1) own.clear();
      for (const Trace& trace : traces) {
        ScriptedClock clock;
        const Route all[] = {Route::kMtp, Route::kBlock, Route::kCopy};
        Speculator speculator(recorded(trace, all, costs, clock), {}, &memory, clock);
        own[trace.name] += replay(trace, speculator, clock, costs, 7 + static_cast<uint64_t>(round)).seconds / kRounds;
        for (const auto& [plan, cycles] : speculator.counters().plans) chosen[plan] += cycles;
      }
    }
    for (const FixedPlan& plan : fixed_plans())
      for (const Trace& trace : traces) seconds[trace.name][plan.name] += replay_fixed(trace, plan, costs).seconds;
    std::printf("%s:", costs.name.c_str());
    for (const auto& [plan, cycles] : chosen) std::printf(" %s %ld,", plan.c_str(), static_cast<long>(cycles));
    std::printf("\n");
    double total = 0, total_best = 0;
    for (const auto& [name, plans] : seconds) {
      const auto best = std::min_element(plans.begin(), plans.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
      std::printf("  %-10s plain %6.0f, best fixed %-16s %6.0f, controller %6.0f: regret %+.1f%%\n", name.c_str(), plans.at("plain"),
                  best->first.c_str(), best->second, own[name], 100 * (own[name] / best->second - 1));
      EXPECT_LT(own[name], 1.20 * best->second) << costs.name << ", " << name;
      total += own[name];
      total_best += best->second;
    }
    std::printf("  all classes: regret %+.1f%%\n", 100 * (total / total_best - 1));
    EXPECT_LT(total, 1.05 * total_best) << costs.name;
  }
}

// Tokens per cycle of chains and trees, per class: a tree of 16 nodes beats the chain it is built around.
TEST(Controller, TreesBeatChains) {
  FORETOKEN_NEEDS_DEMO("demo-dense");
  const Costs costs{.name = "any"};
  for (const float temperature : {0.0f, 0.7f}) {
    SamplingParams sampling;
    sampling.temperature = temperature;
    sampling.top_p = 0.95f;
    sampling.top_k = 20;
    sampling.seed = 11;
    const auto traces = record_all(sampling, sampling, 64);
    std::map<std::string, std::map<std::string, Replayed>> results;
    for (const FixedPlan& plan : fixed_plans())
      for (const Trace& trace : traces) {
        const Replayed r = replay_fixed(trace, plan, costs);
        for (const std::string& key : {trace.name, std::string("all")}) {
          results[plan.name][key].tokens += r.tokens;
          results[plan.name][key].cycles += r.cycles;
        }
      }
    std::printf("T=%.1f tokens per cycle\n", temperature);
    for (const FixedPlan& plan : fixed_plans()) {
      std::printf("  %-18s", plan.name.c_str());
      for (const auto& [name, r] : results[plan.name]) std::printf(" %s %.2f", name.c_str(), r.tokens_per_cycle());
      std::printf("\n");
    }
    EXPECT_GT(results["dflash tree 16"]["all"].tokens_per_cycle(), 1.05 * results["dflash chain 7"]["all"].tokens_per_cycle());
  }
}

}  // namespace
}  // namespace foretoken
