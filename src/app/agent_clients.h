// What each agent client wants to hear to talk to a running server: environment and flags of one run, never a file of
// the user's.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace foretoken::app {

struct RunningServer {
  std::string url;      // without a slash at its end
  std::string model;    // its first name
  int64_t context = 0;  // tokens of prompt and answer
  std::string key;      // empty: it asks for none
};

struct AgentLaunch {
  std::string program;
  std::vector<std::pair<std::string, std::string>> set;  // variables
  std::vector<std::string> unset;
  std::vector<std::string> arguments;  // ours, then the user's
};

struct AgentClient {
  std::string_view name;     // of `foretoken agent NAME`
  std::string_view program;  // its executable
  std::string_view install;  // how people get it
  void (*wire)(const RunningServer& server, std::span<const std::string> words, AgentLaunch& launch);
};

// In alphabetical order.
std::span<const AgentClient> agent_clients();
// By its name or its executable's; null when there is none.
const AgentClient* find_agent_client(std::string_view name);
// `words`: what the user says to the client.
AgentLaunch launch_of(const AgentClient& client, const RunningServer& server, std::span<const std::string> words);

// One line for a shell. The key shows as "$FORETOKEN_API_KEY".
std::string shell_line(const AgentLaunch& launch, const std::string& key);

}  // namespace foretoken::app
