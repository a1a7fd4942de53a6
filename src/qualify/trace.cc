// Complete events ("ph": "X") in microseconds, one thread id a track.
#include "qualify/trace.h"

#include <algorithm>

#include "base/file.h"

namespace foretoken {

int Trace::track_of(const std::string& name) {
  const auto known = std::find(tracks_.begin(), tracks_.end(), name);
  if (known != tracks_.end()) return static_cast<int>(known - tracks_.begin()) + 1;
  tracks_.push_back(name);
  return static_cast<int>(tracks_.size());
}

void Trace::span(const std::string& track, const std::string& name, TimePoint begin, double seconds, Json args) {
  Json event = Json::object();
  event["name"] = name;
  event["ph"] = "X";
  event["pid"] = 1;
  event["tid"] = track_of(track);
  event["ts"] = 1e6 * seconds_between(begin_, begin);
  event["dur"] = std::max(0.0, 1e6 * seconds);
  if (args.is_object()) event["args"] = std::move(args);
  events_.push_back(std::move(event));
}

void Trace::cycles(const std::string& track, std::span<const MeasuredAnswer::Cycle> cycles,
                   const std::vector<std::string>& plans) {
  for (const MeasuredAnswer::Cycle& c : cycles) {
    Json args = Json::object();
    args["rows"] = c.rows;
    args["depth"] = c.depth;
    args["accepted"] = c.accepted;
    span(track, plans[static_cast<size_t>(c.plan)], c.begin, c.us * 1e-6, std::move(args));
    // Phases follow one another within the cycle; drafting is also what drafters learn at its end.
    TimePoint at = c.begin;
    for (const auto& [name, us] : {std::pair{"draft", c.draft_us}, {"verify", c.verify_us}, {"commit", c.commit_us}}) {
      span(track, name, at, us * 1e-6);
      at += std::chrono::duration_cast<TimePoint::duration>(std::chrono::duration<double, std::micro>(us));
    }
  }
}

Json Trace::json() const {
  Json all = Json::object();
  all["displayTimeUnit"] = "ms";
  all["traceEvents"] = events_;
  for (size_t i = 0; i < tracks_.size(); ++i) {
    Json name = Json::object();
    name["name"] = "thread_name";
    name["ph"] = "M";
    name["pid"] = 1;
    name["tid"] = i + 1;
    name["args"] = Json::object({{"name", tracks_[i]}});
    all["traceEvents"].push_back(std::move(name));
  }
  return all;
}

Status Trace::write(const std::filesystem::path& path) const {
  return write_file_atomically(path, json().dump() + "\n");
}

}  // namespace foretoken
