// Parts (a) row bits, (b) ids of every route, (e) prompt chunks, (f) forced drafters. Each compares against plain decoding of the same
// model, which it first shows not to be trivial.
#include "qualify/certify.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>

#include "decode/rows.h"

namespace foretoken {
namespace {

using Tokens = std::vector<TokenId>;

// A small generator for shapes and forced guesses: replayable, and nothing to do with sampling.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2654435761u + 1) {}
  uint32_t below(uint32_t bound) {
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<uint32_t>((state_ >> 33) % bound);
  }

 private:
  uint64_t state_;
};

std::vector<int64_t> every(size_t n) {
  std::vector<int64_t> all(n);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// First difference of two rows' bits; -1 when equal.
int64_t first_difference(const float* a, const float* b, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i])) return i;
  return -1;
}

struct PlainAnswer {
  Tokens tokens;
  std::string state;  // hash of the lane at the end
  int64_t length = 0;
};

// Guesses taken from a plain answer, bent on purpose.
class ForcedDrafter final : public Drafter {
 public:
  enum class Kind : uint8_t { kRight, kWrong, kRandom, kTurning, kBranching };
  ForcedDrafter(Kind kind, size_t prompt, const Tokens& answer, int vocab, int turn)
      : kind_(kind), prompt_(prompt), answer_(answer), vocab_(vocab), turn_(turn), random_(static_cast<uint64_t>(turn) + 17) {}

  Route route() const override { return Route::kScripted; }
  const DrafterNeeds& needs() const override { return needs_; }
  int deepest() const override { return kMtpDepth; }
  void restart(std::span<const TokenId>) override {}
  void observe(const Committed&) override {}
  void propose(const DraftRequest& request, Draft& draft) override {
    draft.by = Route::kScripted;
    const size_t at = static_cast<size_t>(request.position) - prompt_;
    for (int i = 0, parent = -1; i < request.depth && static_cast<int>(draft.nodes.size()) < request.nodes; ++i) {
      const size_t index = at + static_cast<size_t>(i);
      if (index >= answer_.size()) break;
      const TokenId right = answer_[index], wrong = (right + 1) % vocab_;
      const TokenId any = static_cast<TokenId>(random_.below(static_cast<uint32_t>(vocab_)));
      switch (kind_) {
        case Kind::kRight: parent = draft.add(right, parent, 0.9f); break;
        case Kind::kWrong: parent = draft.add(wrong, parent, 0.9f); break;
        case Kind::kRandom: parent = draft.add(random_.below(2) ? right : any, parent, 0.5f); break;
        case Kind::kTurning: parent = draft.add(i < turn_ ? right : wrong, parent, 0.9f); break;
        case Kind::kBranching: {  // a wrong sibling before the right one, at every step
          draft.add(wrong, parent, 0.6f, 0);
          if (static_cast<int>(draft.nodes.size()) < request.nodes) parent = draft.add(right, parent, 0.4f, 1);
          break;
        }
      }
    }
  }

 private:
  Kind kind_;
  size_t prompt_;
  const Tokens& answer_;
  int vocab_, turn_;
  Random random_;
  DrafterNeeds needs_;
};

class Certifier {
 public:
  Certifier(TargetModel& target, DraftModels& drafts, const CertifyOptions& options, const std::function<void(const CertifyCell&)>& progress)
      : target_(target), drafts_(drafts), options_(options), progress_(progress) {}

  Result<CertifyResult> run() {
    if (const Status done = cells(); !done && !failed()) return done.error();
    return std::move(result_);
  }

 private:
  // True once a cell failed and the caller wants no more: `finish` then ends the run through an error that `run` drops.
  bool failed() const { return options_.fail_fast && result_.certificate.verdict() == Verdict::kFail; }

  Status cells() {
    TRY(row_bits());
    TRY(chunks());
    for (const Route route : {Route::kCopy, Route::kMtp, Route::kBlock}) {
      if (!drafts_.has(route)) {
        const DraftResolution& r = drafts_.resolution();
        result_.absent.push_back(fmt::format("{}: {}", route_name(route), route == Route::kMtp ? r.head.reason : route == Route::kBlock ? r.drafter.reason : "switched off"));
        continue;
      }
      for (const VerifyMode mode : {VerifyMode::kChain, VerifyMode::kLive, VerifyMode::kTree})
        for (const float temperature : {0.0f, 0.7f, 1.0f}) TRY(route_cell({route}, mode, temperature));
    }
    for (const float temperature : {0.0f, 1.0f}) TRY(route_cell({}, VerifyMode::kAuto, temperature));
    return forced();
  }

