// The embedded model behind an engine, and what each request must answer: the same request alone on a cold lane, decoded plainly. Test-only.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "decode/draft_models.h"
#include "decode/generation.h"
#include "engine/engine.h"
#include "support/test_model.h"

namespace foretoken::test {

using Ids = std::vector<TokenId>;

struct EngineRig {
  std::unique_ptr<TestModel> model;
  std::unique_ptr<DraftModels> drafts;
  SteadyClock clock;

  static std::unique_ptr<EngineRig> load(const std::filesystem::path& path, const std::string& speculate = "auto",
                                         KvFormat kv = KvFormat::kBF16, std::unique_ptr<Backend> backend = cpu_backend(Isa::kAuto, 1)) {
    auto r = std::make_unique<EngineRig>();
    r->model = load_model(path, {.kv_format = kv}, std::move(backend));
    TestModel& m = *r->model;
    const DraftSettings settings = value_or_throw(DraftSettings::parse(speculate, ""));
    r->drafts = DraftModels::load(m.bundle, m.config, m.weights, *m.backend, settings, kv, m.target->options().max_rows);
    return r;
  }
  // Copy and the block drafter; with "mtp", the head.
  static EngineRig& embedded(const std::string& speculate = "auto") {
    static std::map<std::string, std::unique_ptr<EngineRig>> rigs;
    auto& rig = rigs[speculate];
    if (!rig) rig = load(std::filesystem::path(FORETOKEN_SOURCE_DIR) / "models" / "demo-dense", speculate);
    return *rig;
  }
  // A target of its own on the same weights, so that each engine has a page pool of its own.
  std::unique_ptr<TargetModel> make_target(int max_rows = 512) {
    return std::make_unique<TargetModel>(model->config, model->weights, *model->backend,
                                         TargetOptions{.max_rows = max_rows, .kv_format = model->target->options().kv_format});
  }

  struct Plain {
    Ids tokens;
    std::map<int64_t, std::string> hashes;  // of the lane by its length, from the prompt's end on
  };
  // Known once computed.
  const Plain& plain(const Ids& prompt, int64_t max_tokens, const SamplingParams& sampling = {}) {
    const auto key = std::tuple(prompt, max_tokens, sampling.temperature, sampling.seed, sampling.choice);
    if (const auto it = plain_.find(key); it != plain_.end()) return it->second;
    auto lane = model->target->make_lane();
    Generation g(*model->target, *lane, {.sampling = sampling, .max_tokens = max_tokens}, clock);
    Plain p;
    if (const Status s = g.start(prompt); !s) throw std::runtime_error(s.error().message);
    p.hashes[lane->length()] = lane->hash();
    while (!g.finished()) {
      if (const Status s = g.step(); !s) throw std::runtime_error(s.error().message);
      p.hashes[lane->length()] = lane->hash();
    }
    p.tokens.assign(g.tokens().begin(), g.tokens().end());
    return plain_.emplace(key, std::move(p)).first->second;
  }

 private:
  std::map<std::tuple<Ids, int64_t, float, uint64_t, uint32_t>, Plain> plain_;
};

// What an engine told of one request.
struct Heard {
  Ids tokens;
  std::optional<RequestResult> result;
  int64_t progress = 0;
};

// An engine with a target of its own.
struct EngineBench {
  EngineBench(EngineRig& r, EngineOptions options, DiskTier* disk = nullptr, int max_rows = 512)
      : rig(r), target(r.make_target(max_rows)), engine(std::make_unique<Engine>(*target, r.drafts.get(), options, r.clock, disk)) {}
  ~EngineBench() { engine.reset(); }

  // `heard[id]` collects what the engine tells.
  RequestId submit(Request request) {
    const RequestId expected = next;
    request.events = [this, expected](const RequestEvent& e) {
      Heard& h = heard[expected];
      EXPECT_EQ(e.id, expected);
      EXPECT_FALSE(h.result.has_value()) << "an event behind the last one";
      if (e.kind == RequestEvent::Kind::kProgress) {
        EXPECT_GE(e.prompt_done, h.progress);
        h.progress = e.prompt_done;
      }
      if (e.kind == RequestEvent::Kind::kTokens) {
        EXPECT_EQ(e.first, h.tokens.size());
        const auto tokens = e.sequence->tokens().subspan(e.first, e.count);
        h.tokens.insert(h.tokens.end(), tokens.begin(), tokens.end());
      }
      if (e.kind == RequestEvent::Kind::kFinished) h.result = *e.result;
    };
    const Result<RequestId> id = engine->submit(std::move(request));
    if (!id) throw std::runtime_error(id.error().message);
    if (*id != expected) throw std::runtime_error("request ids are not consecutive");
    next = *id + 1;
    return *id;
  }
  void run() {
    for (int idle = 0; !engine->idle(); idle = engine->step() ? 0 : idle + 1)
      if (idle > 100000) throw std::runtime_error("the engine stands still");
  }
  const Heard& answer(Request request) {
    const RequestId id = submit(std::move(request));
    run();
    return heard[id];
  }

  EngineRig& rig;
  std::unique_ptr<TargetModel> target;
  std::unique_ptr<Engine> engine;
  std::map<RequestId, Heard> heard;
  RequestId next = 1;
};

// Ids that look like text to the drafters: a passage, some of it twice.
inline Ids text_like(int length, int seed) {
  Ids ids;
  for (int i = 0; i < length; ++i) {
    const int at = i % 40 < 28 ? i : i - 20;
    ids.push_back(300 + (at * 37 + seed * 101) % 900);
  }
  return ids;
}

}  // namespace foretoken::test
