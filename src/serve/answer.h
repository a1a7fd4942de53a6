// AnswerText: an answer's tokens to the bytes a client may see, up to a stop string. Answer: the parts of one answer as they grow. The
// engine's process uses the first to know where an answer ends, the server's both: equal tokens give equal text in either.
#pragma once

#include "serve/engine_link.h"
#include "serve/model_text.h"
#include "text/detokenizer.h"
#include "text/output_parser.h"

namespace foretoken::serve {

class AnswerText {
 public:
  struct Options {
    std::vector<std::string> stop;  // count outside reasoning only
    bool raw = false;               // the marks of reasoning are text
    bool in_reasoning = false;
  };
  // `model` must outlive it.
  AnswerText(const ModelText& model, Options options);

  // Bytes that became certain with the token.
  std::string add(TokenId token);
  std::string flush();  // the end without a stop string: what was held back
  bool stopped() const { return stops_ && stops_->stopped(); }
  const std::string* matched() const { return stops_ ? stops_->matched() : nullptr; }
  // Bytes of all tokens, and those given out.
  size_t read_bytes() const { return read_; }
  size_t given_bytes() const { return given_; }

 private:
  const ModelText& model_;
  Options options_;
  std::optional<StopMatcher> stops_;
  bool in_reasoning_;
  size_t read_ = 0, given_ = 0;
};

// One token of the text with its probabilities, as logprobs list it.
struct ListedToken {
  TokenId id = -1;
  int8_t drafted = -1;
  size_t begin = 0;  // bytes of text before it
  bool text = false; // not reasoning, not a control mark
  TokenLogprobs logprobs;
};

// What one batch of tokens added.
struct AnswerDelta {
  std::vector<OutputDelta> parts;      // neighbours of one kind joined
  std::vector<ListedToken> tokens;     // that are certain to be part of the answer's text
};

struct AnswerOptions {
  AnswerText::Options text;
  bool calls = false;
  Json tools;                          // for the types of arguments
  std::string call_prefix = "call_";
};

class Answer {
 public:
  Answer(const ModelText& model, const AnswerOptions& options);

  AnswerDelta add(const EngineEvent& tokens);
  AnswerDelta finish();

  const std::string& reasoning() const { return parser_.reasoning(); }
  const std::string& text() const { return parser_.text(); }
  const std::vector<ToolCall>& calls() const { return parser_.calls(); }
  int64_t reasoning_tokens() const { return parser_.reasoning_tokens(); }
  const std::string* stop_matched() const { return text_.matched(); }
  const std::vector<TokenId>& ids() const { return ids_; }
  const std::vector<ListedToken>& listed() const { return listed_; }

 private:
  void take(const std::vector<OutputDelta>& parts, AnswerDelta& delta);
  void release(AnswerDelta& delta, bool all);

  const ModelText& model_;
  AnswerText text_;
  OutputParser parser_;
  std::vector<TokenId> ids_;
  std::vector<ListedToken> waiting_, listed_;
};

}  // namespace foretoken::serve