  Status finish(CertifyCell cell) {
    if (progress_) progress_(cell);
    result_.certificate.cells.push_back(std::move(cell));
    if (failed()) return Error{ErrorCode::kCheckFailed, "a cell failed"};
    return {};
  }

  SamplingParams sampling(float temperature, size_t prompt) const {
    SamplingParams s;
    s.temperature = temperature;
    if (temperature > 0) {
      s.top_p = 0.95f;
      s.top_k = 20;
      s.seed = 0x9E3779B97F4A7C15ull * (prompt + 1);
    }
    return s;
  }

  struct Outcome {
    PlainAnswer answer;
    SpeculationCounters counters;
  };
  // One answer of `tokens` tokens; end tokens do not end it, so that every cell has its length.
  Result<Outcome> answer(size_t prompt, float temperature, Speculation speculation, int tokens, uint64_t round = 0) {
    auto lane = target_.make_lane();
    SamplingParams s = sampling(temperature, prompt);
    s.seed += round;
    Generation generation(target_, *lane, {.sampling = s, .max_tokens = tokens}, clock_, std::move(speculation));
    TRY(generation.start(options_.prompts[prompt]));
    while (!generation.finished()) TRY(generation.step());
    Outcome o;
    o.answer.tokens.assign(generation.tokens().begin(), generation.tokens().end());
    o.answer.length = lane->length();
    o.answer.state = lane->hash();
    o.counters = generation.counters();
    return o;
  }

  Result<const PlainAnswer*> plain(size_t prompt, float temperature, uint64_t round = 0) {
    const auto key = std::tuple(prompt, temperature, round);
    if (const auto it = plain_.find(key); it != plain_.end()) return &it->second;
    ASSIGN_OR_RETURN(Outcome o, answer(prompt, temperature, {}, options_.tokens, round));
    return &plain_.emplace(key, std::move(o.answer)).first->second;
  }

