// Conversations for measurements: what a user would say, rendered as the server renders it, and answered by an engine
// or by a cold lane alone.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "app/loaded_model.h"
#include "engine/engine.h"
#include "serve/model_text.h"
#include "serve/prompt_maker.h"
#include "serve/rules.h"

namespace foretoken::app {

// One request of a conversation, ready to be answered any number of times.
struct DialogueTurn {
  serve::MadePrompt prompt;
  std::optional<serve::GrammarSpec> grammar;
  int64_t max_tokens = 128;
};

struct DialogueAnswer {
  std::vector<TokenId> tokens;
  int64_t prompt_tokens = 0, cached_tokens = 0;
  std::string cache_note;
  double first_token_s = 0;  // from the request to its first token
  CycleTiming decode;
  SpeculationCounters counters;
};

class Dialogue {
 public:
  // kInvalidFile: the bundle has no tokenizer or no template. `model` must outlive it.
  static Result<std::unique_ptr<Dialogue>> open(LoadedModel& model, const EngineOptions& engine);

  Result<DialogueTurn> turn(const serve::Conversation& conversation, int64_t max_tokens,
                            std::optional<serve::GrammarSpec> grammar = std::nullopt) const;
  // What goes into the history: the answer's text without its reasoning and its marks.
  std::string said(std::span<const TokenId> answer) const;

  // A cold lane, alone, with all drafters.
  Result<DialogueAnswer> alone(const DialogueTurn& turn);
  Result<DialogueAnswer> ask(Engine& engine, const DialogueTurn& turn);

  // An engine on the model with the dialogue's options; one at a time. `disk` may be null.
  std::unique_ptr<Engine> make_engine(bool cache, DiskTier* disk = nullptr);
  std::unique_ptr<DiskTier> open_disk(const std::filesystem::path& folder);
  const Clock& clock() const { return clock_; }

 private:
  Dialogue(LoadedModel& model, const EngineOptions& engine) : model_(model), options_(engine) {}
  Result<std::unique_ptr<TokenRules>> rules(const DialogueTurn& turn) const;

  LoadedModel& model_;
  EngineOptions options_;
  serve::ModelText text_;
  std::unique_ptr<serve::RuleMaker> rules_;
  std::unique_ptr<TargetModel> target_;
  SteadyClock clock_;
  PosixFiles files_;
};

}  // namespace foretoken::app
