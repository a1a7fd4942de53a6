// The server's process: a port, the service behind it, and the engine's process. Runs until it is told to end.
#pragma once

#include "serve/http.h"
#include "serve/service.h"
#include "serve/supervisor.h"

namespace foretoken::serve {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8000;
  HttpLimits limits;
  ServiceOptions service;
  SupervisorOptions engine;
  double drain_delay_s = 0;                           // after SIGTERM, not ready but still taking requests: balancers need time to notice
  double drain_s = 600;                               // then, for the answers under way
  std::function<void(const std::string&)> log;        // notes, and one line of JSON for each ended request
};

// Listens, starts the engine, prints the line "Ready ..." on standard output when it can serve. SIGTERM and SIGINT drain, a second one
// stops. An error: it could not start.
Status run_server(const ModelText& model, ServerOptions options);

}  // namespace foretoken::serve
