// The order of interfaces: off, the user's drafter, a drafter folder beside the weights, a complete native head, suffix copy alone.
#include "decode/draft_models.h"

#include <fmt/format.h>

#include <algorithm>

namespace foretoken {

namespace fs = std::filesystem;

Result<DraftSettings> DraftSettings::parse(const std::string& speculate, const std::string& draft_model, const std::string& draft_weights) {
  DraftSettings s;
  s.draft_model = draft_model;
  if (draft_weights == "stored") {
    s.weights.reset();
  } else if (draft_weights != "auto") {
    s.weights = format_from_name(draft_weights);
    if (!s.weights || is_float_format(*s.weights) || !can_quantize(*s.weights))
      return Error{ErrorCode::kUsage, fmt::format("--draft-weights takes auto, stored, q8_0, q6_k, q5_k, q4_k or iq4_xs, not \"{}\"", draft_weights)};
  }
  if (speculate == "auto") return s;
  s.automatic = s.copy = s.mtp = s.block = s.grammar = false;
  if (speculate == "off") {
    s.off = true;
    return s;
  }
  size_t begin = 0;
  while (begin <= speculate.size()) {
    const size_t comma = std::min(speculate.find(',', begin), speculate.size());
    const std::string name = speculate.substr(begin, comma - begin);
    if (name == "copy") s.copy = true;
    else if (name == "mtp") s.mtp = true;
    else if (name == "dflash") s.block = true;
    else if (name == "grammar") s.grammar = true;
    else
      return Error{ErrorCode::kUsage, fmt::format("--speculate takes auto, off, or a comma list of copy, mtp, dflash and grammar, not \"{}\"", speculate)};
    begin = comma + 1;
  }
  return s;
}

DraftResolution resolve_drafters(const Bundle& bundle, const ModelConfig& config, const DraftSettings& s) {
  DraftResolution r;
  r.head = inspect_mtp(bundle, config);
  std::error_code ignored;
  if (!s.draft_model.empty()) {
    r.drafter_path = s.draft_model;
  } else {
    for (const char* name : {"dflash2", "dflash"})
      if (const fs::path folder = bundle.folder() / name; r.drafter_path.empty() && fs::is_directory(folder, ignored)) r.drafter_path = folder;
  }
  if (!r.drafter_path.empty()) r.drafter = inspect_drafter(r.drafter_path, config);
  else r.drafter.reason = "no drafter lies beside the weights and none was named";

  if (s.off) {
    r.resolved = "off";
    r.why = "speculation is switched off";
    return r;
  }
  r.copy = s.automatic || s.copy;
  r.grammar = s.automatic || s.grammar;
  r.block = (s.automatic || s.block) && r.drafter.fits;
  r.mtp = r.head.complete && (s.mtp && !s.automatic ? true : s.automatic && !r.block);
  if (!r.drafter_path.empty() && !r.drafter.fits)
    r.notes.push_back(fmt::format("the drafter in {} is not used: {}", r.drafter_path.string(), r.drafter.reason));
  else if (!s.automatic && s.block && !r.drafter.fits)
    r.notes.push_back(fmt::format("dflash was asked for and is not used: {}", r.drafter.reason));
  if (!r.head.complete && (r.head.present || r.head.declared > 0 || (!s.automatic && s.mtp)))
    r.notes.push_back(fmt::format("the MTP head is not used: {}", r.head.reason));

  if (r.block) {
    r.resolved = "dflash";
    r.why = fmt::format("a {} drafter that fits lies in {}", drafter_kind_name(r.drafter.kind), r.drafter_path.string());
  } else if (r.mtp) {
    r.resolved = "mtp";
    r.why = "the bundle's native MTP head is complete";
  } else if (r.copy) {
    r.resolved = "copy";
    r.why = "no drafter model can be used; text that repeats is copied";
  } else if (r.grammar) {
    r.resolved = "grammar";
    r.why = "no drafter was asked for; where an answer is bound to a grammar, what that leaves no choice about is drafted";
  } else {
    r.resolved = "off";
    r.why = "nothing that was asked for can be used; decoding is plain";
  }
  if ((r.block || r.mtp) && r.copy) r.why += ", with suffix copy beside it";
  return r;
}

std::unique_ptr<DraftModels> DraftModels::load(const Bundle& bundle, const ModelConfig& config, const Weights& weights, Backend& backend,
                                               const DraftSettings& settings, KvFormat kv_format, int max_rows, PackedCache* cache) {
  std::unique_ptr<DraftModels> m(new DraftModels(config, resolve_drafters(bundle, config, settings)));
  DraftResolution& r = m->resolution_;
  const auto drop = [&](bool& route, const Error& error) {
    route = false;
    r.notes.push_back(error.message);
    r.resolved = r.block ? "dflash" : r.mtp ? "mtp" : r.copy ? "copy" : r.grammar ? "grammar" : "off";
    r.why = "a drafter could not be loaded: " + error.message;
  };
  if (r.block) {
    if (auto opened = Bundle::open(r.drafter_path); !opened) {
      drop(r.block, opened.error());
    } else {
      m->drafter_bundle_ = *std::move(opened);
      auto block = DflashModel::load(*m->drafter_bundle_, config, weights, backend, {.weights = settings.weights, .kv_format = kv_format}, cache);
      if (block) m->block_ = *std::move(block);
      else drop(r.block, block.error());
    }
    if (!r.block && settings.automatic && r.head.complete) r.mtp = true, r.resolved = "mtp";
  }
  if (r.mtp) {
    if (auto head = load_mtp(bundle, config, backend, cache); head) {
      m->mtp_weights_ = *std::move(head);
      m->mtp_ = std::make_unique<MtpHead>(config, weights, *m->mtp_weights_, backend, MtpOptions{.max_rows = max_rows, .kv_format = kv_format});
    } else {
      drop(r.mtp, head.error());
    }
  }
  return m;
}

bool DraftModels::has(Route route) const {
  switch (route) {
    case Route::kCopy: return resolution_.copy;
    case Route::kMtp: return mtp_ != nullptr;
    case Route::kBlock: return block_ != nullptr;
    case Route::kGrammar: return resolution_.grammar;
    case Route::kScripted: return make_scripted_ != nullptr;
  }
  return false;
}

std::vector<std::unique_ptr<Drafter>> DraftModels::make(std::span<const Route> routes) {
  std::vector<std::unique_ptr<Drafter>> drafters;
  for (const Route route : {Route::kBlock, Route::kMtp, Route::kCopy, Route::kGrammar, Route::kScripted}) {
    const bool wanted = routes.empty() || std::find(routes.begin(), routes.end(), route) != routes.end();
    if (!wanted || !has(route)) continue;
    if (route == Route::kBlock) drafters.push_back(make_block_drafter(*block_));
    if (route == Route::kMtp) drafters.push_back(make_mtp_drafter(config_, *mtp_));
    if (route == Route::kCopy) drafters.push_back(make_lookup_drafter());
    if (route == Route::kGrammar) drafters.push_back(make_grammar_drafter());
    if (route == Route::kScripted) drafters.push_back(make_scripted_());
  }
  return drafters;
}

}  // namespace foretoken
