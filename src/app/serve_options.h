// Options of `foretoken serve`, which the server's and the engine's process share.
#pragma once

#include <string>
#include <vector>

#include "app/loaded_model.h"
#include "app/memory_options.h"
#include "serve/model_text.h"

namespace foretoken::app {

struct ServeOptions {
  CommonOptions common;
  SpeculationFlags speculation;
  std::string host = "127.0.0.1";
  int port = 8000;
  std::string api_key;
  std::vector<std::string> allowed_hosts, allowed_origins, names;
  MemoryFlags memory;
  size_t queue = 1024;
  std::string cache_disk = "off";
  double decode_share = 0.5;
  double idle_release_s = 0;         // 0: never
  std::string default_thinking;
  std::string max_request = "64M";
  double drain_s = 600;
  bool no_webui = false;
  int engine_fd = -1;                // hidden: this is the engine's process, and its socket
  double drain_delay_s = 0;          // after SIGTERM, not ready but still taking requests
};

// What the text side needs of an opened bundle; takes the tokenizer and the template over.
Result<serve::ModelText> model_text(OpenedBundle& opened, const ModelConfig& config, const std::string& default_thinking);
std::string model_name(const ServeOptions& options, const Bundle& bundle);

// The engine's process: loads, warms up, serves its socket. The exit status.
int run_engine_process(const ServeOptions& options);

}  // namespace foretoken::app
