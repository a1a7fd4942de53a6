// Chat completions: chat.completion and chat.completion.chunk objects.
#include <fmt/format.h>

#include "decode/proposal.h"
#include "serve/writers.h"
#include "text/unicode.h"

namespace foretoken::serve {

std::string sse_event(std::string_view name, const OrderedJson& data) {
  const std::string text = dump_json(data);
  return name.empty() ? fmt::format("data: {}\n\n", text) : fmt::format("event: {}\ndata: {}\n\n", name, text);
}

OrderedJson openai_usage(const CallFacts& facts) {
  const int64_t prompt = facts.prompt_tokens(), answer = facts.answer_tokens();
  return {{"prompt_tokens", prompt},
          {"completion_tokens", answer},
          {"total_tokens", prompt + answer},
          {"prompt_tokens_details", {{"cached_tokens", facts.cached_tokens()}}},
          {"completion_tokens_details", {{"reasoning_tokens", facts.reasoning_tokens()}}}};
}

void end_openai_stream(Exchange& exchange, const CallFacts& facts, OrderedJson head) {
  if (facts.spec.include_usage) {
    head["choices"] = OrderedJson::array();
    head["usage"] = openai_usage(facts);
    head["foretoken"] = facts.extension();
    exchange.write(sse_event({}, head));
  }
  exchange.write("data: [DONE]\n\n");
  exchange.end_stream();
}

void fail_openai_stream(Exchange& exchange, const ApiError& error) {
  exchange.write(sse_event({}, error_json(error, Dialect::kOpenAi)));
  exchange.end_stream();
}

void write_openai_progress(Exchange& exchange, const EngineEvent& event, OrderedJson head) {
  head["choices"] = OrderedJson::array();
  head["prompt_progress"] = {{"total", event.prompt_total}, {"cache", event.cached_tokens}, {"processed", event.prompt_done}};
  exchange.write(sse_event({}, head));
}

std::string openai_finish_reason(const Choice& choice) {
  if (choice.reason == "stop")
    for (const ToolCall& call : choice.answer.calls())
      if (call.complete) return "tool_calls";
  return choice.reason;
}

namespace {

OrderedJson byte_list(std::string_view text) {
  OrderedJson bytes = OrderedJson::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

}  // namespace

OrderedJson shown_tokens(const ModelText& model, const std::vector<ListedToken>& tokens) {
  OrderedJson out = OrderedJson::array();
  for (const ListedToken& token : tokens) {
    const OrderedJson drafted = token.drafted < 0 ? OrderedJson(nullptr) : OrderedJson(route_name(static_cast<Route>(token.drafted)));
    const std::string_view text = model.shown(token.id);
    out.push_back({{"id", token.id}, {"text", text}, {"drafted", drafted}});
    if (!is_valid_utf8(text)) out.back()["bytes"] = byte_list(text);  // part of a character, which JSON text cannot hold
  }
  return out;
}

namespace {

OrderedJson token_entry(const ModelText& model, TokenId id, float logprob) {
  const std::string_view text = model.tokenizer ? model.tokenizer->bytes(id) : std::string_view();
  return {{"token", text}, {"logprob", json_float(logprob)}, {"bytes", byte_list(text)}};
}

}  // namespace

OrderedJson logprobs_content(const ModelText& model, const std::vector<ListedToken>& tokens) {
  OrderedJson content = OrderedJson::array();
  for (const ListedToken& token : tokens) {
    if (!token.text) continue;
    OrderedJson entry = token_entry(model, token.id, token.logprobs.chosen);
    entry["top_logprobs"] = OrderedJson::array();
    for (const auto& [id, logprob] : token.logprobs.top) entry["top_logprobs"].push_back(token_entry(model, id, logprob));
    content.push_back(std::move(entry));
  }
  return content;
}

namespace {

OrderedJson chat_logprobs(const ModelText& model, const std::vector<ListedToken>& tokens) {
  return {{"content", logprobs_content(model, tokens)}, {"refusal", nullptr}};
}

OrderedJson message_of(const Choice& choice) {
  const Answer& answer = choice.answer;
  const bool calls = !answer.calls().empty();
  OrderedJson message = {{"role", "assistant"}, {"content", calls && answer.text().empty() ? OrderedJson(nullptr) : OrderedJson(answer.text())}, {"refusal", nullptr}};
  if (!answer.reasoning().empty()) message["reasoning_content"] = answer.reasoning();
  for (const ToolCall& call : answer.calls())
    message["tool_calls"].push_back({{"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  return message;
}

class ChatWriter : public AnswerWriter {
 public:
  explicit ChatWriter(Call& call) : call_(call), facts_(call.facts()), exchange_(call.exchange()) {}

  void finished() override {
    OrderedJson choices = OrderedJson::array();
    for (size_t i = 0; i < facts_.choices.size(); ++i) {
      const Choice& choice = facts_.choices[i];
      OrderedJson one = {{"index", i}, {"message", message_of(choice)}, {"logprobs", nullptr}, {"finish_reason", openai_finish_reason(choice)}};
      if (facts_.spec.logprobs.chosen) one["logprobs"] = chat_logprobs(call_.model(), choice.answer.listed());
      if (facts_.spec.return_tokens) one["tokens"] = shown_tokens(call_.model(), choice.answer.listed());
      choices.push_back(std::move(one));
    }
    OrderedJson body = head("chat.completion");
    body["choices"] = std::move(choices);
    body["usage"] = openai_usage(facts_);
    body["foretoken"] = facts_.extension();
    exchange_.respond({.body = dump_json(body)});
  }
  void failed(const ApiError& error) override { exchange_.respond(error_response(error, Dialect::kOpenAi)); }

 protected:
  OrderedJson head(const char* object) const {
    return {{"id", "chatcmpl-" + facts_.id}, {"object", object}, {"created", facts_.created}, {"model", facts_.model}, {"system_fingerprint", facts_.fingerprint}};
  }

  Call& call_;
  const CallFacts& facts_;
  Exchange& exchange_;
};

class ChatStreamWriter final : public ChatWriter {
 public:
  using ChatWriter::ChatWriter;

  void accepted() override {
    exchange_.begin_stream("text/event-stream; charset=utf-8");
    for (size_t i = 0; i < facts_.choices.size(); ++i) chunk(i, {{"role", "assistant"}, {"content", ""}});
  }
  void progress(const EngineEvent& event) override {
    if (facts_.spec.return_progress) write_openai_progress(exchange_, event, head("chat.completion.chunk"));
  }
  void delta(size_t choice, const AnswerDelta& delta) override {
    if (delta.parts.empty()) return chunk(choice, OrderedJson::object(), &delta.tokens);
    bool first = true;
    for (const OutputDelta& part : delta.parts) {
      OrderedJson json = part_json(choice, part);
      if (json.is_null()) continue;
      chunk(choice, std::move(json), first ? &delta.tokens : nullptr);
      first = false;
    }
    if (first && !delta.tokens.empty()) chunk(choice, OrderedJson::object(), &delta.tokens);
  }
  void choice_finished(size_t choice, const AnswerDelta& last) override {
    if (!last.parts.empty() || !last.tokens.empty()) delta(choice, last);
    OrderedJson body = chunk_body(choice, OrderedJson::object(), nullptr);
    body["choices"][0]["finish_reason"] = openai_finish_reason(facts_.choices[choice]);
    body["foretoken"] = facts_.extension(facts_.choices[choice]);
    exchange_.write(sse_event({}, body));
  }
  void finished() override { end_openai_stream(exchange_, facts_, head("chat.completion.chunk")); }
  void failed(const ApiError& error) override {
    if (!exchange_.streaming()) return ChatWriter::failed(error);
    fail_openai_stream(exchange_, error);
  }
  void keep_alive() override { exchange_.write(": waiting\n\n"); }

 private:
  OrderedJson part_json(size_t choice, const OutputDelta& part) {
    switch (part.kind) {
      case OutputDelta::Kind::kReasoning: return {{"reasoning_content", part.text}};
      case OutputDelta::Kind::kText: return {{"content", part.text}};
      case OutputDelta::Kind::kCallBegin:
        return {{"tool_calls", OrderedJson::array({{{"index", part.call}, {"id", facts_.choices[choice].answer.calls()[static_cast<size_t>(part.call)].id},
                                                    {"type", "function"}, {"function", {{"name", part.text}, {"arguments", ""}}}}})}};
      case OutputDelta::Kind::kCallArguments:
        return {{"tool_calls", OrderedJson::array({{{"index", part.call}, {"function", {{"arguments", part.text}}}}})}};
      case OutputDelta::Kind::kCallEnd: break;
    }
    return nullptr;
  }
  OrderedJson chunk_body(size_t choice, OrderedJson delta, const std::vector<ListedToken>* tokens) const {
    OrderedJson one = {{"index", choice}, {"delta", std::move(delta)}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
    if (tokens && facts_.spec.logprobs.chosen) one["logprobs"] = chat_logprobs(call_.model(), *tokens);
    if (tokens && facts_.spec.return_tokens) one["tokens"] = shown_tokens(call_.model(), *tokens);
    OrderedJson body = head("chat.completion.chunk");
    body["choices"] = OrderedJson::array({std::move(one)});
    if (facts_.spec.include_usage) body["usage"] = nullptr;
    return body;
  }
  void chunk(size_t choice, OrderedJson delta, const std::vector<ListedToken>* tokens = nullptr) {
    if (delta.empty() && !(facts_.spec.return_tokens || facts_.spec.logprobs.chosen)) return;
    exchange_.write(sse_event({}, chunk_body(choice, std::move(delta), tokens)));
  }

};

}  // namespace

std::unique_ptr<AnswerWriter> make_chat_writer(Call& call) {
  if (call.facts().spec.stream) return std::make_unique<ChatStreamWriter>(call);
  return std::make_unique<ChatWriter>(call);
}

}  // namespace foretoken::serve
