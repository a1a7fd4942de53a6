// Asio's event loop and a pool of workers.
#include "serve/loop.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>

namespace foretoken::serve {

namespace asio = boost::asio;

struct Loop::State {
  explicit State(int workers) : pool(static_cast<size_t>(workers)) {}
  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> guard{context.get_executor()};
  asio::thread_pool pool;
};

namespace {

class LoopTimer final : public Loop::Timer {
 public:
  LoopTimer(asio::io_context& context, double seconds, std::function<void()> task) : timer_(context) {
    timer_.expires_after(std::chrono::microseconds(static_cast<int64_t>(seconds * 1e6)));
    timer_.async_wait([alive = std::weak_ptr<bool>(alive_), task = std::move(task)](boost::system::error_code error) {
      if (!error && alive.lock()) task();
    });
  }

 private:
  asio::steady_timer timer_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace

Loop::Loop(int workers) : state_(std::make_unique<State>(workers)) {}
Loop::~Loop() {
  stop();
  state_->pool.join();
}

void Loop::run() { state_->context.run(); }
void Loop::stop() { state_->context.stop(); }
void Loop::post(std::function<void()> task) { asio::post(state_->context, std::move(task)); }

void Loop::work(std::function<void()> work, std::function<void()> then) {
  asio::post(state_->pool, [this, work = std::move(work), then = std::move(then)]() mutable {
    work();
    asio::post(state_->context, std::move(then));
  });
}

std::unique_ptr<Loop::Timer> Loop::after(double seconds, std::function<void()> task) {
  return std::make_unique<LoopTimer>(state_->context, seconds, std::move(task));
}

asio::io_context& Loop::context() { return state_->context; }

}  // namespace foretoken::serve
