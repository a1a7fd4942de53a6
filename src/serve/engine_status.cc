// Counters to JSON, names as in docs/serving.md.
#include "serve/engine_status.h"

#include <cmath>

namespace foretoken::serve {
namespace {

double milliseconds(double seconds) { return std::round(seconds * 1e6) / 1e3; }

OrderedJson disk_json(const DiskTierStatistics& d) {
  OrderedJson faults = OrderedJson::object();
  for (size_t i = 0; i < kDiskFaults; ++i)
    if (d.faults[i] > 0) faults[std::string(name(static_cast<DiskFault>(i)))] = d.faults[i];
  return {{"writable", d.writable}, {"note", d.note}, {"entries", d.entries}, {"bytes", d.bytes}, {"limit_bytes", d.limit_bytes},
          {"other_bytes", d.other_bytes}, {"queued", d.queued}, {"queue_bytes", d.queue_bytes}, {"stored", d.stored},
          {"bytes_written", d.bytes_written}, {"bytes_read", d.bytes_read}, {"evicted", d.evicted}, {"hits", d.hits}, {"misses", d.misses},
          {"restored_tokens", d.restored_tokens}, {"faults", std::move(faults)}};
}

OrderedJson host_json(const HostTierStatistics& h) {
  return {{"entries", h.entries}, {"bytes", h.bytes}, {"limit_bytes", h.limit_bytes}, {"moved_out", h.moved_out}, {"tokens_out", h.tokens_out},
          {"bytes_out", h.bytes_out}, {"moved_in", h.moved_in}, {"tokens_in", h.tokens_in}, {"bytes_in", h.bytes_in}, {"hits", h.hits}, {"waits", h.waits},
          {"dropped", h.dropped}, {"no_room", h.no_room}};
}

OrderedJson cache_json(const EngineStatus& s) {
  const PrefixCacheStatistics& c = s.cache;
  OrderedJson out = {{"lookups", c.lookups}, {"hits", c.hits}, {"restored_tokens", c.restored_tokens}, {"published", c.published}, {"evictions", c.evictions},
                     {"entries", c.entries}, {"ram_bytes", c.bytes}, {"ram_limit_bytes", c.limit_bytes}, {"disk_bytes", s.disk ? s.disk->bytes : 0},
                     {"dropped", {{"non_finite", c.dropped_non_finite}, {"no_room", c.dropped_no_room}}}};
  out["host"] = s.host ? host_json(*s.host) : OrderedJson(nullptr);
  out["disk"] = s.disk ? disk_json(*s.disk) : OrderedJson(nullptr);
  return out;
}

}  // namespace

OrderedJson counters_json(const SpeculationCounters& c) {
  OrderedJson by_drafter = OrderedJson::object();
  for (const Route route : {Route::kCopy, Route::kMtp, Route::kBlock, Route::kGrammar})
    if (const SpeculationCounters::Of& of = c.of(route); of.cycles > 0)
      by_drafter[std::string(route_name(route))] = {{"cycles", of.cycles}, {"drafted", of.drafted}, {"verified_rows", of.verified}, {"verified", of.verified}, {"accepted", of.accepted}};
  return {{"cycles", c.cycles}, {"drafted", c.drafted}, {"verified_rows", c.verified_rows}, {"accepted", c.accepted},
          {"tokens_per_cycle", std::round(c.tokens_per_cycle() * 1e4) / 1e4}, {"by_drafter", std::move(by_drafter)}, {"plans", c.plans}};
}

OrderedJson status_json(const EngineStatus& s) {
  return {{"lanes", {{"total", s.lanes}, {"active", s.active}, {"waiting", s.waiting}, {"suspended", s.suspended}, {"loading", s.loading}}},
          {"queue", {{"waiting", s.waiting}, {"limit", s.queue_limit}}},
          {"pages", {{"in_use", s.pages_in_use}, {"limit", s.pages_limit}, {"page_bytes", s.page_bytes}}},
          {"engine_requests", {{"submitted", s.submitted}, {"finished", s.finished}, {"failed", s.failed}, {"cancelled", s.cancelled}, {"refused", s.refused}, {"preemptions", s.preemptions}}},
          {"tokens", {{"emitted", s.emitted_tokens}, {"prompt_rows", s.prompt_rows}, {"restored", s.restored_tokens}, {"recomputed_rows", s.recomputed_rows}}},
          {"passes", {{"decode", s.decode_passes}, {"prefill", s.prefill_passes}}},
          {"phases_ms", {{"decode", milliseconds(s.decode_s)}, {"prefill", milliseconds(s.prefill_s)}, {"draft", milliseconds(s.draft_s)},
                         {"forward", milliseconds(s.forward_s)}, {"settle", milliseconds(s.settle_s)}, {"other", milliseconds(s.other_s)}}},
          {"speculation", counters_json(s.speculation)},
          {"prefix_cache", cache_json(s)}};
}

OrderedJson result_json(const RequestResult& r, const DraftModels* drafts, const std::string& verify) {
  const auto rate = [](double tokens, double seconds) { return seconds > 0 && tokens > 0 ? std::round(tokens / seconds * 10) / 10 : 0.0; };
  OrderedJson speculation = {{"drafter", drafts ? drafts->resolution().resolved : "off"}, {"why", drafts ? drafts->resolution().why : ""}, {"verify", verify}};
  speculation.update(counters_json(r.counters));
  speculation["notes"] = drafts ? drafts->resolution().notes : std::vector<std::string>();
  speculation["dormant"] = r.dormant;
  return {{"speculation", std::move(speculation)},
          {"timing",
           {{"queue_s", r.queue_s}, {"prefill_s", r.prefill_s}, {"decode_s", r.decode.decode_s}, {"total_s", r.total_s},
            {"prefill_tok_s", rate(static_cast<double>(r.prompt_tokens - r.cached_tokens), r.prefill_s)},
            {"decode_tok_s", rate(static_cast<double>(r.answer_tokens) - 1, r.decode.decode_s)}, {"draft_s", r.decode.draft_s},
            {"verify_s", r.decode.verify_s}, {"commit_s", r.decode.commit_s}}},
          {"cache_note", r.cache_note},
          {"preemptions", r.preemptions}};
}

}  // namespace foretoken::serve
