// Events to answers.
#include "serve/call.h"

#include <fmt/format.h>

namespace foretoken::serve {
namespace {

constexpr double kQuietSeconds = 5;  // after which a stream says that it lives

bool is_raw(const PromptInput& input) { return !std::holds_alternative<Conversation>(input); }

// Calls of strict tools follow their schemas even where none is required.
bool any_strict(const OrderedJson& tools) {
  for (const OrderedJson& tool : tools)
    if (tool["function"].value("strict", OrderedJson(false)) == OrderedJson(true)) return true;
  return false;
}

double seconds(Call::Clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

int64_t CallFacts::prompt_tokens() const {
  int64_t n = 0;
  for (const MadePrompt& prompt : prompts) n += static_cast<int64_t>(prompt.ids.size());
  return n;
}

int64_t CallFacts::cached_tokens() const {  // of the first choice of each prompt: the others find what it left
  int64_t n = 0;
  for (size_t i = 0; i < choices.size(); i += static_cast<size_t>(spec.n)) n += choices[i].cached_tokens;
  return n;
}

int64_t CallFacts::answer_tokens() const {
  int64_t n = 0;
  for (const Choice& choice : choices) n += choice.answer_tokens;
  return n;
}

int64_t CallFacts::reasoning_tokens() const {
  int64_t n = 0;
  for (const Choice& choice : choices) n += choice.answer.reasoning_tokens();
  return n;
}

OrderedJson CallFacts::extension(const Choice& choice) const {
  OrderedJson out = choice.facts.is_object() ? choice.facts : OrderedJson::object();
  out["seed"] = seed;
  return out;
}

OrderedJson CallFacts::extension() const {
  if (choices.size() == 1) return extension(choices[0]);
  OrderedJson all = OrderedJson::array();
  for (const Choice& choice : choices) all.push_back(extension(choice));
  return {{"seed", seed}, {"choices", std::move(all)}};
}

Call::Call(EngineLink& engine, const ModelText& model, std::shared_ptr<Exchange> exchange, CallFacts facts, Clock::time_point arrival)
    : engine_(engine), model_(model), exchange_(std::move(exchange)), facts_(std::move(facts)), arrival_(arrival), last_said_(arrival) {
  const GenerationSpec& spec = facts_.spec;
  for (size_t i = 0; i < facts_.prompts.size() * static_cast<size_t>(spec.n); ++i) {
    const size_t prompt = i / static_cast<size_t>(spec.n);
    AnswerOptions options{.text = {.stop = spec.stop, .raw = is_raw(spec.prompts[prompt]), .in_reasoning = facts_.prompts[prompt].in_reasoning},
                          .calls = spec.tool_use != ToolUse::kNone,
                          .call_prefix = fmt::format("call_{}{}_", facts_.id.substr(0, 16), i)};
    if (const auto* c = std::get_if<Conversation>(&spec.prompts[prompt]); c && c->tools.is_array()) options.tools = Json(c->tools);
    facts_.choices.push_back({.answer = Answer(model_, options), .prompt = prompt});
  }
}

Submission Call::submission(size_t choice) const {
  const GenerationSpec& spec = facts_.spec;
  const MadePrompt& prompt = facts_.prompts[facts_.choices[choice].prompt];
  Submission s{.prompt = prompt.ids, .sampling = spec.sampling, .max_tokens = *spec.max_tokens, .ignore_eos = spec.ignore_eos, .logprobs = spec.logprobs,
               .boundaries = prompt.boundaries, .speculate = spec.speculate, .priority = spec.priority, .timeout_s = spec.timeout_s, .stop = spec.stop,
               .raw = is_raw(spec.prompts[facts_.choices[choice].prompt]), .in_reasoning = prompt.in_reasoning, .grammar = spec.format};
  s.sampling.seed = facts_.seed;
  s.sampling.choice = static_cast<uint32_t>(choice % static_cast<size_t>(spec.n));
  if (model_.think_end() && spec.thinking_budget) s.thinking_budget = spec.thinking_budget;
  const auto* conversation = std::get_if<Conversation>(&spec.prompts[facts_.choices[choice].prompt]);
  if (conversation && conversation->tools.is_array()) {
    if (spec.tool_use == ToolUse::kNone && model_.tool_call()) s.sampling.banned.push_back(*model_.tool_call());
    if (spec.tool_use == ToolUse::kRequired || (spec.tool_use == ToolUse::kAuto && any_strict(conversation->tools))) {
      OrderedJson tools = OrderedJson::array();
      for (const OrderedJson& tool : conversation->tools)
        if (spec.named_tool.empty() || tool["function"]["name"] == spec.named_tool) tools.push_back(tool);
      s.grammar = GrammarSpec{.kind = GrammarSpec::Kind::kTools, .schema = std::move(tools), .call_required = spec.tool_use == ToolUse::kRequired,
                              .parallel = spec.parallel_tools && spec.named_tool.empty()};
    }
  }
  return s;
}

void Call::start(std::unique_ptr<AnswerWriter> writer, std::function<void(Call&)> ended) {
  writer_ = std::move(writer);
  ended_ = std::move(ended);
  unfinished_ = facts_.choices.size();
  exchange_->on_gone([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self || self->done_) return;
    self->cancel_all();
    if (!self->exchange_->streaming()) self->times_.status = 499;
    self->end("cancelled");
  });
  for (size_t i = 0; i < facts_.choices.size() && !done_; ++i)
    ids_.push_back(engine_.submit(submission(i), [self = shared_from_this(), i](const EngineEvent& event) { self->on_event(i, event); }));
}

void Call::on_event(size_t choice, const EngineEvent& event) {
  if (done_) return;
  if (event.kind == EngineEvent::Kind::kFailed) {
    cancel_all();
    ApiError error = api_error(event.error);
    if (event.of_grammar) {  // made of the tools where they bind the answer, else of the format
      error.param = facts_.spec.format ? facts_.spec.names.grammar : "tools";
      error.message = error.param + ": " + error.message;
    }
    if (event.engine_lost) error = {503, "engine_recovering", event.error.message, "", 1};
    return fail(error);
  }
  last_said_ = Clock::now();
  if (!accepted_) {
    accepted_ = true;
    writer_->accepted();
  }
  switch (event.kind) {
    case EngineEvent::Kind::kProgress:
      progress_ = event;
      writer_->progress(event);
      break;
    case EngineEvent::Kind::kTokens: on_tokens(choice, event); break;
    case EngineEvent::Kind::kFinished: on_finished(choice, event); break;
    case EngineEvent::Kind::kFailed: break;
  }
}

void Call::on_tokens(size_t choice, const EngineEvent& event) {
  if (event.tokens.empty()) return;
  const auto now = Clock::now();
  if (progress_.prompt_done < progress_.prompt_total) {  // its first token says that the prompt is read
    progress_.prompt_done = progress_.prompt_total;
    writer_->progress(progress_);
  }
  if (times_.first_token_s == 0) times_.first_token_s = seconds(now - arrival_);
  else if (facts_.choices.size() == 1) times_.token_gaps_s.push_back(static_cast<float>(seconds(now - last_tokens_) / static_cast<double>(event.tokens.size())));
  last_tokens_ = now;
  const AnswerDelta delta = facts_.choices[choice].answer.add(event);
  if (!delta.parts.empty() || !delta.tokens.empty()) writer_->delta(choice, delta);
}

void Call::on_finished(size_t index, const EngineEvent& event) {
  Choice& choice = facts_.choices[index];
  choice.finished = true;
  choice.reason = event.reason;
  choice.prompt_tokens = event.prompt_tokens;
  choice.answer_tokens = event.answer_tokens;
  choice.cached_tokens = event.cached_tokens;
  choice.facts = event.facts;
  const AnswerDelta last = choice.answer.finish();
  writer_->choice_finished(index, last);
  if (--unfinished_ > 0 || done_) return;
  writer_->finished();
  end(choice.reason);
}

void Call::fail(const ApiError& error) {
  if (done_) return;
  if (!exchange_->streaming()) times_.status = error.status;
  writer_->failed(error);
  end(error.code);
}

void Call::end(std::string outcome) {
  if (done_) return;
  done_ = true;
  times_.outcome = std::move(outcome);
  times_.prompt_tokens = facts_.prompt_tokens();
  times_.cached_tokens = facts_.cached_tokens();
  times_.answer_tokens = facts_.answer_tokens();
  if (auto ended = std::move(ended_)) ended(*this);
}

void Call::cancel_all() {
  for (size_t i = 0; i < ids_.size(); ++i)
    if (!facts_.choices[i].finished) engine_.cancel(ids_[i]);
}

void Call::keep_alive(Clock::time_point now) {
  if (done_ || !accepted_ || seconds(now - last_said_) < kQuietSeconds) return;
  last_said_ = now;
  writer_->keep_alive();
}

}  // namespace foretoken::serve
