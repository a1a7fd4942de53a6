// The exactness certificate: proof, on this machine and for this model, that drafting, verifying, chunking and widths change no byte of
// any answer. It knows prompts as ids and prints nothing. Source: docs/speculation.md.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "decode/draft_models.h"
#include "decode/generation.h"
#include "model/target.h"

namespace foretoken {

enum class Verdict : uint8_t { kPass, kFail, kInconclusive };
std::string_view verdict_name(Verdict verdict);  // "pass", "fail", "inconclusive"

struct CertifyOptions {
  std::vector<std::vector<TokenId>> prompts;  // at least one of 8 or more tokens; the more varied, the stronger
  int tokens = 160;          // of each answer
  int64_t least_drafted = 200, least_rejected = 20;  // of every cell, by its own drafter; fewer is inconclusive
  int most_answers = 24;     // per cell, until it has drafted and rejected enough
  int widths = 16;           // row bits: widths 1 to this
  bool quick = false;        // a cell is over as soon as it has drafted and rejected enough, not after every prompt
  bool fail_fast = false;    // stop behind the first cell that fails
};

struct CertifyCell {
  std::string part;      // "rows", "ids", "chunks", "forced"
  std::string name;      // for example "dflash tree T=0.7"
  Verdict verdict = Verdict::kPass;
  int64_t compared_logits = 0, compared_tokens = 0, compared_states = 0;
  int64_t drafted = 0, rejected = 0, accepted = 0, cycles = 0;
  std::string detail;    // the first difference, or why it is inconclusive
};

struct Certificate {
  std::vector<CertifyCell> cells;
  Verdict verdict() const;  // fail over inconclusive over pass
  int64_t total(int64_t CertifyCell::* count) const;
  OrderedJson json() const;
};

// Runs every cell; `progress` is called after each. `drafts` may lack routes: their cells are inconclusive, except that a route the bundle
// does not offer at all is left out and listed in `absent`.
struct CertifyResult {
  Certificate certificate;
  std::vector<std::string> absent;  // routes without cells, each with the reason
};
Result<CertifyResult> certify(TargetModel& target, DraftModels& drafts, const CertifyOptions& options,
                              const std::function<void(const CertifyCell&)>& progress = {});

}  // namespace foretoken
