// Order of the parts, plain answers, verdicts, and the certificate as JSON.
#include "qualify/certify.h"

#include <fmt/format.h>

#include <algorithm>

#include "qualify/certifier.h"

namespace foretoken {

// ---- What the parts share

std::vector<Route> Certifier::routes() const {
  std::vector<Route> offered;
  for (const Route route : {Route::kCopy, Route::kMtp, Route::kBlock})
    if (subject_.drafts.has(route)) offered.push_back(route);
  return offered;
}

Result<Certifier::Outcome> Certifier::answer(const Tokens& prompt, const SamplingParams& sampling, int64_t tokens, Speculation speculation, States states, TokenRules* rules) {
  auto lane = target().make_lane();
  Generation generation(target(), *lane, {.sampling = sampling, .max_tokens = tokens, .rules = rules}, clock_, std::move(speculation));
  TRY(generation.start(prompt));
  Outcome o;
  o.answer.states[lane->length()] = lane->hash();
  while (!generation.finished()) {
    TRY(generation.step());
    if (states == States::kEvery || generation.finished()) o.answer.states[lane->length()] = lane->hash();
  }
  o.answer.tokens.assign(generation.tokens().begin(), generation.tokens().end());
  o.answer.length = lane->length();
  o.counters = generation.counters();
  return o;
}

Result<const PlainAnswer*> Certifier::plain(const Tokens& prompt, const SamplingParams& sampling, int64_t tokens, States states) {
  const auto key = std::tuple(prompt, sampling.temperature, sampling.repetition_penalty, sampling.seed, tokens, states);
  if (const auto it = plain_.find(key); it != plain_.end()) return &it->second;
  ASSIGN_OR_RETURN(Outcome o, answer(prompt, sampling, tokens, {}, states));
  return &plain_.emplace(key, std::move(o.answer)).first->second;
}

void Certifier::compare(CertifyCell& cell, const PlainAnswer& expected, const Outcome& got, size_t prompt) {
  cell.compared_tokens += static_cast<int64_t>(expected.tokens.size());
  ++cell.compared_states;
  cell.cycles += got.counters.cycles;
  cell.accepted += got.counters.accepted;
  const auto mismatch = std::mismatch(expected.tokens.begin(), expected.tokens.end(), got.answer.tokens.begin(), got.answer.tokens.end());
  if (mismatch.first != expected.tokens.end() || mismatch.second != got.answer.tokens.end())
    fail(cell, fmt::format("prompt {}: token {} of the answer differs from plain decoding", prompt, mismatch.first - expected.tokens.begin()));
  else if (expected.length != got.answer.length || expected.states.at(expected.length) != got.answer.states.at(got.answer.length))
    fail(cell, fmt::format("prompt {}: ids are equal, the lane's state is not", prompt));
}

void Certifier::demand_enough(CertifyCell& cell) const {
  if (cell.verdict != Verdict::kPass || enough(cell)) return;
  cell.verdict = Verdict::kInconclusive;
  cell.detail = fmt::format("{} drafted and {} rejected tokens; a verdict needs {} and {}", cell.drafted, cell.rejected, options_.least_drafted, options_.least_rejected);
}

Status Certifier::finish(CertifyCell cell) {
  if (progress_) progress_(cell);
  result_.certificate.cells.push_back(std::move(cell));
  if (failed()) return Error{ErrorCode::kCheckFailed, "a cell failed"};
  return {};
}

SamplingParams certify_sampling(float temperature, uint64_t seed) {
  SamplingParams s;
  s.temperature = temperature;
  if (temperature > 0) {
    s.top_p = 0.95f;
    s.top_k = 20;
    s.seed = seed;
  }
  return s;
}

SpeculationOptions pinned_plan(Route route, VerifyMode mode) {
  SpeculationOptions options{.verify = mode, .width = mode == VerifyMode::kTree ? 16 : route == Route::kMtp ? 5 : 7};
  if (mode == VerifyMode::kLive) options.live_threshold = 0.1f;
  return options;
}

void fail(CertifyCell& cell, std::string detail) {
  if (cell.verdict == Verdict::kFail) return;
  cell.verdict = Verdict::kFail;
  cell.detail = std::move(detail);
}

// ---- Names and verdicts

std::string_view verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPass: return "pass";
    case Verdict::kFail: return "fail";
    case Verdict::kInconclusive: return "inconclusive";
  }
  return "?";
}

