// What the engine costs and brings: time to the first token with a cached prefix, tokens per second over lanes with and without speculation,
// its own share of a cycle, and the cost of a token over the context. Arms alternate in one process; figures are medians over rounds.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "cohort.h"
#include "engine/engine.h"
#include "timing.h"

namespace foretoken {
namespace {

struct Options {
  std::string model = "models/demo-dense", measure, cohort = "bench/cohort.json";
  std::vector<int64_t> lengths = {1024, 2048, 4096, 8192, 16384, 32768};
  int rounds = 5, threads = 0, tokens = 64, lanes = 4, prompt = 4096;
};

// Ids with the statistics of nothing; good enough where only the time counts.
std::vector<TokenId> filler(int64_t length, uint64_t seed, int vocab) {
  std::vector<TokenId> ids;
  for (int64_t i = 0; i < length; ++i) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    ids.push_back(static_cast<TokenId>(200 + (seed >> 33) % static_cast<uint64_t>(std::min(vocab, 4000) - 200)));
  }
  return ids;
}

class Bench {
 public:
  Bench(const Options& o, app::LoadedModel& model) : o_(o), model_(model) {}

  EngineOptions options(int lanes, int64_t context, bool cache) const {
    EngineOptions e{.lanes = lanes, .max_context = context};
    e.cache.enabled = cache;
    e.cache.limit_bytes = size_t{2} << 30;
    return e;
  }

  // Seconds until the first token of `prompt`.
  double first_token(Engine& engine, const std::vector<TokenId>& prompt, int64_t boundary) {
    double seconds = 0;
    Request request{.prompt = prompt, .max_tokens = 1, .boundaries = {boundary}};
    request.speculate = false;
    request.events = [&](const RequestEvent& e) {
      if (e.kind == RequestEvent::Kind::kFinished) seconds = e.result->queue_s + e.result->prefill_s;
    };
    if (!engine.submit(std::move(request))) throw std::runtime_error("refused");
    while (!engine.idle()) engine.step();
    return seconds;
  }

  void prefix() {
    std::vector<double> cold, warm;
    for (int round = 0; round <= o_.rounds; ++round) {
      Engine engine(model_.target(), nullptr, options(1, o_.prompt + 64, true), clock_);
      const auto prompt = filler(o_.prompt, static_cast<uint64_t>(round) + 1, model_.config().vocab);
      const double c = first_token(engine, prompt, o_.prompt - 8), w = first_token(engine, prompt, o_.prompt - 8);
      if (round == 0) continue;
      cold.push_back(c);
      warm.push_back(w);
    }
    fmt::print("first token of {} prompt tokens: cold {:.1f} ms, cached {:.2f} ms: {:.2f} %\n", o_.prompt, median(cold) * 1e3, median(warm) * 1e3,
               100 * median(warm) / median(cold));
  }

  // From an answer's last token until the engine could go on: its end reported, what it computed published in memory and handed to a disk tier.
  Status end() {
    std::string folder = (std::filesystem::temp_directory_path() / "engine-bench-XXXXXX").string();
    if (!::mkdtemp(folder.data())) return Error{ErrorCode::kIo, folder + ": cannot be made"};
    PosixFiles files;
    std::vector<double> waits;
    {
      const auto disk = DiskTier::open({.folder = folder, .fingerprint = "bench", .page_bytes = model_.target().pages().layout().page_bytes()}, files, clock_);
      Engine engine(model_.target(), model_.drafts(), options(1, o_.prompt + o_.tokens + 64, true), clock_, disk.get());
      for (int round = -1; round < o_.rounds; ++round) {
        Request request{.prompt = filler(o_.prompt, static_cast<uint64_t>(round) + 7, model_.config().vocab), .max_tokens = o_.tokens, .boundaries = {o_.prompt - 8}};
        TimePoint last;
        request.events = [&](const RequestEvent& e) {
          if (e.kind == RequestEvent::Kind::kTokens) last = clock_.now();
        };
        if (!engine.submit(std::move(request))) throw std::runtime_error("refused");
        while (!engine.idle()) engine.step();
        if (round >= 0) waits.push_back(seconds_between(last, clock_.now()));
      }
    }
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
    fmt::print("from the last token to the end, {} prompt tokens, {} of the answer, memory and disk tier: median {:.2f} ms, longest {:.2f} ms\n", o_.prompt, o_.tokens,
               median(waits) * 1e3, *std::max_element(waits.begin(), waits.end()) * 1e3);
    return {};
  }

