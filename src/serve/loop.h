// The thread of the server: everything that is not marked otherwise runs there, one thing at a time, so that nothing of the service needs
// a lock. Long work (rendering, tokenising) runs beside it and comes back.
#pragma once

#include <functional>
#include <memory>

namespace boost::asio {
class io_context;
}

namespace foretoken::serve {

class Loop {
 public:
  explicit Loop(int workers);
  ~Loop();

  void run();   // until stop()
  void stop();  // any thread
  // From any thread: `task` runs on the loop.
  void post(std::function<void()> task);
  // `work` runs on a worker, then `then` on the loop.
  void work(std::function<void()> work, std::function<void()> then);

  // A task at a later time; gone when the returned object is.
  class Timer {
   public:
    virtual ~Timer() = default;
  };
  std::unique_ptr<Timer> after(double seconds, std::function<void()> task);

  boost::asio::io_context& context();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace foretoken::serve