  // (a) Row i of a pass of any width or tree equals the same row alone, in logits, hidden rows and every layer's output.
  Status row_bits() {
    CertifyCell cell{.part = "rows", .name = fmt::format("widths 1 to {}, chains and trees", options_.widths)};
    const int layers = target_.config().layers;
    std::vector<int> taps(static_cast<size_t>(layers) + 1);
    std::iota(taps.begin(), taps.end(), -1);
    Random random(99);
    for (size_t p = 0; p < std::min<size_t>(options_.prompts.size(), 3); ++p) {
      ASSIGN_OR_RETURN(const PlainAnswer* reference, plain(p, 0.0f));
      const Tokens& prompt = options_.prompts[p];
      for (int width = 1; width <= options_.widths; ++width)
        for (const bool tree : {false, true}) {
          if (tree && width < 3) continue;
          std::vector<int16_t> parent;
          for (int r = 0; r < width; ++r)
            parent.push_back(static_cast<int16_t>(r == 0 ? -1 : tree ? static_cast<int>(random.below(static_cast<uint32_t>(r))) : r - 1));
          const auto pass = [&](LaneState& lane, std::span<const int> rows, bool together, std::vector<float>& logits, std::vector<float>& layer_rows) {
            std::vector<RowInput> inputs;
            std::vector<int> wanted;
            std::vector<int> depth(static_cast<size_t>(width));
            for (int r = 0; r < width; ++r) depth[static_cast<size_t>(r)] = parent[static_cast<size_t>(r)] < 0 ? 0 : depth[static_cast<size_t>(parent[static_cast<size_t>(r)])] + 1;
            for (size_t i = 0; i < rows.size(); ++i) {
              const int r = rows[i];
              inputs.push_back(text_row(reference->tokens[static_cast<size_t>(r)], lane.length() + (together ? depth[static_cast<size_t>(r)] : static_cast<int>(i))));
              wanted.push_back(static_cast<int>(i));
            }
            const LaneRows lane_rows{.rows = static_cast<int>(rows.size()), .prefix = lane.length(), .settled = together ? 0 : 1,
                                     .parent = together ? std::span<const int16_t>(parent) : std::span<const int16_t>()};
            LaneState* lanes[] = {&lane};
            const ForwardResult f = target_.forward({.inputs = inputs, .lanes = {&lane_rows, 1}, .logits_rows = wanted}, lanes, taps);
            for (int64_t i = 0; i < f.logits.rows; ++i) {
              logits.insert(logits.end(), f.logits.f32(i), f.logits.f32(i) + f.logits.cols);
              layer_rows.insert(layer_rows.end(), f.taps.f32(i), f.taps.f32(i) + f.taps.cols);
            }
          };
          auto lane = target_.make_lane();
          run_prompt(target_, *lane, prompt, 512, {}, [](int64_t, int64_t, const ForwardResult&) { return true; });
          std::vector<int> all(static_cast<size_t>(width));
          std::iota(all.begin(), all.end(), 0);
          std::vector<float> logits, layer_rows;
          pass(*lane, all, true, logits, layer_rows);
          // The path to the last row, one row at a time.
          std::vector<int> path;
          for (int r = width - 1; r >= 0; r = parent[static_cast<size_t>(r)]) path.insert(path.begin(), r);
          auto alone = target_.make_lane();
          run_prompt(target_, *alone, prompt, 512, {}, [](int64_t, int64_t, const ForwardResult&) { return true; });
          for (const int r : path) {
            std::vector<float> one_logits, one_rows;
            pass(*alone, {&r, 1}, false, one_logits, one_rows);
            const int first[] = {0};
            target_.commit(*alone, first);
            const int64_t columns = static_cast<int64_t>(one_rows.size()), hidden = target_.config().hidden;
            const int64_t vocab = static_cast<int64_t>(one_logits.size());
            const int64_t at_layer = first_difference(one_rows.data(), layer_rows.data() + r * columns, columns);
            const int64_t at_logit = first_difference(one_logits.data(), logits.data() + r * vocab, vocab);
            cell.compared_logits += vocab;
            if ((at_layer >= 0 || at_logit >= 0) && cell.verdict == Verdict::kPass) {
              cell.verdict = Verdict::kFail;
              cell.detail = at_layer >= 0 ? fmt::format("prompt {}, width {}{}: row {} differs first behind layer {}", p, width, tree ? " (tree)" : "", r, at_layer / hidden - 1)
                                          : fmt::format("prompt {}, width {}{}: row {} differs in the logit of token {}", p, width, tree ? " (tree)" : "", r, at_logit);
            }
          }
          target_.commit(*lane, path);
          ++cell.compared_states;
          if (lane->hash() != alone->hash() && cell.verdict == Verdict::kPass) {
            cell.verdict = Verdict::kFail;
            cell.detail = fmt::format("prompt {}, width {}{}: the committed state differs from decoding the path alone", p, width, tree ? " (tree)" : "");
          }
        }
    }
    return finish(std::move(cell));
  }

  // (e) The prompt in chunks of any size.
  Status chunks() {
    CertifyCell cell{.part = "chunks", .name = "prompt chunks of 1, 7, 64 and 512"};
    for (size_t p = 0; p < std::min<size_t>(options_.prompts.size(), 4); ++p) {
      const Tokens& prompt = options_.prompts[p];
      std::vector<float> first;
      std::string state;
      for (const int chunk : {512, 64, 7, 1}) {
        auto lane = target_.make_lane();
        std::vector<float> logits;
        run_prompt(target_, *lane, prompt, chunk, every(prompt.size()), [&](int64_t, int64_t, const ForwardResult& f) {
          for (int64_t i = 0; i < f.logits.rows; ++i) logits.insert(logits.end(), f.logits.f32(i), f.logits.f32(i) + f.logits.cols);
          return true;
        });
        if (first.empty()) {
          first = std::move(logits);
          state = lane->hash();
          continue;
        }
        cell.compared_logits += static_cast<int64_t>(first.size());
        ++cell.compared_states;
        const int64_t at = first_difference(first.data(), logits.data(), static_cast<int64_t>(first.size()));
        if ((at >= 0 || lane->hash() != state) && cell.verdict == Verdict::kPass) {
          cell.verdict = Verdict::kFail;
          cell.detail = fmt::format("prompt {}, chunks of {}: {}", p, chunk, at >= 0 ? fmt::format("logits of position {} differ", at / target_.config().vocab) : "the lane's state differs");
        }
      }
    }
    return finish(std::move(cell));
  }