  struct Rate {
    double tokens_per_second, overhead, per_cycle;
  };
  // Aggregate decode rate of `prompts` answered together, from the moment that all of them decode.
  Rate rate(const std::vector<std::vector<TokenId>>& prompts, bool speculate, int tokens) {
    Engine engine(model_.target(), speculate ? model_.drafts() : nullptr, options(static_cast<int>(prompts.size()), 4096, false), clock_);
    size_t started = 0, finished = 0, emitted = 0;
    for (const auto& prompt : prompts) {
      Request request{.prompt = prompt, .max_tokens = tokens};
      request.events = [&](const RequestEvent& e) {
        if (e.kind == RequestEvent::Kind::kTokens) {
          started += e.first == 0;
          emitted += e.count;
        }
        finished += e.kind == RequestEvent::Kind::kFinished;
      };
      if (!engine.submit(std::move(request))) throw std::runtime_error("refused");
    }
    while (started < prompts.size()) engine.step();
    const size_t before = emitted;
    const EngineStatus at = engine.status();
    const TimePoint begin = clock_.now();
    while (finished == 0 && !engine.idle()) engine.step();  // until the first one ends, all lanes are busy
    const double seconds = seconds_between(begin, clock_.now());
    const EngineStatus end = engine.status();
    const double rate = static_cast<double>(emitted - before) / seconds;
    while (!engine.idle()) engine.step();
    return {rate, (end.other_s - at.other_s) / (end.decode_s - at.decode_s),
            static_cast<double>(emitted - before) / static_cast<double>(end.decode_passes - at.decode_passes) / static_cast<double>(prompts.size())};
  }

  void lanes() {
    std::map<int, std::vector<double>> rates;
    std::vector<double> overheads;
    for (int round = 0; round <= o_.rounds; ++round)
      for (const int lanes : {1, 2, o_.lanes, 2 * o_.lanes}) {
        std::vector<std::vector<TokenId>> prompts;
        for (int i = 0; i < lanes; ++i) prompts.push_back(filler(64, static_cast<uint64_t>(i) + 1, model_.config().vocab));
        const Rate r = rate(prompts, false, o_.tokens);
        if (round == 0) continue;
        rates[lanes].push_back(r.tokens_per_second);
        overheads.push_back(r.overhead);
      }
    for (const auto& [lanes, values] : rates)
      fmt::print("{} lanes, plain: {:.1f} tokens/s, {:.2f}x one lane\n", lanes, median(values), median(values) / median(rates[1]));
    fmt::print("engine's own share of a step: {:.2f} %\n", 100 * median(overheads));
  }

  Status speculation() {
    ASSIGN_OR_RETURN(const std::vector<bench::Prompt> cohort, bench::load_cohort(model_, o_.cohort));
    std::map<std::string, std::vector<std::vector<TokenId>>> by_class;
    for (const bench::Prompt& p : cohort) by_class[p.kind].push_back(p.ids);
    std::vector<double> overheads;
    for (auto& [kind, prompts] : by_class) {
      while (static_cast<int>(prompts.size()) < o_.lanes) prompts.push_back(prompts[prompts.size() % by_class[kind].size()]);
      prompts.resize(static_cast<size_t>(o_.lanes));
      std::vector<double> ratios, cycles;
      for (int round = -1; round < o_.rounds; ++round) {
        const bool first = round % 2 == 0;
        const Rate one = rate(prompts, first, o_.tokens), two = rate(prompts, !first, o_.tokens);
        const Rate& fast = first ? one : two;
        const Rate& plain = first ? two : one;
        if (round < 0) continue;
        ratios.push_back(fast.tokens_per_second / plain.tokens_per_second);
        cycles.push_back(fast.per_cycle);
        overheads.push_back(fast.overhead);
      }
      fmt::print("{} lanes, {}: {:.2f}x plain, {:.2f} tokens per cycle and lane\n", o_.lanes, kind, median(ratios), median(cycles));
    }
    fmt::print("engine's own share of a step: {:.2f} %\n", 100 * median(overheads));
    return {};
  }

