// Runs a program to its end and keeps what it printed: how trials drive other binaries.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace foretoken {

struct ProcessResult {
  int status = 0;      // exit status; 128 + signal where one ended it
  std::string output;  // standard output
  double wall_s = 0, cpu_s = 0;
  int64_t peak_bytes = 0;  // most resident memory
};
// kIo when it cannot be started. Standard error is the caller's; `quiet` sends it nowhere.
Result<ProcessResult> run_process(const std::vector<std::string>& words, bool quiet);

// A program that keeps running: a server. It is ended, and waited for, with the object.
class ChildProcess {
 public:
  static Result<ChildProcess> start(const std::vector<std::string>& words, const std::string& log_file);
  ChildProcess(ChildProcess&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();
  bool running();
  // Lets it run, or not: arms that are not measured must not take processor time.
  void pause(bool paused);

 private:
  explicit ChildProcess(int pid) : pid_(pid) {}
  int pid_;
};

// A port of the loopback address that nothing uses now.
Result<int> free_port();

}  // namespace foretoken
