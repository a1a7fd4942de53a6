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

// What lies at a path of a status; null when nothing does.
const OrderedJson* value_at(const OrderedJson& status, std::initializer_list<const char*> path) {
  const OrderedJson* value = &status;
  for (const char* key : path) {
    if (!value->is_object() || !value->contains(key)) return nullptr;
    value = &(*value)[key];
  }
  return value;
}
double number(const OrderedJson* value) { return value && value->is_number() ? value->get<double>() : 0; }

// A number of the engine's status: its path there, and what Prometheus calls it.
struct EngineMetric {
  const char *name, *type, *help;
  std::initializer_list<const char*> path;
};
constexpr const char *kGauge = "gauge", *kCounter = "counter";
const EngineMetric kEngineMetrics[] = {
    {"lanes_limit", kGauge, "Lanes of the engine", {"lanes", "total"}},
    {"queue_waiting", kGauge, "Requests that wait for a lane", {"queue", "waiting"}},
    {"queue_limit", kGauge, "Requests that may wait", {"queue", "limit"}},
    {"kv_pages", kGauge, "Pages of keys and values in use", {"pages", "in_use"}},
    {"kv_pages_limit", kGauge, "Pages that there may be", {"pages", "limit"}},
    {"kv_page_bytes", kGauge, "Memory of a page", {"pages", "page_bytes"}},
    {"engine_requests_submitted_total", kCounter, "Requests that the engine took", {"engine_requests", "submitted"}},
    {"engine_preemptions_total", kCounter, "Times a request gave its lane to another", {"engine_requests", "preemptions"}},
    {"engine_emitted_tokens_total", kCounter, "Tokens of answers", {"tokens", "emitted"}},
    {"engine_prompt_rows_total", kCounter, "Rows of prompts that were computed", {"tokens", "prompt_rows"}},
    {"engine_recomputed_rows_total", kCounter, "Rows computed again after a preemption", {"tokens", "recomputed_rows"}},
    {"prefix_cache_lookups_total", kCounter, "Lookups of the prefix cache", {"prefix_cache", "lookups"}},
    {"prefix_cache_hits_total", kCounter, "Lookups that found something", {"prefix_cache", "hits"}},
    {"prefix_cache_restored_tokens_total", kCounter, "Prompt tokens that were not computed", {"prefix_cache", "restored_tokens"}},
    {"prefix_cache_evictions_total", kCounter, "Entries that gave way", {"prefix_cache", "evictions"}},
    {"prefix_cache_entries", kGauge, "Entries in memory", {"prefix_cache", "entries"}},
    {"prefix_cache_bytes", kGauge, "Memory of the prefix cache", {"prefix_cache", "ram_bytes"}},
    {"prefix_cache_limit_bytes", kGauge, "Memory that the prefix cache may take", {"prefix_cache", "ram_limit_bytes"}},
    {"prefix_cache_host_bytes", kGauge, "Host memory of prefixes that left a device's", {"prefix_cache", "host", "bytes"}},
    {"prefix_cache_host_limit_bytes", kGauge, "Host memory that they may take", {"prefix_cache", "host", "limit_bytes"}},
    {"prefix_cache_host_entries", kGauge, "Prefixes in host memory", {"prefix_cache", "host", "entries"}},
    {"prefix_cache_host_hits_total", kCounter, "Requests whose prefix came back from the host", {"prefix_cache", "host", "hits"}},
    {"prefix_cache_host_out_bytes_total", kCounter, "Bytes copied to the host", {"prefix_cache", "host", "bytes_out"}},
    {"prefix_cache_host_in_bytes_total", kCounter, "Bytes copied back", {"prefix_cache", "host", "bytes_in"}},
    {"prefix_cache_host_out_tokens_total", kCounter, "Tokens of the prefixes copied to the host", {"prefix_cache", "host", "tokens_out"}},
    {"prefix_cache_host_in_tokens_total", kCounter, "Tokens of the prefixes copied back", {"prefix_cache", "host", "tokens_in"}},
    {"prefix_cache_host_waits_total", kCounter, "Times that memory was needed before its copy was done", {"prefix_cache", "host", "waits"}},
    {"prefix_cache_host_dropped_total", kCounter, "Prefixes that left the host too", {"prefix_cache", "host", "dropped"}},
    {"prefix_cache_disk_bytes", kGauge, "Disk space of the prefix cache", {"prefix_cache", "disk_bytes"}},
    {"prefix_cache_disk_entries", kGauge, "Entries on disk", {"prefix_cache", "disk", "entries"}},
    {"prefix_cache_disk_stored_total", kCounter, "Entries written to disk", {"prefix_cache", "disk", "stored"}},
    {"prefix_cache_disk_hits_total", kCounter, "Lookups that the disk answered", {"prefix_cache", "disk", "hits"}},
    {"prefix_cache_disk_evictions_total", kCounter, "Entries on disk that gave way", {"prefix_cache", "disk", "evicted"}},
    {"memory_planned_bytes", kGauge, "Memory of the engine as planned", {"memory", "planned_bytes"}},
    {"memory_own_bytes", kGauge, "Memory of the engine that is no file's", {"memory", "own_bytes"}},
    {"memory_resident_bytes", kGauge, "Memory of the engine, files' pages included", {"memory", "resident_bytes"}},
    {"memory_limit_bytes", kGauge, "Memory that the plan may take", {"memory", "limit_bytes"}},
    {"speculation_cycles_total", kCounter, "Verify passes of ended requests", {"speculation", "cycles"}},
};
// An object of numbers: one sample for each of its keys.
struct EngineMetricTable {
  const char *name, *type, *help, *label;
  std::initializer_list<const char*> path;
  double scale;
};
const EngineMetricTable kEngineTables[] = {
    {"engine_passes_total", kCounter, "Passes by what they were for", "kind", {"passes"}, 1},
    {"phase_seconds_total", kCounter, "Time of the engine's phases", "phase", {"phases_ms"}, 1e-3},
    {"prefix_cache_dropped_total", kCounter, "Entries that were not kept, by reason", "reason", {"prefix_cache", "dropped"}, 1},
    {"prefix_cache_disk_faults_total", kCounter, "Faults of the disk, by kind", "kind", {"prefix_cache", "disk", "faults"}, 1},
    {"speculation_plan_cycles_total", kCounter, "Verify passes of ended requests by plan", "plan", {"speculation", "plans"}, 1},
};

