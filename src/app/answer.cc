// The glue between tokens and text while an answer runs.
#include "app/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <csignal>

#include "app/progress.h"
#include "text/detokenizer.h"

namespace foretoken::app {
namespace {

std::atomic<bool> interrupt_flag{false};

// Sends visible text to the sink, in the part it belongs to; reasoning ends at the </think> token, and the blank lines around the
// boundary belong to neither part.
class PartWriter {
 public:
  PartWriter(Answer& answer, const AnswerSink& sink, bool reasoning) : answer_(answer), sink_(sink), reasoning_(reasoning) {}

  bool in_reasoning() const { return reasoning_; }
  void drafted(std::optional<Route> route) { drafted_ = route; }
  void end_reasoning() {
    while (!answer_.reasoning.empty() && answer_.reasoning.back() == '\n') answer_.reasoning.pop_back();
    held_newlines_.clear();
    reasoning_ = false;
    skip_newlines_ = true;
  }
  void write(std::string_view text) {
    if (!reasoning_ && skip_newlines_) {
      text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
      skip_newlines_ = text.empty();
    }
    if (text.empty()) return;
    if (reasoning_) {  // trailing newlines wait: they may be the boundary's
      std::string pending = held_newlines_ + std::string(text);
      const size_t end = pending.find_last_not_of('\n');
      const size_t keep = end == std::string::npos ? 0 : end + 1;
      held_newlines_ = pending.substr(keep);
      pending.resize(keep);
      answer_.reasoning += pending;
      if (sink_ && !pending.empty()) sink_(AnswerPart::kReasoning, pending, drafted_);
      return;
    }
    answer_.text += text;
    if (sink_) sink_(AnswerPart::kText, text, drafted_);
  }

