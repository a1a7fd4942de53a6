// Reference answers.
#include "sim/sim_model.h"

namespace foretoken::sim {
namespace {

// Token t is forbidden at depth d where (t + d) % 4 == 0.
class SimRules final : public TokenRules {
 public:
  SimRules(int vocab, int64_t nothing_at) : vocab_(vocab), nothing_at_(nothing_at), bits_(static_cast<size_t>((vocab + 63) / 64)) {}
  TokenMask mask() override {
    std::fill(bits_.begin(), bits_.end(), 0);
    for (TokenId t = 0; t < vocab_; ++t)
      if (allows(t)) bits_[static_cast<size_t>(t / 64)] |= uint64_t{1} << (t % 64);
    return bits_;
  }
  bool allows(TokenId token) override { return depth_ != nothing_at_ && (token + depth_) % 4 != 0; }
  bool advance(TokenId token) override {
    CHECK(allows(token));
    ++depth_;
    return false;
  }
  int64_t depth() const override { return depth_; }
  void rewind(int64_t depth) override {
    CHECK(depth <= depth_);
    depth_ = depth;
  }
  // Allowed guesses that are mostly wrong.
  void foresee(size_t most, std::vector<TokenId>& run) override {
    for (size_t i = 0; i < most && i < static_cast<size_t>(depth_ % 5); ++i) {
      const TokenId guess = static_cast<TokenId>((depth_ * 7 + static_cast<int64_t>(i) * 5) % (vocab_ - 1));
      run.push_back((guess + depth_ + static_cast<int64_t>(i)) % 4 != 0 ? guess : guess + 1);
    }
  }

 private:
  int vocab_;
  int64_t nothing_at_, depth_ = 0;
  std::vector<uint64_t> bits_;
};

}  // namespace

SamplingParams sampling_of(Style style, int vocab) {
  SamplingParams s;
  s.temperature = style == Style::kGreedy || style == Style::kRuled ? 0.0f : style == Style::kHot ? 1.3f : 0.8f;
  if (style == Style::kFiltered) s.top_k = 12, s.top_p = 0.9f, s.min_p = 0.02f;
  if (style == Style::kPenalised) s.repetition_penalty = 1.2f, s.presence_penalty = 0.3f, s.frequency_penalty = 0.2f, s.logit_bias = {{3, 2.0f}, {7, -5.0f}};
  if (style == Style::kBanned)
    for (TokenId t = 0; t < vocab; ++t) s.banned.push_back(t);
  return s;
}

std::unique_ptr<TokenRules> rules_of(Style style, int vocab) {
  if (style == Style::kRuled) return std::make_unique<SimRules>(vocab, -1);
  if (style == Style::kRuledOut) return std::make_unique<SimRules>(vocab, 7);
  return nullptr;
}

SimModel::SimModel(bool sparse, bool far) : bundle_({.sparse = sparse}) {
  std::unique_ptr<Backend> backend = test::cpu_backend(Isa::kAuto, 1);
  if (far) {
    auto away = std::make_unique<test::FarBackend>(std::move(backend));
    far_ = away.get();
    backend = std::move(away);
  }
  model_ = test::load_model(bundle_.path(), {.max_rows = 128}, std::move(backend));
}

std::unique_ptr<TargetModel> SimModel::make_target(KvFormat format, int max_rows) {
  return std::make_unique<TargetModel>(model_->config, model_->weights, *model_->backend, TargetOptions{.max_rows = max_rows, .kv_format = format});
}

std::unique_ptr<DraftModels> SimModel::make_drafts(const std::string& speculate, KvFormat format) {
  return DraftModels::load(model_->bundle, model_->config, model_->weights, *model_->backend, test::value_or_throw(DraftSettings::parse(speculate, "")), format, 128);
}

SimModel::Reference& SimModel::reference(KvFormat format) {
  Reference& r = references_[format];
  if (!r.target) {
    r.target = make_target(format);
    r.lane = r.target->make_lane();
  }
  return r;
}

void SimModel::run(Reference& reference, Answer& answer, Style style, bool hashes) {
  const std::unique_ptr<TokenRules> rules = rules_of(style, vocab());
  LaneState& lane = *reference.lane;
  lane.reset();
  Generation g(*reference.target, lane, {.sampling = answer.sampling, .max_tokens = kLongestAnswer, .rules = rules.get()}, clock_);
  bool going = g.start(answer.prompt).ok();
  const auto note = [&] {
    if (hashes && going) answer.hashes[lane.length()] = lane.hash();
  };
  for (note(); going && !g.finished(); note()) going = g.step().ok();
  answer.fails = !going;
  answer.tokens.assign(g.tokens().begin(), g.tokens().end());
}

const Answer& SimModel::answer(KvFormat format, const Ids& prompt, Style style, int variant) {
  const auto [it, made] = answers_.try_emplace({format, prompt, style, variant});
  Answer& a = it->second;
  if (!made) return a;
  a.id = next_id_++;
  a.prompt = prompt;
  a.sampling = sampling_of(style, vocab());
  a.sampling.seed = a.id;
  by_id_[a.id] = {&a, style};
  run(reference(format), a, style, false);
  return a;
}

const Answer& SimModel::with_hashes(KvFormat format, const Answer& answer) {
  const auto [a, style] = by_id_.at(answer.id);
  if (a->hashes.empty()) run(reference(format), *a, style, true);
  return *a;
}

const Answer& SimModel::with_logprobs(KvFormat format, const Answer& answer) {
  Answer& a = *by_id_.at(answer.id).first;
  if (!a.logprobs.empty() || a.tokens.empty()) return a;
  Reference& r = reference(format);
  r.lane->reset();
  Ids all = a.prompt;
  all.insert(all.end(), a.tokens.begin(), a.tokens.end() - 1);
  std::vector<int64_t> wanted;
  for (int64_t at = static_cast<int64_t>(a.prompt.size()) - 1; at < static_cast<int64_t>(all.size()); ++at) wanted.push_back(at);
  run_prompt(*r.target, *r.lane, all, 64, wanted, [&](int64_t, int64_t, const ForwardResult& result) {
    for (int64_t row = 0; row < result.logits.rows; ++row)
      a.logprobs.push_back(logprobs_of({result.logits.f32(row), static_cast<size_t>(result.logits.cols)}, a.tokens[a.logprobs.size()], 3));
    return true;
  });
  CHECK(a.logprobs.size() == a.tokens.size());
  return a;
}

const Answer* SimModel::find(uint64_t id) const {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : it->second.first;
}

}  // namespace foretoken::sim
