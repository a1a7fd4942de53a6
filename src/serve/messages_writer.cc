// Anthropic's Messages: a message with blocks, or the events that build one.
#include "serve/writers.h"

namespace foretoken::serve {
namespace {

using Kind = OutputDelta::Kind;

std::string stop_reason(const Choice& choice) {
  if (choice.reason == "length") return "max_tokens";
  if (choice.answer.stop_matched()) return "stop_sequence";
  return openai_finish_reason(choice) == "tool_calls" ? "tool_use" : "end_turn";
}

OrderedJson stop_sequence(const Choice& choice) {
  const std::string* stop = choice.answer.stop_matched();
  return stop ? OrderedJson(*stop) : OrderedJson(nullptr);
}

class MessagesWriter : public AnswerWriter {
 public:
  explicit MessagesWriter(Call& call) : call_(call), facts_(call.facts()), exchange_(call.exchange()) {}

  void finished() override {
    const Choice& choice = facts_.choices[0];
    const Answer& answer = choice.answer;
    OrderedJson content = OrderedJson::array();
    if (!answer.reasoning().empty()) content.push_back({{"type", "thinking"}, {"thinking", answer.reasoning()}, {"signature", signature()}});
    if (!answer.text().empty()) content.push_back({{"type", "text"}, {"text", answer.text()}});
    for (const ToolCall& call : answer.calls()) content.push_back({{"type", "tool_use"}, {"id", call.id}, {"name", call.name}, {"input", input_of(call)}});
    OrderedJson body = message();
    body["content"] = std::move(content);
    body["stop_reason"] = stop_reason(choice);
    body["stop_sequence"] = stop_sequence(choice);
    body["usage"] = usage(choice.answer_tokens, choice.cached_tokens);
    body["foretoken"] = facts_.extension();
    exchange_.respond({.body = dump_json(body)});
  }
  void failed(const ApiError& error) override { exchange_.respond(error_response(error, Dialect::kAnthropic)); }

 protected:
  std::string signature() const { return "foretoken-" + facts_.id; }
  static OrderedJson input_of(const ToolCall& call) {
    auto parsed = parse_ordered_json(call.arguments, "arguments");
    return parsed && parsed->is_object() ? *parsed : OrderedJson::object();
  }
  OrderedJson message() const {
    return {{"id", "msg_" + facts_.id}, {"type", "message"}, {"role", "assistant"}, {"model", facts_.model}, {"content", OrderedJson::array()},
            {"stop_reason", nullptr}, {"stop_sequence", nullptr}};
  }
  // Tokens that were restored are counted apart, as the API does.
  OrderedJson usage(int64_t answer, int64_t cached) const {
    return {{"input_tokens", facts_.prompt_tokens() - cached}, {"cache_creation_input_tokens", 0}, {"cache_read_input_tokens", cached}, {"output_tokens", answer}};
  }

  Call& call_;
  const CallFacts& facts_;
  Exchange& exchange_;
};

class MessagesStreamWriter final : public MessagesWriter {
 public:
  using MessagesWriter::MessagesWriter;

  void accepted() override { exchange_.begin_stream("text/event-stream; charset=utf-8"); }
  void progress(const EngineEvent& event) override { cached_ = event.cached_tokens; }
  void delta(size_t, const AnswerDelta& delta) override {
    begin();
    for (const OutputDelta& part : delta.parts) write(part);
    if (facts_.spec.return_tokens && !delta.tokens.empty()) event("foretoken_tokens", {{"tokens", shown_tokens(call_.model(), delta.tokens)}});
  }
  void choice_finished(size_t, const AnswerDelta& last) override {
    delta(0, last);
    end_block();
  }
  void finished() override {
    const Choice& choice = facts_.choices[0];
    event("message_delta", {{"delta", {{"stop_reason", stop_reason(choice)}, {"stop_sequence", stop_sequence(choice)}}},
                            {"usage", usage(choice.answer_tokens, choice.cached_tokens)}, {"foretoken", facts_.extension()}});
    event("message_stop", OrderedJson::object());
    exchange_.end_stream();
  }
  void failed(const ApiError& error) override {
    if (!exchange_.streaming()) return MessagesWriter::failed(error);
    exchange_.write(sse_event("error", error_json(error, Dialect::kAnthropic)));
    exchange_.end_stream();
  }
  void keep_alive() override { event("ping", OrderedJson::object()); }

 private:
  void event(const char* type, OrderedJson data) {
    OrderedJson body = {{"type", type}};
    body.update(data);
    exchange_.write(sse_event(type, body));
  }
  void begin() {
    if (begun_) return;
    begun_ = true;
    OrderedJson start = message();
    start["usage"] = usage(0, cached_);
    event("message_start", {{"message", std::move(start)}});
  }
  void begin_block(Kind kind, OrderedJson block) {
    end_block();
    open_ = kind;
    event("content_block_start", {{"index", index_}, {"content_block", std::move(block)}});
  }
  void end_block() {
    if (!open_) return;
    if (*open_ == Kind::kReasoning) block_delta({{"type", "signature_delta"}, {"signature", signature()}});
    event("content_block_stop", {{"index", index_++}});
    open_.reset();
  }
  void block_delta(OrderedJson delta) { event("content_block_delta", {{"index", index_}, {"delta", std::move(delta)}}); }
  void write(const OutputDelta& part) {
    switch (part.kind) {
      case Kind::kReasoning:
        if (open_ != Kind::kReasoning) begin_block(Kind::kReasoning, {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
        return block_delta({{"type", "thinking_delta"}, {"thinking", part.text}});
      case Kind::kText:
        if (open_ != Kind::kText) begin_block(Kind::kText, {{"type", "text"}, {"text", ""}});
        return block_delta({{"type", "text_delta"}, {"text", part.text}});
      case Kind::kCallBegin: {
        const ToolCall& call = facts_.choices[0].answer.calls()[static_cast<size_t>(part.call)];
        return begin_block(Kind::kCallBegin, {{"type", "tool_use"}, {"id", call.id}, {"name", part.text}, {"input", OrderedJson::object()}});
      }
      case Kind::kCallArguments: return block_delta({{"type", "input_json_delta"}, {"partial_json", part.text}});
      case Kind::kCallEnd: return end_block();
    }
  }

  bool begun_ = false;
  int64_t cached_ = 0;
  std::optional<Kind> open_;
  int index_ = 0;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_messages_writer(Call& call) {
  if (call.facts().spec.stream) return std::make_unique<MessagesStreamWriter>(call);
  return std::make_unique<MessagesWriter>(call);
}

}  // namespace foretoken::serve
