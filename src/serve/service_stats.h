// ServiceStats: what the service counts by itself, for /status and /metrics. No text, no ids.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "serve/call.h"
#include "serve/http.h"

namespace foretoken::serve {

// The last so many values; percentiles are exact over them.
class RecentValues {
 public:
  explicit RecentValues(size_t limit = 4096) : limit_(limit) {}
  void add(double value);
  // {"count", "p50", "p90", "p99", "max"} in milliseconds; count: of all values ever.
  OrderedJson milliseconds() const;
  double percentile(double share) const;  // 0 when there is none
  uint64_t count() const { return count_; }
  double sum() const { return sum_; }

 private:
  size_t limit_, next_ = 0;
  std::vector<float> values_;
  uint64_t count_ = 0;
  double sum_ = 0;
};

struct ServiceStats {
  RecentValues first_token, token_gap, request_time;
  std::map<std::string, uint64_t> outcomes;    // of calls: "stop", "length", "cancelled", error codes
  std::map<std::pair<std::string, int>, uint64_t> responses;  // by route and status, of all requests
  uint64_t prompt_tokens = 0, cached_tokens = 0, answer_tokens = 0;
  size_t in_flight = 0, most_in_flight = 0;

  void record(const CallTimes& times, double total_s);
};

// Prometheus text of the server's own counters and of the engine's status, prefix foretoken_. `identity`: EngineFacts::identity, null
// while it is unknown.
std::string metrics_text(const ServiceStats& stats, const HttpCounters& http, const OrderedJson& engine, const OrderedJson& supervision, const OrderedJson& identity, bool ready);

}  // namespace foretoken::serve
