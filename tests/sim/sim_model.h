// The tiny model, and what each request must answer: the same request alone on a cold lane, decoded plainly by a Generation. One object
// serves one thread; answers are known once computed.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "decode/draft_models.h"
#include "decode/generation.h"
#include "support/far_backend.h"
#include "support/test_model.h"
#include "support/tiny_model.h"

namespace foretoken::sim {

using Ids = std::vector<TokenId>;

inline constexpr int64_t kLongestAnswer = 41;

// How a request chooses its tokens; the seed is its own.
enum class Style : uint8_t { kGreedy, kWarm, kHot, kFiltered, kPenalised, kRuled, kRuledOut, kBanned };
inline constexpr int kStyles = 8;
SamplingParams sampling_of(Style style, int vocab);
// Forbids a quarter of the tokens at each depth; kRuledOut forbids all of them at the eighth. Null for the other styles.
std::unique_ptr<TokenRules> rules_of(Style style, int vocab);

struct Answer {
  uint64_t id = 0;               // also the seed of its sampling
  Ids prompt, tokens;            // kLongestAnswer of them, unless it fails
  bool fails = false;            // behind its last token
  SamplingParams sampling;
  std::map<int64_t, std::string> hashes;  // of the lane by its length, from the prompt's end on; only where they were asked for
  std::vector<TokenLogprobs> logprobs;    // likewise
};

class SimModel {
 public:
  // `far`: behind a backend with memory of its own.
  explicit SimModel(bool sparse, bool far = false);

  const ModelConfig& config() const { return model_->config; }
  int vocab() const { return model_->config.vocab; }
  test::FarBackend* far() const { return far_; }  // null: memory is the host's
  std::unique_ptr<TargetModel> make_target(KvFormat format, int max_rows = 128);
  std::unique_ptr<DraftModels> make_drafts(const std::string& speculate, KvFormat format);

  // `variant` tells requests apart that differ by their seed alone.
  const Answer& answer(KvFormat format, const Ids& prompt, Style style, int variant);
  const Answer& with_hashes(KvFormat format, const Answer& answer);
  const Answer& with_logprobs(KvFormat format, const Answer& answer);
  const Answer* find(uint64_t id) const;
  // Ids begin anew.
  void forget_answers() { answers_.clear(), by_id_.clear(), next_id_ = 1; }

 private:
  struct Reference {
    std::unique_ptr<TargetModel> target;
    std::unique_ptr<LaneState> lane;
  };
  Reference& reference(KvFormat format);
  void run(Reference& reference, Answer& answer, Style style, bool hashes);

  test::TinyBundle bundle_;
  std::unique_ptr<test::TestModel> model_;
  test::FarBackend* far_ = nullptr;
  std::map<KvFormat, Reference> references_;
  std::map<std::tuple<KvFormat, Ids, Style, int>, Answer> answers_;
  std::map<uint64_t, std::pair<Answer*, Style>> by_id_;
  uint64_t next_id_ = 1;
  SteadyClock clock_;
};

}  // namespace foretoken::sim
