// Tokens to text, text to parts.
#include "serve/answer.h"

namespace foretoken::serve {

AnswerText::AnswerText(const ModelText& model, Options options)
    : model_(model), options_(std::move(options)), in_reasoning_(options_.in_reasoning) {
  if (!options_.stop.empty()) stops_.emplace(options_.stop);
}

std::string AnswerText::add(TokenId token) {
  const std::string_view bytes = model_.shown(token);
  read_ += bytes.size();
  std::string out;
  if (!options_.raw && !in_reasoning_ && token == model_.think_begin()) {
    in_reasoning_ = true;
    if (stops_) out = stops_->flush();
    if (stops_) stops_.emplace(options_.stop);
    out += bytes;
  } else if (!stops_ || in_reasoning_) {
    out = bytes;
    if (in_reasoning_ && token == model_.think_end()) in_reasoning_ = false;
  } else {
    out = stops_->add(bytes);
  }
  given_ += out.size();
  return out;
}

std::string AnswerText::flush() {
  std::string out = stops_ && !stops_->stopped() ? stops_->flush() : std::string();
  given_ += out.size();
  return out;
}

namespace {

OutputParserOptions parser_options(const ModelText& model, const AnswerOptions& o) {
  const auto mark = [&](std::optional<TokenId> id) { return o.text.raw ? std::nullopt : id; };
  return {.think_begin = mark(model.think_begin()), .think_end = mark(model.think_end()), .in_reasoning = o.text.in_reasoning, .calls = o.calls,
          .tools = o.calls ? ToolSchemas(o.tools) : ToolSchemas(), .id_prefix = o.call_prefix};
}

}  // namespace

Answer::Answer(const ModelText& model, const AnswerOptions& options)
    : model_(model), text_(model, options.text), parser_(parser_options(model, options)) {}

void Answer::take(const std::vector<OutputDelta>& parts, AnswerDelta& delta) {
  for (const OutputDelta& part : parts) {
    const bool joins = !delta.parts.empty() && delta.parts.back().kind == part.kind && delta.parts.back().call == part.call &&
                       part.kind != OutputDelta::Kind::kCallBegin && part.kind != OutputDelta::Kind::kCallEnd;
    if (joins) delta.parts.back().text += part.text;
    else delta.parts.push_back(part);
  }
}

// Tokens whose bytes were given out are certain; those behind a stop string never come.
void Answer::release(AnswerDelta& delta, bool all) {
  size_t n = 0;
  while (n < waiting_.size() && (all || waiting_[n].begin < text_.given_bytes())) ++n;
  for (size_t i = 0; i < n; ++i) {
    if (all && waiting_[i].begin >= text_.given_bytes() && text_.stopped()) break;
    delta.tokens.push_back(waiting_[i]);
    listed_.push_back(std::move(waiting_[i]));
  }
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(n));
}

AnswerDelta Answer::add(const EngineEvent& event) {
  AnswerDelta delta;
  for (size_t i = 0; i < event.tokens.size(); ++i) {
    const TokenId id = event.tokens[i];
    ids_.push_back(id);
    ListedToken listed{.id = id, .drafted = event.drafted[i], .begin = text_.read_bytes()};
    if (i < event.logprobs.size()) listed.logprobs = event.logprobs[i];
    const bool reasoning_before = parser_.in_reasoning();
    take(parser_.add(id, text_.add(id)), delta);
    listed.text = !reasoning_before && !parser_.in_reasoning() && !(model_.tokenizer && model_.tokenizer->is_special(id)) && !model_.is_stop(id);
    waiting_.push_back(std::move(listed));
  }
  release(delta, false);
  return delta;
}

AnswerDelta Answer::finish() {
  AnswerDelta delta;
  if (const std::string rest = text_.flush(); !rest.empty()) take(parser_.add(-1, rest), delta);
  take(parser_.finish(), delta);
  release(delta, true);
  return delta;
}

}  // namespace foretoken::serve
