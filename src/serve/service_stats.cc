// Counting and the text format of Prometheus.
#include "serve/service_stats.h"

#include <fmt/format.h>

#include <algorithm>

namespace foretoken::serve {

void RecentValues::add(double value) {
  ++count_;
  sum_ += value;
  if (values_.size() < limit_) values_.push_back(static_cast<float>(value));
  else values_[next_++ % limit_] = static_cast<float>(value);
}

double RecentValues::percentile(double share) const {
  if (values_.empty()) return 0;
  std::vector<float> sorted = values_;
  const auto at = std::min(static_cast<size_t>(share * static_cast<double>(sorted.size())), sorted.size() - 1);
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(at), sorted.end());
  return sorted[at];
}

OrderedJson RecentValues::milliseconds() const {
  OrderedJson out = {{"count", count_}};
  const auto rounded = [](double s) { return std::round(s * 1e6) / 1e3; };
  for (const auto& [name, share] : {std::pair{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"max", 1.0}}) out[name] = rounded(percentile(share));
  return out;
}

void ServiceStats::record(const CallTimes& times, double total_s) {
  ++outcomes[times.outcome];
  if (times.first_token_s > 0) first_token.add(times.first_token_s);
  for (const float gap : times.token_gaps_s) token_gap.add(gap);
  request_time.add(total_s);
  prompt_tokens += static_cast<uint64_t>(times.prompt_tokens);
  cached_tokens += static_cast<uint64_t>(times.cached_tokens);
  answer_tokens += static_cast<uint64_t>(times.answer_tokens);
}

