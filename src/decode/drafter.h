// Drafter: something that guesses what follows the anchor, with its own estimate of each guess. One object serves one lane. It cannot
// emit, and nothing it does can change what is emitted: it is told what became part of the sequence, and asked for branches.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "decode/calibration.h"
#include "decode/proposal.h"
#include "decode/rules.h"
#include "decode/sampling.h"
#include "model/dflash.h"
#include "model/mtp.h"

namespace foretoken {

// What a drafter reads of the target's passes.
struct DrafterNeeds {
  bool hidden = false;          // final normed rows
  std::vector<int> tap_layers;  // residual rows behind these layers, in this order
};

// Tokens that joined the sequence, in order, with the target's rows for them.
struct Committed {
  int64_t first = 0;                // sequence index of tokens[0]
  std::span<const TokenId> tokens;  // at least one
  TokenId next = -1;                // what follows them: the new anchor, or the rest of the prompt
  std::span<const int> rows;        // rows[i] of `hidden` and `taps` belongs to tokens[i]
  View hidden, taps;                // where operators compute, valid during the call; without rows when no drafter needs them
  int64_t upcoming = 0;             // decided tokens that follow tokens.back() and will be committed next (the rest of a prompt)
};

struct DraftRequest {
  int64_t position = 0;  // sequence index of the first guess
  TokenId anchor = -1;
  int depth = 0;         // longest branch, at least 1
  int nodes = 0;         // most nodes, at least 1
  bool tree = false;     // siblings are of use
  bool insist = false;   // the caller fixed the width: no restraint of the drafter's own
  float floor = 0;       // guesses whose cumulative probability falls below this are of no use
  const SamplingParams* sampling = nullptr;
  const TokenCounts* counts = nullptr;         // of prompt and answer so far; for penalties
  const Calibration* calibration = nullptr;    // what the drafter's own estimates were worth; may be null
  TokenRules* rules = nullptr;                 // at the first guess, before the call and behind it; may be null
  bool foresee = false;                        // what the rules foresee along a branch is taken into it
};

class Drafter {
 public:
  virtual ~Drafter() = default;
  virtual Route route() const = 0;
  virtual const DrafterNeeds& needs() const = 0;
  // Deepest branch it can propose.
  virtual int deepest() const = 0;

  // Forgets everything. The lane holds `history` already, of which no rows are known: a window that is missing fills as new tokens
  // commit. The next call is observe() or, when the anchor follows at once, propose().
  virtual void restart(std::span<const TokenId> history) = 0;
  // Consecutive: `committed.first` is where the last one (or the history) ended.
  virtual void observe(const Committed& committed) = 0;
  // Adds branches to `draft`, which is empty; may add none. Nothing is committed by it.
  virtual void propose(const DraftRequest& request, Draft& draft) = 0;
  // The drafts of several lanes, whose drafters (this one among them) are of one route and model: their rows run together. Each draft is
  // the one that `propose` alone would make.
  virtual void propose_group(std::span<Drafter* const> group, std::span<const DraftRequest> requests, std::span<Draft> drafts) {
    for (size_t i = 0; i < group.size(); ++i) group[i]->propose(requests[i], drafts[i]);
  }
  // Rows observed but not yet worked into the drafter's own memory: the next proposal pays for them.
  virtual int backlog() const { return 0; }

  // What it remembers beyond the tokens, for the prefix cache: `restore` with the same history continues as if nothing had happened. Empty
  // for a drafter that needs nothing but the tokens, and where nothing is known.
  virtual std::vector<std::byte> save() { return {}; }
  // As `restart`, then takes what `save` gave when the lane held exactly `history`. False when the bytes are not such a memory of this
  // model: the drafter is as after `restart`, which costs acceptance until its window has filled, and nothing else.
  virtual bool restore(std::span<const TokenId> history, std::span<const std::byte> saved) {
    restart(history);
    return saved.empty();
  }
};

// Suffix copy over prompt and committed tokens. Needs no weights.
struct LookupOptions {
  int min_match = 3;        // shortest suffix that is looked up
  int first_width = 3;      // then 7 after a fully accepted window, and further while a long copy runs
  int max_width = kMaxNodes;
  int silence = 16;         // proposals left out after two windows without an accepted token
};
std::unique_ptr<Drafter> make_lookup_drafter(const LookupOptions& options = {});

// The runs that a request's rules foresee. Needs no weights.
std::unique_ptr<Drafter> make_grammar_drafter();

// The native head. `head` must outlive the drafter.
std::unique_ptr<Drafter> make_mtp_drafter(const ModelConfig& config, MtpHead& head);

// Block diffusion (DFlash 1 and 2, DSpark). `model` must outlive the drafter.
std::unique_ptr<Drafter> make_block_drafter(DflashModel& model);

// The drafter's own choice among candidates of one position, coupled to the target's: temperature, filters and the same Gumbel noise,
// penalties counted along the drafted path. Fills `ranked` best first with estimates of what the target will pick.
struct RankedCandidate {
  TokenId token;
  int index;          // of `candidates`; -1: it is none of them
  float key;          // filtered score, noise included
  float probability;
  bool foreseen = false;  // by the rules
};
struct ScoredCandidate {
  TokenId token;
  float score;  // raw logit
};
// Candidates outside `mask` are left out.
void rank_candidates(std::span<const ScoredCandidate> candidates, const SamplingParams& sampling, const TokenCounts* counts,
                     std::span<const TokenId> path, int64_t position, std::vector<RankedCandidate>& ranked, TokenMask mask = {});

// The same under the request's rules, for the successor of a drafted `path` at sequence index `position`: only what they allow, and what
// they foresee before all but a candidate that is sure. `run`: what they foresaw behind the path already, next token first; looked up where it is empty and foresight
// wanted. Whoever takes the foreseen token hands the rest on. Nothing follows the answer's end.
void rank_successors(const DraftRequest& request, std::span<const ScoredCandidate> candidates, std::span<const TokenId> path,
                     int64_t position, std::vector<TokenId>& run, std::vector<RankedCandidate>& ranked);

// A foreseen token's probability before anything is known of the text.
inline constexpr float kForeseen = 0.95f;

}  // namespace foretoken
