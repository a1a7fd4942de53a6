// The server's text side on a single thread.
#include "app/dialogue.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "text/detokenizer.h"

namespace foretoken::app {

Result<std::unique_ptr<Dialogue>> Dialogue::open(LoadedModel& model, const EngineOptions& engine) {
  ASSIGN_OR_RETURN(const Tokenizer* tokenizer, model.tokenizer());
  ASSIGN_OR_RETURN(const ChatTemplate* chat_template, model.chat_template());
  std::unique_ptr<Dialogue> d(new Dialogue(model, engine));
  d->text_.tokenizer = *tokenizer;
  d->text_.chat_template = *chat_template;
  d->text_.stop_tokens = model.config().stop_tokens;
  for (const TokenId id : tokenizer->end_ids())
    if (!d->text_.is_stop(id)) d->text_.stop_tokens.push_back(id);
  d->rules_ = std::make_unique<serve::RuleMaker>(d->text_, model.config().vocab);
  d->target_ = model.make_target();
  return d;
}

Result<DialogueTurn> Dialogue::turn(const serve::Conversation& conversation, int64_t max_tokens,
                                    std::optional<serve::GrammarSpec> grammar) const {
  auto made = serve::make_prompt(text_, conversation);
  if (!made) return Error{ErrorCode::kInvalidFile, made.error().message};
  return DialogueTurn{.prompt = *std::move(made), .grammar = std::move(grammar), .max_tokens = max_tokens};
}

std::string Dialogue::said(std::span<const TokenId> answer) const {
  size_t begin = 0;
  const auto end_of_thinking = text_.think_end();
  for (size_t i = 0; i < answer.size(); ++i)
    if (end_of_thinking && answer[i] == *end_of_thinking) begin = i + 1;
  Detokenizer detokenizer(*text_.tokenizer, {.skip_special = true});
  std::string text;
  for (const TokenId id : answer.subspan(begin)) text += detokenizer.add(id);
  text += detokenizer.flush();
  text.erase(0, std::min(text.find_first_not_of('\n'), text.size()));
  return text;
}

Result<std::unique_ptr<TokenRules>> Dialogue::rules(const DialogueTurn& turn) const {
  if (!turn.grammar) return std::unique_ptr<TokenRules>();
  serve::Submission s;
  s.in_reasoning = turn.prompt.in_reasoning;
  s.grammar = turn.grammar;
  return rules_->make(s);
}

Result<DialogueAnswer> Dialogue::alone(const DialogueTurn& turn) {
  ASSIGN_OR_RETURN(const auto rules, this->rules(turn));
  auto lane = model_.target().make_lane();
  Generation generation(model_.target(), *lane,
                        {.max_tokens = turn.max_tokens,
                         .stop_tokens = text_.stop_tokens,
                         .prefill_chunk = options_.schedule.prefill_chunk,
                         .rules = rules.get()},
                        clock_, model_.speculation());
  TRY(generation.start(turn.prompt.ids));
  while (!generation.finished()) TRY(generation.step());
  return DialogueAnswer{.tokens = {generation.tokens().begin(), generation.tokens().end()},
                        .prompt_tokens = static_cast<int64_t>(turn.prompt.ids.size()),
                        .first_token_s = generation.prefill_seconds(),
                        .decode = generation.timing(),
                        .counters = generation.counters()};
}

Result<DialogueAnswer> Dialogue::ask(Engine& engine, const DialogueTurn& turn) {
  DialogueAnswer answer;
  std::optional<Error> failed;
  Request request{.prompt = turn.prompt.ids,
                  .max_tokens = turn.max_tokens,
                  .stop_tokens = text_.stop_tokens,
                  .boundaries = turn.prompt.boundaries};
  ASSIGN_OR_RETURN(request.rules, rules(turn));
  request.events = [&](const RequestEvent& e) {
    if (e.kind == RequestEvent::Kind::kTokens) {
      const auto news = e.sequence->tokens().subspan(e.first, e.count);
      answer.tokens.insert(answer.tokens.end(), news.begin(), news.end());
    }
    if (e.kind != RequestEvent::Kind::kFinished) return;
    const RequestResult& r = *e.result;
    failed = r.error;
    answer.prompt_tokens = r.prompt_tokens;
    answer.cached_tokens = r.cached_tokens;
    answer.cache_note = r.cache_note;
    answer.first_token_s = r.queue_s + r.prefill_s;
    answer.decode = r.decode;
    answer.counters = r.counters;
  };
  TRY(engine.submit(std::move(request)));
  while (!engine.idle())
    if (!engine.step() && engine.waits_for_copies()) std::this_thread::sleep_for(std::chrono::microseconds(100));
  if (failed) return *failed;
  return answer;
}

std::unique_ptr<Engine> Dialogue::make_engine(bool cache, DiskTier* disk) {
  EngineOptions options = options_;
  options.lanes = 1;
  options.cache.enabled = cache;
  options.speculation = model_.speculation_options();
  return std::make_unique<Engine>(*target_, model_.drafts(), options, clock_, disk);
}

std::unique_ptr<DiskTier> Dialogue::open_disk(const std::filesystem::path& folder) {
  return DiskTier::open({.folder = folder,
                         .fingerprint = "measurement",
                         .page_bytes = target_->pages().layout().page_bytes(),
                         .least_gain_tokens = 1},
                        files_, clock_);
}

}  // namespace foretoken::app
