// Putting it together, and signals.
#include "serve/server.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <cstdio>

#include "serve/http_server.h"

namespace foretoken::serve {
namespace {

constexpr int kWorkers = 2;  // that render and tokenise beside the loop

// A connection is a descriptor, and 1,024 are few.
void allow_many_descriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

std::string shown_host(const std::string& host) { return host.find(':') == std::string::npos ? host : "[" + host + "]"; }

class Signals {
 public:
  // `first` at the first signal to end, `second` at the second.
  Signals(Loop& loop, std::function<void()> first, std::function<void()> second)
      : set_(loop.context(), SIGTERM, SIGINT), actions_{std::move(first), std::move(second)} {
    wait();
  }

 private:
  void wait() {
    set_.async_wait([this](boost::system::error_code error, int) {
      if (error) return;
      actions_[seen_ ? 1 : 0]();
      seen_ = true;
      wait();
    });
  }
  boost::asio::signal_set set_;
  std::array<std::function<void()>, 2> actions_;
  bool seen_ = false;
};

}  // namespace

Status run_server(const ModelText& model, ServerOptions options) {
  allow_many_descriptors();
  Loop loop(kWorkers);
  Status result;
  std::string url;
  const std::string name = options.service.model_names[0];
  Supervisor supervisor(loop, options.engine,
                        {.ready = [&](const EngineFacts& facts, bool first) {
                           if (!first) return options.log("engine: ready again");
                           fmt::print("Ready · {} · context {} · speculation {} · {}\n", name, facts.max_context, facts.speculation, url);
                           std::fflush(stdout);
                         },
                         .hopeless = [&](const Error& error) {
                           result = error;
                           loop.stop();
                         },
                         .log = options.log});
  options.service.log = options.log;
  Service service(loop, supervisor, model, options.service);
  auto http = HttpServer::listen(loop, options.host, options.port, options.limits, service);
  if (!http) return http.error();
  url = fmt::format("http://{}:{}", shown_host(options.host), (*http)->port());
  service.set_http_counters([&] { return (*http)->counters(); });

  std::unique_ptr<Loop::Timer> patience;
  const std::function<void()> drain = [&] {
    (*http)->close_idle();
    patience = loop.after(options.drain_s, [&] { loop.stop(); });
    // What was written last must leave the sockets first.
    service.drain([&] { patience = loop.after(0.2, [&] { loop.stop(); }); });
  };
  const Signals signals(
      loop,
      [&] {
        service.announce_end();
        options.log(fmt::format("draining: {} answers under way; a second signal stops at once", service.in_flight()));
        patience = loop.after(options.drain_delay_s, drain);
      },
      [&] { loop.stop(); });
  loop.run();
  return result;
}

}  // namespace foretoken::serve
