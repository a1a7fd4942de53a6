// RuleWorker: token rules made on a thread of their own, since compiling a large schema takes a while and answers under way must
// not wait. While nothing is asked for, it computes masks that answers will need.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "serve/rules.h"

namespace foretoken::serve {

class RuleWorker {
 public:
  struct Made {
    EngineRequestId id;
    Submission submission;
    Result<std::unique_ptr<TokenRules>> rules;
  };

  // `text` must outlive it; `vocab`: rows of logits.
  RuleWorker(const ModelText& text, int vocab);
  ~RuleWorker();  // what is being made is made first

  void ask(EngineRequestId id, Submission submission);
  // True when it was not begun yet, and never will be.
  bool forget(EngineRequestId id);
  // What was made since, in the order it was asked for.
  std::vector<Made> take();
  // Readable while there is something to take.
  int wake_fd() const { return wake_; }

 private:
  void work();

  RuleMaker maker_;
  const int wake_;
  std::mutex mutex_;
  std::condition_variable asked_;
  std::deque<std::pair<EngineRequestId, Submission>> queue_;
  std::vector<Made> made_;
  std::atomic<bool> waited_for_ = false;  // something is asked for, or it is the end
  std::atomic<bool> any_made_ = false;  // a look without the lock, between an engine's passes
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace foretoken::serve