std::string_view part_name(CertifyPart part) {
  switch (part) {
    case CertifyPart::kRows: return "rows";
    case CertifyPart::kChunks: return "chunks";
    case CertifyPart::kIds: return "ids";
    case CertifyPart::kForced: return "forced";
    case CertifyPart::kLanes: return "lanes";
    case CertifyPart::kPreemption: return "preemption";
    case CertifyPart::kRestore: return "restore";
  }
  return "?";
}

Result<CertifyPart> parse_part(std::string_view name) {
  for (const CertifyPart part : kCertifyParts)
    if (part_name(part) == name) return part;
  return Error{ErrorCode::kUsage, fmt::format("the certificate has no part \"{}\": rows, chunks, ids, forced, lanes, preemption and restore are its parts", name)};
}

Verdict Certificate::verdict() const {
  Verdict verdict = cells.empty() ? Verdict::kInconclusive : Verdict::kPass;
  for (const CertifyCell& cell : cells) {
    if (cell.verdict == Verdict::kFail) return Verdict::kFail;
    if (cell.verdict == Verdict::kInconclusive) verdict = Verdict::kInconclusive;
  }
  return verdict;
}

int64_t Certificate::total(int64_t CertifyCell::* count) const {
  int64_t sum = 0;
  for (const CertifyCell& cell : cells) sum += cell.*count;
  return sum;
}

OrderedJson Certificate::json() const {
  OrderedJson list = OrderedJson::array();
  for (const CertifyCell& c : cells)
    list.push_back({{"part", c.part}, {"name", c.name}, {"verdict", std::string(verdict_name(c.verdict))}, {"compared_logits", c.compared_logits},
                    {"compared_tokens", c.compared_tokens}, {"compared_states", c.compared_states}, {"compared_drafts", c.compared_drafts}, {"cycles", c.cycles},
                    {"drafted", c.drafted}, {"accepted", c.accepted}, {"rejected", c.rejected}, {"preemptions", c.preemptions},
                    {"restored_tokens", c.restored_tokens}, {"detail", c.detail}});
  return {{"verdict", std::string(verdict_name(verdict()))},
          {"compared_logits", total(&CertifyCell::compared_logits)},
          {"compared_tokens", total(&CertifyCell::compared_tokens)},
          {"compared_states", total(&CertifyCell::compared_states)},
          {"compared_drafts", total(&CertifyCell::compared_drafts)},
          {"drafted", total(&CertifyCell::drafted)},
          {"rejected", total(&CertifyCell::rejected)},
          {"preemptions", total(&CertifyCell::preemptions)},
          {"restored_tokens", total(&CertifyCell::restored_tokens)},
          {"cells", list}};
}

// ---- The run

namespace {

Status run_part(Certifier& c, CertifyPart part) {
  switch (part) {
    case CertifyPart::kRows: return certify_rows(c);
    case CertifyPart::kChunks: return certify_chunks(c);
    case CertifyPart::kIds: return certify_ids(c);
    case CertifyPart::kForced: return certify_forced(c);
    case CertifyPart::kLanes: return certify_lanes(c);
    case CertifyPart::kPreemption: return certify_preemption(c);
    case CertifyPart::kRestore: return certify_restore(c);
  }
  return {};
}

// Routes that the bundle does not offer have no cells.
void list_absent_routes(Certifier& c) {
  const DraftResolution& r = c.drafts().resolution();
  for (const auto& [route, reason] : {std::pair(Route::kCopy, std::string()), {Route::kMtp, r.head.reason}, {Route::kBlock, r.drafter.reason}})
    if (!c.drafts().has(route)) c.leave_out(fmt::format("{}: {}", route_name(route), reason.empty() ? "switched off" : reason));
}

Status run_parts(Certifier& c) {
  list_absent_routes(c);
  const std::vector<CertifyPart>& wanted = c.options().parts;
  for (const CertifyPart part : kCertifyParts)
    if (wanted.empty() || std::find(wanted.begin(), wanted.end(), part) != wanted.end()) TRY(run_part(c, part));
  return {};
}

}  // namespace

Result<CertifyResult> certify(const CertifySubject& subject, const CertifyOptions& options, const std::function<void(const CertifyCell&)>& progress) {
  if (options.prompts.empty()) return Error{ErrorCode::kUsage, "certify needs at least one prompt"};
  for (const Tokens& prompt : options.prompts)
    if (prompt.size() < 8) return Error{ErrorCode::kUsage, "certify needs prompts of at least 8 tokens"};
  if (options.tokens < options.widths) return Error{ErrorCode::kUsage, fmt::format("certify needs answers of at least {} tokens", options.widths)};
  Certifier certifier(subject, options, progress);
  if (const Status done = run_parts(certifier); !done && !certifier.failed()) return done.error();
  return certifier.take();
}

}  // namespace foretoken
