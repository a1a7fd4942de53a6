// What all model drafters share: choosing among candidates as the target will.
#include "decode/drafter.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "decode/path_rules.h"
#include "numerics/canonical.h"
#include "numerics/gumbel.h"

namespace foretoken {
namespace {

constexpr size_t kForesight = 16;  // tokens
constexpr float kSure = 0.7f;      // a candidate's probability from which on it is not displaced by what the rules foresee
constexpr float kUnseen = 0.2f;    // of the probability that forbidden candidates had, what allowed tokens outside the candidates may hold

bool allowed(TokenMask mask, TokenId token) {
  return mask.empty() || (mask[static_cast<size_t>(token) / 64] >> (token % 64) & 1) != 0;
}

// One candidate's score as sampling adjusts the target's logit: penalties from the counts and the drafted path, then bias and bans.
float adjusted(const ScoredCandidate& c, const SamplingParams& sampling, const TokenCounts* counts, std::span<const TokenId> path) {
  float l = c.score;
  if (sampling.has_penalties() && counts != nullptr) {
    TokenCounts::Count count;
    if (const auto found = counts->counts().find(c.token); found != counts->counts().end()) count = found->second;
    const int32_t on_path = static_cast<int32_t>(std::count(path.begin(), path.end(), c.token));
    count.all += on_path;
    count.answer += on_path;
    if (count.all > 0 && sampling.repetition_penalty != 1.0f)
      l = l > 0 ? l / sampling.repetition_penalty : l * sampling.repetition_penalty;
    if (count.answer > 0) {
      l = canonical::fma(-sampling.frequency_penalty, static_cast<float>(count.answer), l);
      l = l - sampling.presence_penalty;
    }
  }
  for (const auto& [id, bias] : sampling.logit_bias)
    if (id == c.token) l += bias;
  for (const TokenId id : sampling.banned)
    if (id == c.token) l = -std::numeric_limits<float>::infinity();
  return l;
}

bool better(const RankedCandidate& a, const RankedCandidate& b) { return a.key != b.key ? a.key > b.key : a.token < b.token; }

// Fills probabilities as the softmax of keys, which is `share` of all.
void normalise(std::vector<RankedCandidate>& ranked, float share = 1) {
  float sum = 0;
  for (RankedCandidate& r : ranked) sum += r.probability = canonical::exp(r.key - ranked.front().key);
  for (RankedCandidate& r : ranked) r.probability *= share / sum;
}

// How much of what is allowed is among the candidates `ranked`, whose keys are logits still: what is not was too unlikely to be one, and
// that is the more of it the likelier the candidates that are forbidden.
float seen_share(const std::vector<RankedCandidate>& ranked, std::span<const float> forbidden) {
  if (forbidden.empty()) return 1;
  const float top = std::max(ranked.front().key, *std::max_element(forbidden.begin(), forbidden.end()));
  float in = 0, out = 0;
  for (const RankedCandidate& r : ranked) in += canonical::exp(r.key - top);
  for (const float l : forbidden) out += canonical::exp(l - top);
  return in > 0 ? in / (in + kUnseen * out) : 0;
}

}  // namespace

void rank_candidates(std::span<const ScoredCandidate> candidates, const SamplingParams& sampling, const TokenCounts* counts,
                     std::span<const TokenId> path, int64_t position, std::vector<RankedCandidate>& ranked, TokenMask mask) {
  ranked.clear();
  std::vector<float> forbidden;
  for (size_t i = 0; i < candidates.size(); ++i)
    if (const float l = adjusted(candidates[i], sampling, counts, path); !std::isfinite(l)) continue;
    else if (allowed(mask, candidates[i].token)) ranked.push_back({candidates[i].token, static_cast<int>(i), l, 0});
    else forbidden.push_back(l);
  if (ranked.empty()) return;
  std::sort(ranked.begin(), ranked.end(), better);
  const float share = seen_share(ranked, forbidden);
  if (sampling.greedy()) return normalise(ranked, share);

  const float top = ranked.front().key;
  for (RankedCandidate& r : ranked) r.key = (r.key - top) / sampling.temperature;
  if (sampling.top_k > 0 && ranked.size() > static_cast<size_t>(sampling.top_k)) ranked.resize(static_cast<size_t>(sampling.top_k));
  normalise(ranked);
  size_t keep = 0;
  for (float before = 0; keep < ranked.size() && before < sampling.top_p; ++keep) {
    if (sampling.min_p > 0 && ranked[keep].probability < sampling.min_p * ranked.front().probability) break;
    before += ranked[keep].probability;
  }
  ranked.resize(std::max<size_t>(1, keep));
  for (RankedCandidate& r : ranked)
    r.key += gumbel(sampling.seed, sampling.choice, static_cast<uint64_t>(position), r.token);
  std::sort(ranked.begin(), ranked.end(), better);
  normalise(ranked, share);
}

void rank_successors(const DraftRequest& request, std::span<const ScoredCandidate> candidates, std::span<const TokenId> path,
                     int64_t position, std::vector<TokenId>& run, std::vector<RankedCandidate>& ranked) {
  if (request.rules == nullptr) return rank_candidates(candidates, *request.sampling, request.counts, path, position, ranked);
  ranked.clear();
  PathRules rules(*request.rules, path);
  if (rules.ended()) return;
  rank_candidates(candidates, *request.sampling, request.counts, path, position, ranked, rules.mask());
  if (!request.foresee) return;
  if (run.empty()) rules.foresee(kForesight, run);
  if (!run.empty() && !rules.allows(run.front())) run.clear();
  if (run.empty()) return;
  if (!ranked.empty() && ranked.front().token != run.front() && ranked.front().probability >= kSure) {  // it knows this text's ways
    run.clear();
    return;
  }
  RankedCandidate foreseen{run.front(), -1, 0, kForeseen, true};
  const auto known = std::find_if(ranked.begin(), ranked.end(), [&](const RankedCandidate& c) { return c.token == foreseen.token; });
  if (known != ranked.end()) {
    foreseen.index = known->index;
    foreseen.probability = 1 - (1 - kForeseen) * (1 - known->probability);
    ranked.erase(known);
  }
  for (RankedCandidate& c : ranked) c.probability *= 1 - kForeseen;
  ranked.insert(ranked.begin(), foreseen);
}

}  // namespace foretoken
