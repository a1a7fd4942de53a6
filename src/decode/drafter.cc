// What all model drafters share: choosing among candidates as the target will.
#include "decode/drafter.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "numerics/canonical.h"

namespace foretoken {
namespace {

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

// Fills probabilities as the softmax of keys.
void normalise(std::vector<RankedCandidate>& ranked) {
  float sum = 0;
  for (RankedCandidate& r : ranked) sum += r.probability = canonical::exp(r.key - ranked.front().key);
  for (RankedCandidate& r : ranked) r.probability /= sum;
}

}  // namespace

void rank_candidates(std::span<const ScoredCandidate> candidates, const SamplingParams& sampling, const TokenCounts* counts,
                     std::span<const TokenId> path, int64_t position, std::vector<RankedCandidate>& ranked) {
  ranked.clear();
  for (size_t i = 0; i < candidates.size(); ++i)
    if (const float l = adjusted(candidates[i], sampling, counts, path); std::isfinite(l))
      ranked.push_back({candidates[i].token, static_cast<int>(i), l, 0});
  if (ranked.empty()) return;
  std::sort(ranked.begin(), ranked.end(), better);
  if (sampling.greedy()) return normalise(ranked);

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
  normalise(ranked);
}

}  // namespace foretoken
