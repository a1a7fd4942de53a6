// Pass: the rows that one or several lanes bring to one forward. Rows of a lane are independent of the other lanes' in every bit; what
// they share is the reading of the weights. It knows neither tokens' meaning nor who asked.
#pragma once

#include <span>
#include <vector>

#include "model/target.h"

namespace foretoken {

class Pass {
 public:
  enum class Logits : uint8_t { kNone, kLast, kAll };
  // Where a lane's rows and its logits lie in the result.
  struct Share {
    int first_row = 0, rows = 0, first_logits = 0;
  };

  void clear();
  bool empty() const { return lane_rows_.empty(); }
  int rows() const { return static_cast<int>(inputs_.size()); }
  int lanes() const { return static_cast<int>(lanes_.size()); }

  // The rows of `lane`, which follow its committed prefix: LaneRows says what `settled` and `parent` mean; `parent` is borrowed until
  // run() returns. `taps`: layers whose output somebody reads; all that ask must ask for the same. `choices`: one for each of the lane's
  // rows of logits, or empty where those rows are wanted themselves.
  Share add(LaneState& lane, std::span<const RowInput> inputs, int settled, std::span<const int16_t> parent, Logits logits,
            std::span<const int> taps, std::span<const ChoiceSpec> choices = {});
  ForwardResult run(TargetModel& target) const;

 private:
  std::vector<RowInput> inputs_;
  std::vector<LaneRows> lane_rows_;
  std::vector<LaneState*> lanes_;
  std::vector<int> logits_rows_, taps_;
  std::vector<ChoiceSpec> choices_;
  bool any_choice_ = false;
};

}  // namespace foretoken