 private:
  Answer& answer_;
  const AnswerSink& sink_;
  bool reasoning_, skip_newlines_ = false;
  std::string held_newlines_;
  std::optional<Route> drafted_;
};

}  // namespace

void watch_interrupts() {
  static struct sigaction before {};
  struct sigaction action {};
  action.sa_handler = [](int) {
    interrupt_flag.store(true);
    ::sigaction(SIGINT, &before, nullptr);  // a second Ctrl-C ends the program
  };
  struct sigaction now {};
  ::sigaction(SIGINT, nullptr, &now);
  if (now.sa_handler == action.sa_handler) return;  // it watches already
  before = now;
  ::sigaction(SIGINT, &action, nullptr);
}
bool interrupted() { return interrupt_flag.load(); }
void clear_interrupt() { interrupt_flag.store(false); }

std::string marked(std::string_view piece, std::optional<Route> drafted, bool dim) {
  if (!drafted) return std::string(piece);
  const char* colour = *drafted == Route::kCopy ? "33" : *drafted == Route::kMtp ? "36" : *drafted == Route::kGrammar ? "35" : "32";
  return fmt::format("\033[{};4m{}\033[0m{}", colour, piece, dim ? "\033[2m" : "");
}

bool opens_reasoning(const Tokenizer& tokenizer, std::span<const TokenId> prompt) {
  const auto open = tokenizer.find("<think>"), close = tokenizer.find("</think>");
  if (!open) return false;
  for (size_t i = prompt.size(); i-- > 0;) {
    if (prompt[i] == *open) return true;
    if (close && prompt[i] == *close) return false;
    if (prompt.size() - i > 8) return false;  // the generation prompt ends with it
  }
  return false;
}

Result<Answer> generate_answer(LoadedModel& model, LaneState& lane, const Tokenizer* tokenizer, AnswerRequest request,
                               const CommonOptions& options, const AnswerSink& sink) {
  Answer answer;
  if (!tokenizer && !request.sampling.stop.empty())
    return Error{ErrorCode::kUsage, "--stop needs a tokenizer, and this bundle has none"};
  for (const std::string& stop : request.sampling.stop)
    if (stop.empty()) return Error{ErrorCode::kUsage, "--stop takes a text of at least one character"};
  request.sampling.params.seed = answer.seed = request.sampling.seed ? *request.sampling.seed : draw_seed();
  answer.prompt_tokens = static_cast<int64_t>(request.prompt.size());
  answer.cached_tokens = request.cached;
  CHECK(lane.length() == request.cached);

  GenerationOptions generation_options{.sampling = request.sampling.params, .max_tokens = request.sampling.max_tokens,
                                       .prefill_chunk = options.prefill_chunk, .rules = request.rules};
  if (!request.sampling.ignore_eos) {
    generation_options.stop_tokens = model.config().stop_tokens;
    if (tokenizer)
      for (const TokenId id : tokenizer->end_ids())
        if (std::find(generation_options.stop_tokens.begin(), generation_options.stop_tokens.end(), id) == generation_options.stop_tokens.end())
          generation_options.stop_tokens.push_back(id);
  }
  // Ids beyond the tokenizer are padding rows of the embedding: never chosen where text is wanted.
  if (tokenizer)
    for (TokenId id = tokenizer->size(); id < model.config().vocab; ++id) generation_options.sampling.banned.push_back(id);

  const SteadyClock clock;
  Generation generation(model.target(), lane, std::move(generation_options), clock, std::move(request.speculation));
  PartWriter writer(answer, sink, tokenizer && request.split_reasoning);
  std::optional<Detokenizer> detokenizer;
  std::optional<StopMatcher> stops;
  std::optional<TokenId> close;
  if (tokenizer) {
    detokenizer.emplace(*tokenizer, Detokenizer::Options{.skip_special = true});
    stops.emplace(request.sampling.stop);
    close = tokenizer->find("</think>");
    generation.on_token([&](TokenId token) {
      writer.drafted(generation.drafted_by(generation.tokens().size() - 1));
      const bool ends = writer.in_reasoning() && close && token == *close;
      if (writer.in_reasoning() && !ends) ++answer.reasoning_tokens;  // the mark is none of them
      if (ends) {
        writer.write(stops->add(detokenizer->flush()));
        writer.end_reasoning();
        return false;
      }
      writer.write(stops->add(detokenizer->add(token)));
      return stops->stopped();
    });
  }
  ProgressLine progress("reading the prompt", sink && options.level() != LogLevel::kQuiet);
  const auto on_progress = [&](int64_t done, int64_t total) {
    if (total > options.prefill_chunk) progress.show(static_cast<uint64_t>(done), static_cast<uint64_t>(total));
    if (done == total) progress.clear();
    return !interrupted();
  };
  const std::span<const TokenId> prompt(request.prompt);
  const size_t cached = static_cast<size_t>(request.cached);
  const TimePoint asked = clock.now();
  TRY(generation.start(prompt.subspan(cached), on_progress, prompt.first(cached)));
  MeasuredAnswer watched;
  CycleWatch watch(generation, watched);
  while (!generation.finished()) {
    const TimePoint begin = clock.now();
    if (interrupted()) {
      generation.cancel();
    } else {
      TRY(generation.step());
      if (request.trace) watch.stepped(begin);
    }
  }
  if (request.trace) {
    request.trace->span("answer", "prompt", asked, generation.prefill_seconds(), {{"tokens", prompt.size()}, {"restored", cached}});
    request.trace->cycles("answer", watched.cycles, watched.plans);
  }
  if (tokenizer && !stops->stopped()) {
    writer.drafted(std::nullopt);
    writer.write(stops->add(detokenizer->flush()));
    writer.write(stops->flush());
  }
  answer.ids.assign(generation.tokens().begin(), generation.tokens().end());
  answer.reason = generation.reason();
  answer.timing = generation.timing();
  answer.prefill_s = generation.prefill_seconds();
  answer.counters = generation.counters();
  answer.dormant = generation.dormant();
  for (const std::string& sentence : answer.dormant) log_info(options, "note: " + sentence);
  return answer;
}

}  // namespace foretoken::app
