// Chrome trace format (chrome://tracing, Perfetto): cycles and their phases on one time axis. A device's work is seen
// from the host, which waits for it: its spans hold queueing too.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "qualify/measured_answer.h"

namespace foretoken {

class Trace {
 public:
  explicit Trace(TimePoint begin) : begin_(begin) {}

  // A span of one track; `args` are shown with it. Never a text that was generated.
  void span(const std::string& track, const std::string& name, TimePoint begin, double seconds, Json args = nullptr);
  // Cycles of an answer with their phases below them.
  void cycles(const std::string& track, std::span<const MeasuredAnswer::Cycle> cycles,
              const std::vector<std::string>& plans);

  Json json() const;
  Status write(const std::filesystem::path& path) const;

 private:
  int track_of(const std::string& name);

  TimePoint begin_;
  std::vector<std::string> tracks_;
  Json events_ = Json::array();
};

}  // namespace foretoken
