// A model ready to run: bundle, configuration, backend, weights, forward pass, tokenizer and template, in the order of their lives.
#pragma once

#include <memory>
#include <optional>

#include "app/options.h"
#include "bundle/bundle.h"
#include "decode/draft_models.h"
#include "decode/generation.h"
#include "model/config.h"
#include "model/target.h"
#include "model/weights.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace foretoken::app {

// What can be read without loading weights.
struct OpenedBundle {
  Bundle bundle;
  std::optional<Tokenizer> tokenizer;      // absent: commands that take ids still work
  std::string tokenizer_note;              // why it is absent
  std::optional<ChatTemplate> chat_template;
  std::string template_note;
};
Result<OpenedBundle> open_bundle(const CommonOptions& options);
Result<Tokenizer> open_tokenizer(const Bundle& bundle);

// What may draft. A drafter that is named and not there is an error: nothing of a model has been read by then.
Result<DraftSettings> draft_settings(const CommonOptions& options, const SpeculationFlags& flags);

// Heap-allocated, because its parts refer to each other.
class LoadedModel {
 public:
  // Shows a progress line on a terminal. `flags`: also load what drafts; null: commands that decode plainly or not at all. Drafters that
  // cannot be used are logged, one line each.
  static Result<std::unique_ptr<LoadedModel>> load(const CommonOptions& options, const SpeculationFlags* flags = nullptr);

  const Bundle& bundle() const { return opened_.bundle; }
  const ModelConfig& config() const { return config_; }
  const OpenedBundle& opened() const { return opened_; }
  Backend& backend() { return *backend_; }
  TargetModel& target() { return *target_; }
  // Another one on the same weights, with lanes and pages of its own. Must not outlive this object.
  std::unique_ptr<TargetModel> make_target() { return std::make_unique<TargetModel>(config_, weights_, *backend_, target_->options()); }
  // The same over another backend that runs this one's matrices.
  std::unique_ptr<TargetModel> make_target(Backend& backend) { return std::make_unique<TargetModel>(config_, weights_, backend, target_->options()); }
  double load_seconds() const { return load_seconds_; }
  const SpeculationOptions& speculation_options() const { return speculation_; }
  DraftModels* drafts() { return drafts_.get(); }  // null when loaded without flags
  // Gives the target's weights back to the system; what refers to the model stays valid, but nothing may run until reload_weights(). Lanes,
  // cached prefixes and what speculation has learnt are untouched; the drafters' weights stay.
  void release_weights() { weights_ = {}; }
  Status reload_weights();
  bool has_weights() const { return weights_.head != nullptr; }
  // What drafts for one generation: all that the flags allowed, or the `routes` given.
  Speculation speculation(std::span<const Route> routes = {});
  // The tokenizer, or a sentence saying what is missing.
  Result<const Tokenizer*> tokenizer() const;
  Result<const ChatTemplate*> chat_template() const;

 private:
  LoadedModel() = default;
  OpenedBundle opened_;
  ModelConfig config_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<PackedCache> packed_cache_;
  Weights weights_;
  std::unique_ptr<TargetModel> target_;
  std::unique_ptr<DraftModels> drafts_;
  SpeculationOptions speculation_;
  double load_seconds_ = 0;
};

}  // namespace foretoken::app