void write_engine(MetricsWriter& m, const OrderedJson& e) {
  m.family("lanes", "gauge", "Lanes of the engine by state");
  for (const char* state : {"active", "waiting", "suspended", "loading"}) m.sample("lanes", number(value_at(e, {"lanes", state})), fmt::format("{{state=\"{}\"}}", state));
  for (const EngineMetric& metric : kEngineMetrics) m.single(metric.name, metric.type, metric.help, number(value_at(e, metric.path)));
  for (const EngineMetricTable& table : kEngineTables) {
    m.family(table.name, table.type, table.help);
    if (const OrderedJson* counts = value_at(e, table.path); counts && counts->is_object())
      for (const auto& [key, count] : counts->items()) m.sample(table.name, number(&count) * table.scale, fmt::format("{{{}=\"{}\"}}", table.label, label_text(key)));
  }
  const OrderedJson* drafters = value_at(e, {"speculation", "by_drafter"});
  for (const char* what : {"drafted", "verified", "accepted"}) {
    const std::string name = fmt::format("speculation_{}_total", what);
    m.family(name, "counter", fmt::format("Tokens {} by drafter", what));
    if (drafters && drafters->is_object())
      for (const auto& [drafter, counts] : drafters->items()) m.sample(name, number(value_at(counts, {what})), fmt::format("{{drafter=\"{}\"}}", label_text(drafter)));
  }
}

// Who runs: constant facts as labels.
void write_identity(MetricsWriter& m, const OrderedJson& identity) {
  const auto text = [&](std::initializer_list<const char*> path) {
    const OrderedJson* value = value_at(identity, path);
    return value && value->is_string() ? label_text(value->get<std::string>()) : std::string();
  };
  m.family("build_info", "gauge", "The program and the model, in labels");
  m.sample("build_info", 1, fmt::format("{{version=\"{}\",model=\"{}\",architecture=\"{}\",fingerprint=\"{}\",numerics=\"{}\",speculation=\"{}\"}}", text({"build", "version"}),
                                        text({"model", "name"}), text({"model", "architecture"}), text({"model", "fingerprint"}), text({"numerics"}),
                                        text({"speculation", "resolved"})));
}

}  // namespace

std::string metrics_text(const ServiceStats& s, const HttpCounters& http, const OrderedJson& engine, const OrderedJson& supervision, const OrderedJson& identity, bool ready) {
  MetricsWriter m;
  if (!identity.is_null()) write_identity(m, identity);
  m.single("ready", "gauge", "1 when requests can be answered", ready);
  m.single("engine_restarts_total", "counter", "Times the engine had to be started again", number(value_at(supervision, {"restarts"})));
  m.family("requests_total", "counter", "Requests by how their answers ended");
  for (const auto& [outcome, count] : s.outcomes) m.sample("requests_total", static_cast<double>(count), fmt::format("{{outcome=\"{}\"}}", label_text(outcome)));
  m.family("http_responses_total", "counter", "Responses by route and status");
  for (const auto& [key, count] : s.responses)
    m.sample("http_responses_total", static_cast<double>(count), fmt::format("{{route=\"{}\",status=\"{}\"}}", label_text(key.first), key.second));
  m.single("requests_in_flight", "gauge", "Requests being answered", static_cast<double>(s.in_flight));
  m.single("requests_in_flight_most", "gauge", "Most of them at once since the start", static_cast<double>(s.most_in_flight));
  m.single("http_connections", "gauge", "Open connections", static_cast<double>(http.connections));
  m.single("http_connections_accepted_total", "counter", "Connections accepted", static_cast<double>(http.accepted));
  m.single("http_connections_refused_total", "counter", "Connections refused because there were too many", static_cast<double>(http.refused));
  m.single("http_timeouts_total", "counter", "Requests that came too slowly", static_cast<double>(http.timeouts));
  m.single("http_slow_clients_total", "counter", "Clients dropped because they did not read", static_cast<double>(http.dropped_slow));
  m.single("http_ingress_bytes", "gauge", "Bodies of requests that are held", static_cast<double>(http.ingress_bytes));
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
