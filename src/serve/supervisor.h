// Supervisor: the engine's process as seen from the server's. It starts it, speaks with it over a socket pair, and starts it again when it
// dies, later each time. Requests that were with a dead process fail with the reason; the server and its port stay.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "serve/engine_link.h"
#include "serve/loop.h"

namespace foretoken::serve {

struct SupervisorOptions {
  std::string program;                   // the executable
  std::vector<std::string> arguments;    // "--engine-fd 3" is added: the socket's descriptor there
  std::vector<std::string> hidden_environment;  // variables that the engine must not see
  double first_wait_s = 1, most_wait_s = 16;
  double steady_s = 60;                  // ready for so long: the next wait is the first again
  int most_first_failures = 5;           // starts in a row that may fail before the engine was ready once
};

struct SupervisorEvents {
  std::function<void(const EngineFacts& facts, bool first)> ready;
  std::function<void(const Error& error)> hopeless;  // it cannot start at all
  std::function<void(const std::string& line)> log;
};

class Supervisor final : public EngineLink {
 public:
  // `loop` must outlive it. The process starts at once.
  Supervisor(Loop& loop, SupervisorOptions options, SupervisorEvents events);
  ~Supervisor() override;  // ends the process

  const EngineFacts* ready() const override;
  std::string why_not() const override;
  EngineRequestId submit(Submission submission, std::function<void(const EngineEvent&)> events) override;
  void cancel(EngineRequestId id) override;
  void status(std::function<void(OrderedJson)> then) override;
  OrderedJson supervision() const override;
  int pid() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace foretoken::serve
