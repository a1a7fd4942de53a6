// Peer: another inference server that answers token ids over HTTP. llama.cpp's server times itself; any other that
// speaks OpenAI's completions is timed from outside, from its first piece of text on.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "numerics/dtype.h"
#include "qualify/http_client.h"
#include "qualify/process.h"

namespace foretoken {

struct PeerAnswer {
  double decode_us = 0;  // of `timed_tokens`
  double timed_tokens = 0;
  std::vector<TokenId> tokens;       // empty where the server does not say
  double drafted = 0, accepted = 0;  // where it says
  bool timed_outside = false;
};

class Peer {
 public:
  // A running server.
  Peer(std::string name, HttpUrl url, std::string model)
      : name_(std::move(name)), url_(std::move(url)), model_(std::move(model)) {}
  // Starts llama.cpp's server in one of its speculation modes and waits until it is ready; the error says why it is
  // not. It is paused whenever it is not asked.
  struct LlamaOptions {
    std::string program, model, mode = "none", drafter;
    std::vector<std::string> more;
    int threads = 2, context = 4096;
    std::string log_file;
  };
  static Result<std::unique_ptr<Peer>> start_llama(const LlamaOptions& options);

  const std::string& name() const { return name_; }
  Result<PeerAnswer> decode(std::span<const TokenId> prompt, int64_t tokens);

 private:
  Result<PeerAnswer> ask_llama(std::span<const TokenId> prompt, int64_t tokens);
  Result<PeerAnswer> ask_openai(std::span<const TokenId> prompt, int64_t tokens);

  std::string name_;
  HttpUrl url_;
  std::string model_;
  bool llama_ = false;
  std::optional<ChildProcess> process_;
};

}  // namespace foretoken