  // Compares one speculative answer with the plain one.
  void compare(CertifyCell& cell, const PlainAnswer& expected, const Outcome& got, size_t prompt) {
    cell.compared_tokens += static_cast<int64_t>(expected.tokens.size());
    ++cell.compared_states;
    cell.cycles += got.counters.cycles;
    cell.accepted += got.counters.accepted;
    if (cell.verdict == Verdict::kFail) return;
    const auto mismatch = std::mismatch(expected.tokens.begin(), expected.tokens.end(), got.answer.tokens.begin(), got.answer.tokens.end());
    if (mismatch.first != expected.tokens.end() || mismatch.second != got.answer.tokens.end()) {
      cell.verdict = Verdict::kFail;
      cell.detail = fmt::format("prompt {}: token {} of the answer differs from plain decoding", prompt, mismatch.first - expected.tokens.begin());
    } else if (expected.length != got.answer.length || expected.state != got.answer.state) {
      cell.verdict = Verdict::kFail;
      cell.detail = fmt::format("prompt {}: ids are equal, the lane's state is not", prompt);
    }
  }

  bool enough(const CertifyCell& cell) const {
    return cell.drafted >= options_.least_drafted && cell.rejected >= options_.least_rejected;
  }

  // (b) One route, or all routes under the controller when `routes` is empty.
  Status route_cell(std::vector<Route> routes, VerifyMode mode, float temperature) {
    const bool together = routes.empty();
    CertifyCell cell{.part = "ids", .name = fmt::format("{} {} T={:g}", together ? "all routes" : std::string(route_name(routes[0])), verify_mode_name(mode), temperature)};
    SpeculationOptions speculation{.verify = mode, .width = together ? 0 : mode == VerifyMode::kTree ? 16 : routes[0] == Route::kMtp ? 5 : 7};
    if (mode == VerifyMode::kLive) speculation.live_threshold = 0.1f;
    if (together) routes = {Route::kBlock, Route::kMtp, Route::kCopy};
    int answers = 0;
    for (uint64_t round = 0; answers < options_.most_answers; ++round) {
      if (round > 0 && temperature == 0) break;  // greedy answers do not change with the seed
      for (size_t p = 0; p < options_.prompts.size() && answers < options_.most_answers; ++p, ++answers) {
        ASSIGN_OR_RETURN(const PlainAnswer* expected, plain(p, temperature, round));
        ASSIGN_OR_RETURN(const Outcome got, answer(p, temperature, {.drafters = drafts_.make(routes), .options = speculation, .memory = together ? &drafts_.memory() : nullptr}, options_.tokens, round));
        compare(cell, *expected, got, p);
        for (const Route route : routes) {
          const SpeculationCounters::Of& of = got.counters.of(route);
          cell.drafted += of.drafted;
          cell.rejected += of.verified - of.accepted;
        }
        if (cell.verdict == Verdict::kFail || (options_.quick && enough(cell))) break;
      }
      if (cell.verdict == Verdict::kFail || enough(cell)) break;
    }
    // The controller may rightly decode plainly on a machine where drafting does not pay, so its cell has no minimum.
    if (cell.verdict == Verdict::kPass && !together && !enough(cell)) {
      cell.verdict = Verdict::kInconclusive;
      cell.detail = fmt::format("{} drafted and {} rejected tokens; a verdict needs {} and {}", cell.drafted, cell.rejected, options_.least_drafted, options_.least_rejected);
    }
    return finish(std::move(cell));
  }

