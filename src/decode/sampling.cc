// Steps 1 to 4 of the definition, in order: adjust, argmax, filter, Gumbel-max.
#include "decode/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/threads.h"
#include "numerics/gumbel.h"

namespace foretoken {
namespace {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

// No Gumbel value exceeds this: v >= 2^-33, so E >= 2^-33 and -log E <= 33 ln 2 (22.88).
constexpr float kLargestGumbel = 23.0f;

float least_of(const SamplingParams& params) { return params.min_p > 0 ? canonical::log(params.min_p) : kNegativeInfinity; }

bool before(const Sampler::Candidate& a, const Sampler::Candidate& b) { return a.z != b.z ? a.z > b.z : a.id < b.id; }

}  // namespace

Status SamplingParams::validate() const {
  const auto bad = [](const char* what) { return Error{ErrorCode::kUsage, what}; };
  if (!std::isfinite(temperature) || temperature < 0) return bad("temperature must be a number of at least 0");
  if (top_k < 0) return bad("top_k must be at least 0 (0: off)");
  if (!(top_p > 0 && top_p <= 1)) return bad("top_p must lie in (0, 1]");
  if (!(min_p >= 0 && min_p < 1)) return bad("min_p must lie in [0, 1)");
  if (!std::isfinite(repetition_penalty) || repetition_penalty <= 0) return bad("repetition_penalty must be positive");
  if (!std::isfinite(presence_penalty)) return bad("presence_penalty must be a finite number");
  if (!std::isfinite(frequency_penalty)) return bad("frequency_penalty must be a finite number");
  for (const auto& [id, bias] : logit_bias)
    if (std::isnan(bias) || bias == std::numeric_limits<float>::infinity()) return bad("logit_bias values must be finite numbers");
  return {};
}

TokenLogprobs logprobs_of(std::span<const float> logits, TokenId chosen, int top) {
  constexpr size_t kChunk = 1024;
  const float max = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (size_t first = 0; first < logits.size(); first += kChunk) {
    float sum = 0;
    for (size_t i = first; i < std::min(first + kChunk, logits.size()); ++i) sum += canonical::exp(logits[i] - max);
    total += sum;
  }
  const float normaliser = canonical::log(static_cast<float>(total));
  const auto logprob = [&](TokenId id) { return (logits[static_cast<size_t>(id)] - max) - normaliser; };
  TokenLogprobs result{.chosen = logprob(chosen), .top = {}};
  std::vector<TokenId> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const size_t kept = std::min(ids.size(), static_cast<size_t>(std::max(0, top)));
  std::partial_sort(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(kept), ids.end(), [&](TokenId a, TokenId b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  for (size_t i = 0; i < kept; ++i) result.top.push_back({ids[i], logprob(ids[i])});
  return result;
}

Status Sampler::adjust(std::span<const float> logits, const SamplingParams& params, const TokenCounts* counts, TokenMask mask) {
  values_ = logits;
  set_float_environment();
  const bool change = params.adjusts() || !mask.empty();
  if (change) {
    adjusted_.assign(logits.begin(), logits.end());
    if (params.has_penalties()) {
      CHECK(counts != nullptr);
      for (const auto& [id, count] : counts->counts()) {
        if (id < 0 || static_cast<size_t>(id) >= adjusted_.size() || count.all == 0) continue;
        float& l = adjusted_[static_cast<size_t>(id)];
        if (params.repetition_penalty != 1.0f) l = l > 0 ? l / params.repetition_penalty : l * params.repetition_penalty;
        if (count.answer > 0) {
          l = canonical::fma(-params.frequency_penalty, static_cast<float>(count.answer), l);
          l = l - params.presence_penalty;
        }
      }
    }
    for (const auto& [id, bias] : params.logit_bias)
      if (id >= 0 && static_cast<size_t>(id) < adjusted_.size()) adjusted_[static_cast<size_t>(id)] += bias;
    for (const TokenId id : params.banned)
      if (id >= 0 && static_cast<size_t>(id) < adjusted_.size()) adjusted_[static_cast<size_t>(id)] = kNegativeInfinity;
    if (!mask.empty()) {
      CHECK(mask.size() * 64 >= adjusted_.size());
      for (size_t i = 0; i < adjusted_.size(); ++i)
        if (!(mask[i / 64] >> (i % 64) & 1)) adjusted_[i] = kNegativeInfinity;
    }
    values_ = adjusted_;
  }
  max_ = kNegativeInfinity;
  argmax_ = -1;
  bool nan = false;
  for (size_t i = 0; i < values_.size(); ++i) {
    const float l = values_[i] + 0.0f;  // -0 and +0 compare as one key
    nan |= l != l;
    if (l > max_) {
      max_ = l;
      argmax_ = static_cast<TokenId>(i);
    }
  }
  if (nan || max_ == std::numeric_limits<float>::infinity())
    return Error{ErrorCode::kInvalidFile, "the model's result is not finite: its weights or its input are damaged"};
  if (argmax_ < 0)
    return Error{ErrorCode::kUsage, "no token is allowed here: every one is banned or masked"};
  return {};
}

void Sampler::filter(const SamplingParams& params) {
  const float least = least_of(params);
  candidates_.clear();
  for (size_t i = 0; i < values_.size(); ++i) {
    const float z = (values_[i] - max_) / params.temperature;
    if (z >= least && z > kNegativeInfinity) candidates_.push_back({z, static_cast<TokenId>(i)});
  }
  size_t sorted = 0;
  const auto sort_to = [&](size_t count) {  // candidates_[0, count) in final order, extending what is sorted already
    count = std::min(count, candidates_.size());
    if (count <= sorted) return;
    std::partial_sort(candidates_.begin() + static_cast<ptrdiff_t>(sorted), candidates_.begin() + static_cast<ptrdiff_t>(count),
                      candidates_.end(), before);
    sorted = count;
  };
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < candidates_.size()) {
    sort_to(static_cast<size_t>(params.top_k));
    candidates_.resize(static_cast<size_t>(params.top_k));
  }
  if (params.top_p >= 1.0f) return;
  uint64_t total = 0;
  for (const Candidate& c : candidates_) total += nucleus_mass(c.z);
  const double limit = static_cast<double>(params.top_p) * static_cast<double>(total);
  uint64_t taken = 0;
  size_t keep = 0;
  while (keep < candidates_.size() && static_cast<double>(taken) < limit) {
    if (keep >= sorted) sort_to(std::max<size_t>(64, sorted * 4));
    taken += nucleus_mass(candidates_[keep].z);
    ++keep;
  }
  candidates_.resize(std::max<size_t>(1, keep));
}

Result<TokenId> Sampler::select(std::span<const float> logits, const SamplingParams& params, uint64_t position,
                                const TokenCounts* counts, TokenMask mask) {
  TRY(adjust(logits, params, counts, mask));
  if (params.greedy()) return argmax_;
  filter(params);
  return draw(params, position);
}

TokenId Sampler::draw(const SamplingParams& params, uint64_t position) const {
  Candidate best{kNegativeInfinity, -1};
  for (const Candidate& c : candidates_) {
    if (best.id >= 0 && c.z + kLargestGumbel < best.z) continue;
    const Candidate noisy{c.z + gumbel(params.seed, params.choice, position, c.id), c.id};
    if (best.id < 0 || before(noisy, best)) best = noisy;
  }
  return best.id;
}

ChoiceSpec Sampler::spec(const SamplingParams& params, uint64_t position) {
  if (params.greedy()) return {};
  const bool nucleus = params.top_p < 1.0f, some = params.top_k > 0;
  const bool settles = params.top_k < kLeaders;  // the leaders show that many
  return {.temperature = params.temperature, .least = least_of(params), .noisy = !nucleus && !some, .mass = nucleus && !some,
          .leaders = (nucleus || some) && settles, .choice = params.choice, .seed = params.seed, .position = position};
}

std::optional<TokenId> Sampler::select(const Choices& choices, int at, int64_t vocab, const SamplingParams& params, uint64_t position) {
  const RowChoice& row = choices.rows[static_cast<size_t>(at)];
  if (!row.finite || row.best < 0) return {};
  if (params.greedy()) return row.best;
  const ChoiceSpec asked = spec(params, position);
  if (asked.noisy) return row.noisy;
  if (!asked.leaders || choices.leader_count == 0) return {};
  const size_t count = static_cast<size_t>(choices.leader_count), first = static_cast<size_t>(at) * count;
  const auto leaders = std::span(choices.leaders).subspan(first, count);
  const auto values = std::span(choices.values).subspan(first, count);
  set_float_environment();
  const float least = asked.least;
  const auto z_of = [&](float logit) { return (logit - row.largest) / params.temperature; };
  const auto counts = [&](float z) { return z >= least && z > kNegativeInfinity; };
  candidates_.clear();
  for (size_t i = 0; i < leaders.size(); ++i)
    if (const float z = z_of(values[i]); counts(z)) candidates_.push_back({z, leaders[i]});
  std::sort(candidates_.begin(), candidates_.end(), before);
  // Tokens behind the leaders may have the last one's z and a lower id, but none has more.
  const float last = z_of(values.back());
  size_t known = candidates_.size();
  const bool all = static_cast<int64_t>(leaders.size()) >= vocab || !counts(last);
  while (!all && known > 0 && candidates_[known - 1].z == last) --known;
  if (params.top_k > 0) {
    const size_t most = static_cast<size_t>(params.top_k);
    if (!all && known < most) return {};
    if (candidates_.size() > most) candidates_.resize(most);
    known = candidates_.size();
  }
  if (params.top_p < 1.0f) {
    uint64_t total = row.mass;
    if (params.top_k > 0) {
      total = 0;
      for (const Candidate& c : candidates_) total += nucleus_mass(c.z);
    }
    const double limit = static_cast<double>(params.top_p) * static_cast<double>(total);
    uint64_t taken = 0;
    size_t keep = 0;
    while (keep < known && static_cast<double>(taken) < limit) taken += nucleus_mass(candidates_[keep++].z);
    if (!all && params.top_k == 0 && static_cast<double>(taken) < limit) return {};
    candidates_.resize(std::max<size_t>(1, keep));
  }
  return draw(params, position);
}

Result<std::vector<Sampler::Candidate>> Sampler::kept(std::span<const float> logits, const SamplingParams& params,
                                                      const TokenCounts* counts, TokenMask mask) {
  TRY(adjust(logits, params, counts, mask));
  if (params.greedy()) return std::vector<Candidate>{{0.0f, argmax_}};
  filter(params);
  std::vector<Candidate> result = candidates_;
  std::sort(result.begin(), result.end(), before);
  return result;
}

}  // namespace foretoken
