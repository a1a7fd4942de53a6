// EngineHost: the engine's process. One thread takes messages from a socket, steps the engine and sends back what happened. It ends when the
// other end of the socket does.
#pragma once

#include <functional>

#include "engine/engine.h"
#include "serve/engine_link.h"
#include "serve/model_text.h"

namespace foretoken::serve {

struct HostedEngine {
  Engine& engine;
  const ModelText& text;
  EngineFacts facts;
  const DraftModels* drafts = nullptr;
  std::string verify;                              // as the user asked
  std::function<OrderedJson()> more_status;        // joined to the engine's: memory, disk; may be empty
  // After so long without a request `release` gives memory back, and `restore` takes it anew before the next one runs. 0: never.
  double idle_release_s = 0;
  std::function<void()> release;
  std::function<Status()> restore;
};

// Says that the engine is ready and serves until the socket ends. The exit status.
int host_engine(int socket, const HostedEngine& hosted);
// Says why the engine cannot be.
void report_no_engine(int socket, const Error& error);

// Of the engine's process: an ended parent ends it too, and the terminal's and the service manager's signals are the parent's business.
void become_engine_process();

}  // namespace foretoken::serve
