// Completions: text_completion objects.
#include "serve/writers.h"

namespace foretoken::serve {
namespace {

std::string readable(const ModelText& model, TokenId id) {
  const TokenId one[] = {id};
  return model.tokenizer ? model.tokenizer->decode(one) : std::string();
}

OrderedJson completion_logprobs(const ModelText& model, const std::vector<ListedToken>& tokens) {
  OrderedJson out = {{"tokens", OrderedJson::array()}, {"token_logprobs", OrderedJson::array()}, {"top_logprobs", OrderedJson::array()}, {"text_offset", OrderedJson::array()}};
  for (const ListedToken& token : tokens) {
    if (!token.text) continue;
    out["tokens"].push_back(readable(model, token.id));
    out["token_logprobs"].push_back(json_float(token.logprobs.chosen));
    out["text_offset"].push_back(token.begin);
    OrderedJson top = OrderedJson::object();
    for (const auto& [id, logprob] : token.logprobs.top) top[readable(model, id)] = json_float(logprob);
    out["top_logprobs"].push_back(std::move(top));
  }
  return out;
}

class CompletionWriter : public AnswerWriter {
 public:
  explicit CompletionWriter(Call& call) : call_(call), facts_(call.facts()), exchange_(call.exchange()) {}

  void finished() override {
    OrderedJson body = head();
    for (size_t i = 0; i < facts_.choices.size(); ++i) {
      const Choice& choice = facts_.choices[i];
      OrderedJson one = {{"index", i}, {"text", echoed(choice) + choice.answer.text()}, {"logprobs", nullptr}, {"finish_reason", choice.reason}};
      if (facts_.spec.logprobs.chosen) one["logprobs"] = completion_logprobs(call_.model(), choice.answer.listed());
      if (facts_.spec.return_tokens) one["tokens"] = shown_tokens(call_.model(), choice.answer.listed());
      body["choices"].push_back(std::move(one));
    }
    body["usage"] = openai_usage(facts_);
    body["foretoken"] = facts_.extension();
    exchange_.respond({.body = dump_json(body)});
  }
  void failed(const ApiError& error) override { exchange_.respond(error_response(error, Dialect::kOpenAi)); }

 protected:
  OrderedJson head() const {
    return {{"id", "cmpl-" + facts_.id}, {"object", "text_completion"}, {"created", facts_.created}, {"model", facts_.model}, {"system_fingerprint", facts_.fingerprint}};
  }
  std::string echoed(const Choice& choice) const {
    if (!facts_.spec.echo || !call_.model().tokenizer) return {};
    return call_.model().tokenizer->decode(facts_.prompts[choice.prompt].ids);
  }

  Call& call_;
  const CallFacts& facts_;
  Exchange& exchange_;
};

class CompletionStreamWriter final : public CompletionWriter {
 public:
  using CompletionWriter::CompletionWriter;

  void accepted() override {
    exchange_.begin_stream("text/event-stream; charset=utf-8");
    if (!facts_.spec.echo) return;
    for (size_t i = 0; i < facts_.choices.size(); ++i) chunk(i, echoed(facts_.choices[i]), nullptr);
  }
  void progress(const EngineEvent& event) override {
    if (facts_.spec.return_progress) write_openai_progress(exchange_, event, head());
  }
  void delta(size_t choice, const AnswerDelta& delta) override {
    std::string text;
    for (const OutputDelta& part : delta.parts) text += part.text;
    if (text.empty() && !(facts_.spec.return_tokens || facts_.spec.logprobs.chosen)) return;
    chunk(choice, text, &delta.tokens);
  }
  void choice_finished(size_t choice, const AnswerDelta& last) override {
    delta(choice, last);
    OrderedJson body = chunk_body(choice, "", nullptr);
    body["choices"][0]["finish_reason"] = facts_.choices[choice].reason;
    body["foretoken"] = facts_.extension(facts_.choices[choice]);
    exchange_.write(sse_event({}, body));
  }
  void finished() override { end_openai_stream(exchange_, facts_, head()); }
  void failed(const ApiError& error) override {
    if (!exchange_.streaming()) return CompletionWriter::failed(error);
    fail_openai_stream(exchange_, error);
  }
  void keep_alive() override { exchange_.write(": waiting\n\n"); }

 private:
  OrderedJson chunk_body(size_t choice, const std::string& text, const std::vector<ListedToken>* tokens) const {
    OrderedJson one = {{"index", choice}, {"text", text}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
    if (tokens && facts_.spec.logprobs.chosen) one["logprobs"] = completion_logprobs(call_.model(), *tokens);
    if (tokens && facts_.spec.return_tokens) one["tokens"] = shown_tokens(call_.model(), *tokens);
    OrderedJson body = head();
    body["choices"] = OrderedJson::array({std::move(one)});
    return body;
  }
  void chunk(size_t choice, const std::string& text, const std::vector<ListedToken>* tokens) {
    exchange_.write(sse_event({}, chunk_body(choice, text, tokens)));
  }
};

}  // namespace

std::unique_ptr<AnswerWriter> make_completion_writer(Call& call) {
  if (call.facts().spec.stream) return std::make_unique<CompletionStreamWriter>(call);
  return std::make_unique<CompletionWriter>(call);
}

}  // namespace foretoken::serve
