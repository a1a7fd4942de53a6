// Time that moves when a test moves it.
#pragma once

#include "base/clock.h"

namespace foretoken::test {

class ScriptedClock final : public Clock {
 public:
  TimePoint now() const override { return TimePoint(std::chrono::duration_cast<TimePoint::duration>(std::chrono::duration<double>(seconds_))); }
  void advance(double seconds) { seconds_ += seconds; }
  double seconds() const { return seconds_; }

 private:
  double seconds_ = 0;
};

}  // namespace foretoken::test
