// One thread, a queue to it and a list back.
#include "serve/rule_worker.h"

#include <sys/eventfd.h>
#include <unistd.h>

namespace foretoken::serve {

RuleWorker::RuleWorker(const ModelText& text, int vocab) : maker_(text, vocab), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), thread_([this] { work(); }) {
  CHECK(wake_ >= 0);
}

RuleWorker::~RuleWorker() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    waited_for_ = true;
  }
  asked_.notify_one();
  thread_.join();
  ::close(wake_);
}

void RuleWorker::ask(EngineRequestId id, Submission submission) {
  {
    const std::lock_guard lock(mutex_);
    queue_.emplace_back(id, std::move(submission));
    waited_for_ = true;
  }
  asked_.notify_one();
}

bool RuleWorker::forget(EngineRequestId id) {
  const std::lock_guard lock(mutex_);
  return std::erase_if(queue_, [id](const auto& asked) { return asked.first == id; }) > 0;
}

std::vector<RuleWorker::Made> RuleWorker::take() {
  if (!any_made_.load(std::memory_order_acquire)) return {};
  const std::lock_guard lock(mutex_);
  eventfd_t ignored = 0;
  ::eventfd_read(wake_, &ignored);
  any_made_.store(false, std::memory_order_relaxed);
  return std::exchange(made_, {});
}

void RuleWorker::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    asked_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (stopping_) return;
    auto [id, submission] = std::move(queue_.front());
    queue_.pop_front();
    waited_for_ = stopping_ || !queue_.empty();
    lock.unlock();
    auto rules = maker_.make(submission);
    lock.lock();
    made_.push_back({id, std::move(submission), std::move(rules)});
    any_made_.store(true, std::memory_order_release);
    ::eventfd_write(wake_, 1);
    lock.unlock();
    maker_.prepare([this] { return !waited_for_; });
    lock.lock();
  }
}

}  // namespace foretoken::serve