  // (f) Drafters that are right, wrong, random, right up to every offset, and right in the second branch.
  Status forced() {
    using Kind = ForcedDrafter::Kind;
    const std::pair<Kind, const char*> kinds[] = {{Kind::kRight, "always right"}, {Kind::kWrong, "always wrong"}, {Kind::kRandom, "random"},
                                                  {Kind::kTurning, "right, then wrong at every offset"}, {Kind::kBranching, "right in the second branch"}};
    for (const auto& [kind, name] : kinds)
      for (const float temperature : {0.0f, 1.0f}) {
        CertifyCell cell{.part = "forced", .name = fmt::format("{} T={:g}", name, temperature)};
        const bool tree = kind == Kind::kBranching;
        for (size_t p = 0; p < std::min<size_t>(options_.prompts.size(), 3); ++p)
          for (int turn = 0; turn < (kind == Kind::kTurning ? 12 : 1); ++turn) {
            ASSIGN_OR_RETURN(const PlainAnswer* expected, plain(p, temperature));
            Speculation s{.options = {.verify = tree ? VerifyMode::kTree : VerifyMode::kChain, .width = tree ? 20 : 12}};
            s.drafters.push_back(std::make_unique<ForcedDrafter>(kind, options_.prompts[p].size(), expected->tokens, target_.config().vocab, turn));
            ASSIGN_OR_RETURN(const Outcome got, answer(p, temperature, std::move(s), options_.tokens));
            compare(cell, *expected, got, p);
            const SpeculationCounters::Of& of = got.counters.of(Route::kScripted);
            cell.drafted += of.drafted;
            cell.rejected += of.verified - of.accepted;
          }
        const bool right = kind == Kind::kRight;
        if (cell.verdict == Verdict::kPass && (cell.drafted < options_.least_drafted || (!right && cell.rejected < options_.least_rejected))) {
          cell.verdict = Verdict::kInconclusive;
          cell.detail = fmt::format("{} drafted and {} rejected tokens are too few", cell.drafted, cell.rejected);
        }
        TRY(finish(std::move(cell)));
      }
    return {};
  }

  TargetModel& target_;
  DraftModels& drafts_;
  const CertifyOptions& options_;
  const std::function<void(const CertifyCell&)>& progress_;
  SteadyClock clock_;
  std::map<std::tuple<size_t, float, uint64_t>, PlainAnswer> plain_;
  CertifyResult result_;
};

}  // namespace

std::string_view verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPass: return "pass";
    case Verdict::kFail: return "fail";
    case Verdict::kInconclusive: return "inconclusive";
  }
  return "?";
}

Verdict Certificate::verdict() const {
  Verdict verdict = cells.empty() ? Verdict::kInconclusive : Verdict::kPass;
  for (const CertifyCell& cell : cells) {
    if (cell.verdict == Verdict::kFail) return Verdict::kFail;
    if (cell.verdict == Verdict::kInconclusive) verdict = Verdict::kInconclusive;
  }
  return verdict;
}

int64_t Certificate::total(int64_t CertifyCell::* count) const {
  int64_t sum = 0;
  for (const CertifyCell& cell : cells) sum += cell.*count;
  return sum;
}

OrderedJson Certificate::json() const {
  OrderedJson list = OrderedJson::array();
  for (const CertifyCell& c : cells)
    list.push_back({{"part", c.part}, {"name", c.name}, {"verdict", std::string(verdict_name(c.verdict))}, {"compared_logits", c.compared_logits},
                    {"compared_tokens", c.compared_tokens}, {"compared_states", c.compared_states}, {"cycles", c.cycles}, {"drafted", c.drafted},
                    {"accepted", c.accepted}, {"rejected", c.rejected}, {"detail", c.detail}});
  return {{"verdict", std::string(verdict_name(verdict()))},
          {"compared_logits", total(&CertifyCell::compared_logits)},
          {"compared_tokens", total(&CertifyCell::compared_tokens)},
          {"compared_states", total(&CertifyCell::compared_states)},
          {"drafted", total(&CertifyCell::drafted)},
          {"rejected", total(&CertifyCell::rejected)},
          {"cells", list}};
}

Result<CertifyResult> certify(TargetModel& target, DraftModels& drafts, const CertifyOptions& options, const std::function<void(const CertifyCell&)>& progress) {
  if (options.prompts.empty()) return Error{ErrorCode::kUsage, "certify needs at least one prompt"};
  for (const Tokens& prompt : options.prompts)
    if (prompt.size() < 8) return Error{ErrorCode::kUsage, "certify needs prompts of at least 8 tokens"};
  if (options.tokens < options.widths) return Error{ErrorCode::kUsage, fmt::format("certify needs answers of at least {} tokens", options.widths)};
  return Certifier(target, drafts, options, progress).run();
}

}  // namespace foretoken
