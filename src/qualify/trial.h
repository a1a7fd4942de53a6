// The design of a trial and its verdict. Arms take turns in blocks, A B B A and B A A B, so that drift falls on both;
// what two rounds of one arm disagree by is the noise, and only a change beyond twice of it counts. Pure: it is told
// figures and knows no clock, model or file. docs/qualification.md explains the rule to its users.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "qualify/statistics.h"

namespace foretoken {

// Which arm has its turn, over one block: every arm twice, mirrored in time. Odd blocks begin at the other end: 0 1 1
// 0, then 1 0 0 1.
std::vector<int> block_order(int arms, int block);

enum class Better : uint8_t { kHigher, kLower };

// One block: the figures of an arm's two rounds in order of time, all positive.
struct TrialBlock {
  double a[2] = {0, 0}, b[2] = {0, 0};
};

struct TrialRule {
  double least_bound = 0.02;  // a smaller change is never called one
  double spread_factor = 2;   // bound = max(least_bound, spread_factor * spread)
  double most_spread = 0.05;  // a wider one decides nothing
  int least_blocks = 4;       // fewer cannot claim a gain
  double confidence = 0.99;   // of the interval that a gain must clear
};

enum class TrialVerdict : uint8_t { kGain, kLoss, kNoDifference, kInconclusive };
std::string_view verdict_word(TrialVerdict verdict);  // "gain", "loss", "no difference", "inconclusive"

struct TrialResult {
  TrialVerdict verdict = TrialVerdict::kInconclusive;
  std::string reason;  // one clause
  double change = 0;   // of b against a; positive is better: 0.03 is three percent
  double spread = 0, bound = 0;
  double round_spread = 0;  // what two rounds of one arm in one block typically disagree by
  Interval interval;        // of the change, by resampling blocks
  int blocks = 0;
  std::vector<int> wide_blocks;  // whose rounds disagree by more than most_spread; they count all the same
};

// b against a. spread: the larger arm's disagreement between its first and its second rounds over the study, and no
// less than what the rounds' own disagreement leads one to expect of as many of them.
TrialResult judge(std::span<const TrialBlock> blocks, Better better = Better::kHigher, const TrialRule& rule = {});

}  // namespace foretoken
