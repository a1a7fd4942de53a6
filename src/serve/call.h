// Call: one request for answers, from its submission to its last byte. It joins the engine's events into answers and tells a writer, which
// knows the API. A client that goes cancels it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "serve/answer.h"
#include "serve/api_error.h"
#include "serve/prompt_maker.h"

namespace foretoken::serve {

struct Choice {
  Answer answer;
  size_t prompt = 0;             // index into the call's prompts
  bool finished = false;
  std::string reason;            // "stop", "length", "cancelled"
  int64_t prompt_tokens = 0, answer_tokens = 0, cached_tokens = 0;
  OrderedJson facts = nullptr;   // EngineEvent::facts
};

// What writers see.
struct CallFacts {
  std::string id;                // random, without an API's prefix
  int64_t created = 0;           // seconds since 1970
  std::string model;             // as served
  std::string fingerprint;       // of the model and the build
  GenerationSpec spec;
  std::vector<MadePrompt> prompts;
  std::vector<Choice> choices;
  uint64_t seed = 0;

  int64_t prompt_tokens() const;     // of the prompts, each once
  int64_t cached_tokens() const;
  int64_t answer_tokens() const;
  int64_t reasoning_tokens() const;
  // The `foretoken` object of an answer: speculation and timing of one choice, or of all.
  OrderedJson extension(const Choice& choice) const;
  OrderedJson extension() const;
};

// Writes one call's answers in the form of one API.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  virtual void accepted() {}                                     // the engine has it: streams begin
  virtual void progress(const EngineEvent&) {}
  virtual void delta(size_t, const AnswerDelta&) {}
  virtual void choice_finished(size_t, const AnswerDelta&) {}    // with what was still held back
  virtual void finished() = 0;                                   // all choices are
  virtual void failed(const ApiError& error) = 0;
  virtual void keep_alive() {}                                   // nothing was said for a while
};

// What a call tells the service's statistics.
struct CallTimes {
  double first_token_s = 0;                // since the request came; 0: none came
  std::vector<float> token_gaps_s;         // between batches, a token's share each
  int64_t prompt_tokens = 0, cached_tokens = 0, answer_tokens = 0;
  std::string outcome;                     // "stop", "length", "cancelled", or an error's code
  int status = 200;                        // of the HTTP response; 499 where the client went before it
};

class Call : public std::enable_shared_from_this<Call> {
 public:
  using Clock = std::chrono::steady_clock;
  Call(EngineLink& engine, const ModelText& model, std::shared_ptr<Exchange> exchange, CallFacts facts, Clock::time_point arrival);

  // `ended` comes once, last.
  void start(std::unique_ptr<AnswerWriter> writer, std::function<void(Call&)> ended);
  CallFacts& facts() { return facts_; }
  const ModelText& model() const { return model_; }
  Exchange& exchange() { return *exchange_; }
  const CallTimes& times() const { return times_; }
  void keep_alive(Clock::time_point now);
  // Ends it with an error of ours.
  void fail(const ApiError& error);

 private:
  Submission submission(size_t choice) const;
  void on_event(size_t choice, const EngineEvent& event);
  void on_tokens(size_t choice, const EngineEvent& event);
  void on_finished(size_t choice, const EngineEvent& event);
  void end(std::string outcome);
  void cancel_all();

  EngineLink& engine_;
  const ModelText& model_;
  std::shared_ptr<Exchange> exchange_;
  CallFacts facts_;
  std::unique_ptr<AnswerWriter> writer_;
  std::function<void(Call&)> ended_;
  std::vector<EngineRequestId> ids_;
  size_t unfinished_ = 0;
  bool accepted_ = false, done_ = false;
  Clock::time_point arrival_, last_said_, last_tokens_{};
  EngineEvent progress_;
  CallTimes times_;
};

}  // namespace foretoken::serve