namespace {

class MetricsWriter {
 public:
  void family(std::string_view name, std::string_view type, std::string_view help) {
    out_ += fmt::format("# HELP foretoken_{0} {2}\n# TYPE foretoken_{0} {1}\n", name, type, help);
  }
  void sample(std::string_view name, double value, std::string_view labels = {}) {
    if (value == std::floor(value) && std::abs(value) < 1e15) out_ += fmt::format("foretoken_{}{} {:.0f}\n", name, labels, value);
    else out_ += fmt::format("foretoken_{}{} {}\n", name, labels, value);
  }
  void single(std::string_view name, std::string_view type, std::string_view help, double value) {
    family(name, type, help);
    sample(name, value);
  }
  void summary(std::string_view name, std::string_view help, const RecentValues& values) {
    family(name, "summary", help);
    for (const double q : {0.5, 0.9, 0.99}) sample(name, values.percentile(q), fmt::format("{{quantile=\"{}\"}}", q));
    sample(std::string(name) + "_sum", values.sum());
    sample(std::string(name) + "_count", static_cast<double>(values.count()));
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

std::string label_text(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '"' || c == '\\' || c < ' ' ? '_' : c;
  return out;
}

// A number of the engine's status by its path; 0 when absent.
double at(const OrderedJson& status, std::initializer_list<const char*> path) {
  const OrderedJson* value = &status;
  for (const char* key : path) {
    if (!value->is_object() || !value->contains(key)) return 0;
    value = &(*value)[key];
  }
  return value->is_number() ? value->get<double>() : 0;
}

void write_engine(MetricsWriter& m, const OrderedJson& e) {
  m.family("lanes", "gauge", "Lanes of the engine by state");
  for (const char* state : {"active", "waiting", "suspended"}) m.sample("lanes", at(e, {"lanes", state}), fmt::format("{{state=\"{}\"}}", state));
  m.single("queue_waiting", "gauge", "Requests that wait for a lane", at(e, {"queue", "waiting"}));
  m.single("engine_emitted_tokens_total", "counter", "Tokens of answers", at(e, {"tokens", "emitted"}));
  m.single("engine_prompt_rows_total", "counter", "Rows of prompts that were computed", at(e, {"tokens", "prompt_rows"}));
  m.single("prefix_cache_lookups_total", "counter", "Lookups of the prefix cache", at(e, {"prefix_cache", "lookups"}));
  m.single("prefix_cache_hits_total", "counter", "Lookups that found something", at(e, {"prefix_cache", "hits"}));
  m.single("prefix_cache_restored_tokens_total", "counter", "Prompt tokens that were not computed", at(e, {"prefix_cache", "restored_tokens"}));
  m.single("prefix_cache_evictions_total", "counter", "Entries that gave way", at(e, {"prefix_cache", "evictions"}));
  m.single("prefix_cache_bytes", "gauge", "Memory of the prefix cache", at(e, {"prefix_cache", "ram_bytes"}));
  m.single("speculation_cycles_total", "counter", "Verify passes of ended requests", at(e, {"speculation", "cycles"}));
  const OrderedJson drafters = e.is_object() && e.contains("speculation") ? e["speculation"].value("by_drafter", OrderedJson::object()) : OrderedJson::object();
  for (const char* what : {"drafted", "verified", "accepted"}) {
    const std::string name = fmt::format("speculation_{}_total", what);
    m.family(name, "counter", fmt::format("Tokens {} by drafter", what));
    for (const auto& [drafter, counts] : drafters.items()) m.sample(name, at(counts, {what}), fmt::format("{{drafter=\"{}\"}}", label_text(drafter)));
  }
  m.family("phase_seconds_total", "counter", "Time of the engine's phases");
  if (e.is_object() && e.contains("phases_ms"))
    for (const auto& [phase, ms] : e["phases_ms"].items())
      if (ms.is_number()) m.sample("phase_seconds_total", ms.get<double>() / 1e3, fmt::format("{{phase=\"{}\"}}", label_text(phase)));
}

}  // namespace

std::string metrics_text(const ServiceStats& s, const HttpCounters& http, const OrderedJson& engine, const OrderedJson& supervision, bool ready) {
  MetricsWriter m;
  m.single("ready", "gauge", "1 when requests can be answered", ready);
  m.single("engine_restarts_total", "counter", "Times the engine had to be started again", at(supervision, {"restarts"}));
  m.family("requests_total", "counter", "Requests by how their answers ended");
  for (const auto& [outcome, count] : s.outcomes) m.sample("requests_total", static_cast<double>(count), fmt::format("{{outcome=\"{}\"}}", label_text(outcome)));
  m.family("http_responses_total", "counter", "Responses by route and status");
  for (const auto& [key, count] : s.responses)
    m.sample("http_responses_total", static_cast<double>(count), fmt::format("{{route=\"{}\",status=\"{}\"}}", label_text(key.first), key.second));
  m.single("requests_in_flight", "gauge", "Requests being answered", static_cast<double>(s.in_flight));
  m.single("http_connections", "gauge", "Open connections", static_cast<double>(http.connections));
  m.single("http_connections_accepted_total", "counter", "Connections accepted", static_cast<double>(http.accepted));
  m.single("http_connections_refused_total", "counter", "Connections refused because there were too many", static_cast<double>(http.refused));
  m.single("http_timeouts_total", "counter", "Requests that came too slowly", static_cast<double>(http.timeouts));
  m.single("http_slow_clients_total", "counter", "Clients dropped because they did not read", static_cast<double>(http.dropped_slow));
  m.single("http_malformed_total", "counter", "Requests that were no HTTP", static_cast<double>(http.malformed));
  m.single("prompt_tokens_total", "counter", "Tokens of prompts", static_cast<double>(s.prompt_tokens));
  m.single("cached_tokens_total", "counter", "Tokens of prompts that were restored", static_cast<double>(s.cached_tokens));
  m.single("completion_tokens_total", "counter", "Tokens of answers", static_cast<double>(s.answer_tokens));
  m.summary("time_to_first_token_seconds", "From a request's arrival to its first token", s.first_token);
  m.summary("inter_token_seconds", "Between tokens of one answer", s.token_gap);
  m.summary("request_seconds", "From a request's arrival to its last byte", s.request_time);
  write_engine(m, engine);
  return m.take();
}

}  // namespace foretoken::serve