  void context() {
    for (const int64_t length : o_.lengths) {
      Engine engine(model_.target(), nullptr, options(1, length + o_.tokens + 8, false), clock_);
      std::vector<double> decode, prefill;
      Request request{.prompt = filler(length, 1, model_.config().vocab), .max_tokens = o_.tokens};
      double prefill_s = 0, decode_s = 0;
      request.events = [&](const RequestEvent& e) {
        if (e.kind != RequestEvent::Kind::kFinished) return;
        prefill_s = e.result->prefill_s;
        decode_s = e.result->decode.decode_s;
      };
      if (!engine.submit(std::move(request))) throw std::runtime_error("refused");
      while (!engine.idle()) engine.step();
      fmt::print("context {}: {:.3f} ms a token, prompt {:.0f} tokens/s\n", length, decode_s * 1e3 / (o_.tokens - 1), static_cast<double>(length) / prefill_s);
    }
  }

 private:
  const Options& o_;
  app::LoadedModel& model_;
  SteadyClock clock_;
};

Status run(const Options& o) {
  app::CommonOptions common{.model = o.model, .threads = o.threads};
  const app::SpeculationFlags flags{.speculate = o.measure == "speculation" || o.measure == "end" ? "auto" : "off"};
  ASSIGN_OR_RETURN(auto model, app::LoadedModel::load(common, &flags));
  Bench bench(o, *model);
  fmt::print("{}: {}\n", o.model, model->backend().info().detail);
  if (o.measure == "prefix") bench.prefix();
  if (o.measure == "lanes") bench.lanes();
  if (o.measure == "speculation") TRY(bench.speculation());
  if (o.measure == "context") bench.context();
  if (o.measure == "end") TRY(bench.end());
  return {};
}

}  // namespace
}  // namespace foretoken

int main(int argc, char** argv) {
  foretoken::Options o;
  CLI::App program("The engine: cached prefixes, lanes, speculation over lanes, context");
  program.add_option("measure", o.measure, "prefix, lanes, speculation, context or end")->required()->check(CLI::IsMember({"prefix", "lanes", "speculation", "context", "end"}));
  program.add_option("--model,-m", o.model, "bundle")->capture_default_str();
  program.add_option("--cohort", o.cohort, "JSON list of prompts")->capture_default_str();
  program.add_option("--rounds", o.rounds, "measured rounds")->check(CLI::PositiveNumber);
  program.add_option("--threads,-t", o.threads, "threads (0: all)")->check(CLI::Range(0, 64));
  program.add_option("--tokens,-n", o.tokens, "of each answer")->check(CLI::Range(2, 4096));
  program.add_option("--lanes", o.lanes, "lanes")->check(CLI::Range(1, 64));
  program.add_option("--prompt", o.prompt, "prompt tokens of `prefix`")->check(CLI::Range(16, 1 << 20));
  program.add_option("--lengths", o.lengths, "contexts of `context`")->delimiter(',');
  CLI11_PARSE(program, argc, argv);
  if (const auto status = foretoken::run(o); !status) {
    fmt::print(stderr, "engine_bench: {}\n", status.error().message);
    return foretoken::exit_status(status.error().code);
  }
  return 0;
}
