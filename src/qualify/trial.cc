// The verdict, from ratios of rounds that lie close together in time.
#include "qualify/trial.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace foretoken {
namespace {

double disagreement(double x, double y) { return std::abs(x - y) / (0.5 * (x + y)); }

bool usable(const TrialBlock& b) {
  for (const double v : {b.a[0], b.a[1], b.b[0], b.b[1]})
    if (!(v > 0) || !std::isfinite(v)) return false;
  return true;
}

struct ArmSpread {
  double study = 0, round = 0;
};
ArmSpread spread_of(std::span<const TrialBlock> blocks, const double (TrialBlock::*arm)[2]) {
  std::vector<double> first, second, apart;
  for (const TrialBlock& b : blocks) {
    first.push_back((b.*arm)[0]);
    second.push_back((b.*arm)[1]);
    apart.push_back(disagreement(first.back(), second.back()));
  }
  const double round = median(apart);
  return {std::max(disagreement(median(first), median(second)), round / std::sqrt(static_cast<double>(blocks.size()))),
          round};
}

// Log of how much better b is, per block.
std::vector<double> log_ratios(std::span<const TrialBlock> blocks, Better better) {
  std::vector<double> out;
  for (const TrialBlock& b : blocks) {
    const double log = 0.5 * (std::log(b.b[0] / b.a[0]) + std::log(b.b[1] / b.a[1]));
    out.push_back(better == Better::kHigher ? log : -log);
  }
  return out;
}

}  // namespace

std::vector<int> block_order(int arms, int block) {
  CHECK(arms >= 1);
  std::vector<int> order;
  for (int i = 0; i < arms; ++i) order.push_back(block % 2 == 0 ? i : arms - 1 - i);
  for (int i = arms - 1; i >= 0; --i) order.push_back(order[static_cast<size_t>(i)]);
  return order;
}

std::string_view verdict_word(TrialVerdict verdict) {
  switch (verdict) {
    case TrialVerdict::kGain:
      return "gain";
    case TrialVerdict::kLoss:
      return "loss";
    case TrialVerdict::kNoDifference:
      return "no difference";
    case TrialVerdict::kInconclusive:
      return "inconclusive";
  }
  return "";
}

TrialResult judge(std::span<const TrialBlock> blocks, Better better, const TrialRule& rule) {
  TrialResult r{.blocks = static_cast<int>(blocks.size())};
  if (blocks.empty()) {
    r.reason = "no block was measured";
    return r;
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (!usable(blocks[i])) {
      r.reason = fmt::format("block {} has a round without a figure", i);
      return r;
    }
    if (std::max(disagreement(blocks[i].a[0], blocks[i].a[1]), disagreement(blocks[i].b[0], blocks[i].b[1])) >
        rule.most_spread)
      r.wide_blocks.push_back(static_cast<int>(i));
  }
  const ArmSpread a = spread_of(blocks, &TrialBlock::a), b = spread_of(blocks, &TrialBlock::b);
  r.spread = std::max(a.study, b.study);
  r.round_spread = std::max(a.round, b.round);
  r.bound = std::max(rule.least_bound, rule.spread_factor * r.spread);
  const std::vector<double> logs = log_ratios(blocks, better);
  r.change = std::expm1(median(logs));
  const Interval log_interval = bootstrap_median(logs, rule.confidence);
  r.interval = {std::expm1(log_interval.low), std::expm1(log_interval.high)};

  if (r.spread > rule.most_spread) {
    r.reason = fmt::format("rounds of one arm disagree by {:.1f} %", 100 * r.spread);
  } else if (r.change < -r.bound) {
    r.verdict = TrialVerdict::kLoss;
    r.reason = fmt::format("slower by more than the bound of {:.1f} %", 100 * r.bound);
  } else if (r.change <= r.bound) {
    r.verdict = TrialVerdict::kNoDifference;
    r.reason = fmt::format("within the bound of {:.1f} %", 100 * r.bound);
  } else if (r.blocks < rule.least_blocks) {
    r.reason = fmt::format("beyond the bound, but {} blocks are too few to claim a gain", r.blocks);
  } else if (r.interval.low <= 0) {
    r.reason = "beyond the bound, but the interval reaches zero";
  } else {
    r.verdict = TrialVerdict::kGain;
    r.reason = fmt::format("faster by more than the bound of {:.1f} %", 100 * r.bound);
  }
  return r;
}

}  // namespace foretoken
