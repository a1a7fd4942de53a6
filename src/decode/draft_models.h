// Which drafters a bundle offers, which of them will be used and why, and the loaded models behind them. What does not fit means a slower
// but correct run with a reason, never an error. Source: docs/speculation.md, "Resolution".
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bundle/bundle.h"
#include "decode/controller.h"
#include "decode/drafter.h"
#include "model/dflash.h"
#include "model/mtp.h"

namespace foretoken {

// What the user allows.
struct DraftSettings {
  bool off = false;
  bool automatic = true;                  // everything below that fits, one model drafter at most
  bool copy = true, mtp = true, block = true, grammar = true;  // when not automatic: the routes named
  std::filesystem::path draft_model;      // empty: look beside the weights
  std::optional<QuantFormat> weights = QuantFormat::kQ8_0;  // block drafter's matrices that are stored larger become this; none: as stored

  // `speculate`: "auto", "off", or a comma list of copy, mtp, dflash, grammar. `draft_weights`: "auto" (floats become Q8_0), "stored", or a format that
  // can be written.
  static Result<DraftSettings> parse(const std::string& speculate, const std::string& draft_model, const std::string& draft_weights = "auto");
};

// Judged from headers only.
struct DraftResolution {
  bool copy = false, mtp = false, block = false;  // what will run
  bool grammar = false;                           // and, in answers bound to one, what their grammar foresees
  MtpStatus head;
  std::filesystem::path drafter_path;             // empty: no drafter was found
  DrafterStatus drafter;
  std::string resolved;                           // "dflash", "mtp", "copy", "grammar" or "off": the strongest route
  std::string why;                                // one sentence
  std::vector<std::string> notes;                 // what was asked for, or found, and cannot be used: one sentence each
};
DraftResolution resolve_drafters(const Bundle& bundle, const ModelConfig& config, const DraftSettings& settings);

// The loaded drafter models of one target, shared by all its generations.
class DraftModels {
 public:
  // Everything must outlive the object. A drafter that turns out to be damaged while loading is dropped with a note.
  static std::unique_ptr<DraftModels> load(const Bundle& bundle, const ModelConfig& config, const Weights& weights, Backend& backend,
                                           const DraftSettings& settings, KvFormat kv_format, int max_rows, PackedCache* cache = nullptr);

  const DraftResolution& resolution() const { return resolution_; }
  bool has(Route route) const;
  // A further drafter of Route::kScripted in every set: how tests and measurements bring their own.
  void offer_scripted(std::function<std::unique_ptr<Drafter>()> make) { make_scripted_ = std::move(make); }
  // New drafters for one generation: those of `routes` that are loaded; all loaded ones when empty.
  std::vector<std::unique_ptr<Drafter>> make(std::span<const Route> routes = {});
  SpeculationMemory& memory() { return memory_; }
  MtpHead* mtp() { return mtp_.get(); }
  DflashModel* block() { return block_.get(); }

 private:
  DraftModels(const ModelConfig& config, DraftResolution resolution) : config_(config), resolution_(std::move(resolution)) {}
  const ModelConfig& config_;
  DraftResolution resolution_;
  std::optional<MtpWeights> mtp_weights_;
  std::unique_ptr<MtpHead> mtp_;
  std::optional<Bundle> drafter_bundle_;
  std::unique_ptr<DflashModel> block_;
  std::function<std::unique_ptr<Drafter>()> make_scripted_;
  SpeculationMemory memory_;
};

}  // namespace foretoken
