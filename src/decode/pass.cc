// Rows of lanes, one behind the other.
#include "decode/pass.h"

namespace foretoken {

void Pass::clear() {
  inputs_.clear();
  lane_rows_.clear();
  lanes_.clear();
  logits_rows_.clear();
  taps_.clear();
  choices_.clear();
  any_choice_ = false;
}

Pass::Share Pass::add(LaneState& lane, std::span<const RowInput> inputs, int settled, std::span<const int16_t> parent, Logits logits,
                      std::span<const int> taps, std::span<const ChoiceSpec> choices) {
  CHECK(!inputs.empty());
  const Share share{.first_row = rows(), .rows = static_cast<int>(inputs.size()), .first_logits = static_cast<int>(logits_rows_.size())};
  inputs_.insert(inputs_.end(), inputs.begin(), inputs.end());
  lane_rows_.push_back({.first_row = share.first_row, .rows = share.rows, .prefix = lane.length(), .settled = settled, .parent = parent});
  lanes_.push_back(&lane);
  if (logits == Logits::kLast) logits_rows_.push_back(rows() - 1);
  if (logits == Logits::kAll)
    for (int row = share.first_row; row < rows(); ++row) logits_rows_.push_back(row);
  CHECK(choices.empty() || choices_.size() + choices.size() == logits_rows_.size());
  any_choice_ |= !choices.empty();
  choices_.insert(choices_.end(), choices.begin(), choices.end());
  choices_.resize(logits_rows_.size());
  if (!taps.empty()) {
    CHECK(taps_.empty() || std::vector<int>(taps.begin(), taps.end()) == taps_);
    taps_.assign(taps.begin(), taps.end());
  }
  return share;
}

ForwardResult Pass::run(TargetModel& target) const {
  const std::span<const ChoiceSpec> choices = any_choice_ ? std::span<const ChoiceSpec>(choices_) : std::span<const ChoiceSpec>();
  return target.forward({.inputs = inputs_, .lanes = lane_rows_, .logits_rows = logits_rows_, .choices = choices}, lanes_, taps_);
}

}  // namespace foretoken
