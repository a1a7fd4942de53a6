// The exactness certificate: proof, on this machine and for this model, that drafting, verifying, chunking, lanes, preemption and restored
// prefixes change no byte of any answer. It knows prompts as ids and prints nothing. Source: docs/speculation.md.
#pragma once

#include <array>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "decode/draft_models.h"
#include "decode/generation.h"
#include "model/target.h"

namespace foretoken {

enum class Verdict : uint8_t { kPass, kFail, kInconclusive };
std::string_view verdict_name(Verdict verdict);  // "pass", "fail", "inconclusive"

enum class CertifyPart : uint8_t { kRows, kChunks, kIds, kForced, kLanes, kPreemption, kRestore };
inline constexpr std::array kCertifyParts = {CertifyPart::kRows,  CertifyPart::kChunks,     CertifyPart::kIds,    CertifyPart::kForced,
                                             CertifyPart::kLanes, CertifyPart::kPreemption, CertifyPart::kRestore};
std::string_view part_name(CertifyPart part);                // "rows", ...
Result<CertifyPart> parse_part(std::string_view name);       // kUsage

struct CertifyOptions {
  std::vector<std::vector<TokenId>> prompts;  // at least one of 8 or more tokens; the more varied, the stronger
  int tokens = 160;          // of each answer
  int64_t least_drafted = 200, least_rejected = 20;  // of every cell, by its own drafter; fewer is inconclusive
  int most_answers = 24;     // per cell of ids, until it has drafted and rejected enough
  int widths = 16;           // row bits: widths 1 to this
  bool quick = false;        // a cell is over as soon as it has drafted and rejected enough, not after every prompt
  bool fail_fast = false;    // stop behind the first cell that fails
  std::vector<CertifyPart> parts;  // in their own order; empty: all
  std::filesystem::path folder;    // for entries on disk: made and emptied by the run; empty: that cell is left out, with its reason
};

struct CertifyCell {
  std::string part;      // part_name()
  std::string name;      // for example "dflash tree T=0.7"
  Verdict verdict = Verdict::kPass;
  int64_t compared_logits = 0, compared_tokens = 0, compared_states = 0;
  int64_t compared_drafts = 0;   // cycles whose proposals and acceptance were held against an uninterrupted run's
  int64_t drafted = 0, rejected = 0, accepted = 0, cycles = 0;
  int64_t preemptions = 0, restored_tokens = 0;
  std::string detail;    // the first difference, or why it is inconclusive
};

struct Certificate {
  std::vector<CertifyCell> cells;
  Verdict verdict() const;  // fail over inconclusive over pass
  int64_t total(int64_t CertifyCell::* count) const;
  OrderedJson json() const;
};

// What is certified. `engine_target` is another model on the same weights and backend, because engines want a page pool of their own.
struct CertifySubject {
  TargetModel& target;
  TargetModel& engine_target;
  DraftModels& drafts;
};

// Runs every cell; `progress` is called after each. `drafts` may lack routes: a route the bundle does not offer has no cells and is listed in
// `absent`, and so is every other thing that could not be run.
struct CertifyResult {
  Certificate certificate;
  std::vector<std::string> absent;  // what has no cells, each with the reason
};
Result<CertifyResult> certify(const CertifySubject& subject, const CertifyOptions& options,
                              const std::function<void(const CertifyCell&)>& progress = {});

}  // namespace foretoken
