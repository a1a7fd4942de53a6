// A progress line on standard error, shown on a terminal only and erased when done.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string>

namespace foretoken::app {

class ProgressLine {
 public:
  explicit ProgressLine(std::string what, bool enabled = true) : what_(std::move(what)), enabled_(enabled && ::isatty(STDERR_FILENO)) {}
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(uint64_t done, uint64_t total, const std::string& detail = {}) {
    if (!enabled_) return;
    const auto now = std::chrono::steady_clock::now();
    if (shown_ && done < total && now - last_ < std::chrono::milliseconds(100)) return;
    last_ = now;
    shown_ = true;
    const double share = total == 0 ? 0 : 100.0 * static_cast<double>(done) / static_cast<double>(total);
    fmt::print(stderr, "\r\033[K{} {:3.0f} % {}", what_, share, detail);
    std::fflush(stderr);
  }
  void clear() {
    if (shown_) fmt::print(stderr, "\r\033[K");
    shown_ = false;
  }

 private:
  std::string what_;
  bool enabled_, shown_ = false;
  std::chrono::steady_clock::time_point last_{};
};

}  // namespace foretoken::app
