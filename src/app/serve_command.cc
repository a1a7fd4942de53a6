// foretoken serve: the HTTP server in front of an engine in a process of its own.
#include "serve/server.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "app/commands.h"
#include "app/prompt.h"
#include "app/serve_options.h"
#include "serve/page.h"

namespace foretoken::app {
namespace {

// Sampling that a GGUF file recommends.
Json sampling_metadata(const Bundle& bundle) {
  Json config = Json::object();
  for (const auto& [key, name] : {std::pair{"general.sampling.temp", "temperature"}, {"general.sampling.top_k", "top_k"}, {"general.sampling.top_p", "top_p"},
                                  {"general.sampling.min_p", "min_p"}, {"general.sampling.penalty_repeat", "repetition_penalty"}}) {
    const auto it = bundle.metadata().find(key);
    if (it == bundle.metadata().end()) continue;
    if (const auto whole = it->second.as_int()) config[name] = *whole;
    else if (const auto number = it->second.as_double()) config[name] = *number;
  }
  return config;
}

// This process's command line without what the engine's must not show: the key.
std::vector<std::string> engine_arguments() {
  std::ifstream line("/proc/self/cmdline", std::ios::binary);  // its size is not known before it is read
  std::vector<std::string> words;
  for (std::string word; std::getline(line, word, '\0');) words.push_back(word);
  std::vector<std::string> out;
  for (size_t i = 1; i < words.size(); ++i) {
    if (words[i] == "--api-key") ++i;
    else if (!words[i].starts_with("--api-key=")) out.push_back(words[i]);
  }
  return out;
}

std::string program_path() {
  std::error_code ignored;
  const std::string path = std::filesystem::read_symlink("/proc/self/exe", ignored).string();
  // A program that was replaced while it runs starts its own engine again, not the new one's.
  return path.empty() || path.ends_with(" (deleted)") ? "/proc/self/exe" : path;
}

// A body of less holds no conversation.
std::string check_request_size(const std::string& text) {
  const auto bytes = parse_size(text);
  return bytes && *bytes >= 1024 ? "" : "takes 1K at least, such as 64M, not \"" + text + "\"";
}

serve::ServerOptions server_options(const ServeOptions& o, const Bundle& bundle) {
  serve::ServerOptions s;
  s.host = o.host;
  s.port = o.port;
  s.limits.body_bytes = *parse_size(o.max_request);
  s.limits.ingress_bytes = std::max<size_t>(s.limits.ingress_bytes, 2 * s.limits.body_bytes);
  s.limits.connections = o.queue + 1024;
  s.drain_delay_s = o.drain_delay_s;
  s.drain_s = o.drain_s;
  s.service.access = {.host = o.host, .allowed_hosts = o.allowed_hosts, .allowed_origins = o.allowed_origins, .api_key = o.api_key.empty() ? api_key_of_environment() : o.api_key};
  s.service.model_names = o.names.empty() ? std::vector<std::string>{model_name(o, bundle)} : o.names;
  if (s.service.model_names[0] == "*") s.service.model_names.insert(s.service.model_names.begin(), model_name(o, bundle));
  s.service.version = FORETOKEN_VERSION;
  s.service.fingerprint = "fp_" + bundle.fingerprint().substr(0, 12) + "_" FORETOKEN_VERSION;
  s.service.queue = o.queue;
  if (!o.no_webui) s.service.page = serve::kPage;
  s.engine = {.program = program_path(), .arguments = engine_arguments(), .hidden_environment = {"FORETOKEN_API_KEY"}};
  s.log = [&o](const std::string& line) { log_info(o.common, line); };
  return s;
}

int serve_requests(const ServeOptions& o) {
  if (o.engine_fd >= 0) return run_engine_process(o);
  const auto run = [&]() -> Status {
    ASSIGN_OR_RETURN(OpenedBundle opened, open_bundle(o.common));
    ASSIGN_OR_RETURN(const ModelConfig config, ModelConfig::from_bundle(opened.bundle));
    ASSIGN_OR_RETURN(const serve::ModelText text, model_text(opened, config, o.default_thinking));
    return serve::run_server(text, server_options(o, opened.bundle));
  };
  const Status status = run();
  return status ? 0 : report(status.error());
}

}  // namespace

std::string model_name(const ServeOptions& o, const Bundle& bundle) {
  if (!o.names.empty() && o.names[0] != "*") return o.names[0];
  if (o.common.model.empty()) return "demo-dense";
  std::error_code ignored;
  const auto path = std::filesystem::canonical(o.common.model, ignored);
  const std::string name = (ignored ? std::filesystem::path(o.common.model) : path).filename().string();
  return name.ends_with(".gguf") ? name.substr(0, name.size() - 5) : name.empty() ? bundle.folder().filename().string() : name;
}

Result<serve::ModelText> model_text(OpenedBundle& opened, const ModelConfig& config, const std::string& default_thinking) {
  serve::ModelText text;
  text.tokenizer = std::move(opened.tokenizer);
  text.tokenizer_note = opened.tokenizer_note;
  text.chat_template = std::move(opened.chat_template);
  text.template_note = opened.template_note;
  text.stop_tokens = config.stop_tokens;
  if (text.tokenizer)
    for (const TokenId id : text.tokenizer->end_ids())
      if (!text.is_stop(id)) text.stop_tokens.push_back(id);
  const Bundle& bundle = opened.bundle;
  text.defaults.sampling = serve::sampling_of_config(bundle.format() == BundleFormat::kGguf ? sampling_metadata(bundle) : bundle.generation_config(), text.defaults.sampling);
  if (!default_thinking.empty() && default_thinking.find_first_not_of("0123456789") == std::string::npos && default_thinking.size() < 10) {
    text.defaults.thinking = true;
    text.defaults.thinking_budget = std::stoll(default_thinking);
  } else if (default_thinking == "on" || default_thinking == "off") {
    text.defaults.thinking = default_thinking == "on";
  } else if (!default_thinking.empty()) {
    return Error{ErrorCode::kUsage, fmt::format("--default-thinking takes on, off or a number of tokens, not \"{}\"", default_thinking)};
  }
  return text;
}

Command add_serve(CLI::App& program) {
  auto o = std::make_shared<ServeOptions>();
  CLI::App* app = program.add_subcommand("serve", "Answer OpenAI's and Anthropic's APIs over HTTP");
  add_common_options(*app, o->common);
  add_speculation_options(*app, o->speculation);
  app->add_option("--host", o->host, "Address to listen on")->capture_default_str();
  app->add_option("--port", o->port, "Port to listen on (0: any)")->check(CLI::Range(0, 65535))->capture_default_str();
  app->add_option("--api-key", o->api_key, "Key that clients must send (default: FORETOKEN_API_KEY)");
  app->add_option("--allowed-host", o->allowed_hosts, "Further name of this server in Host headers, or * (repeatable)")->allow_extra_args(false);
  app->add_option("--allowed-origin", o->allowed_origins, "Origin whose pages may use this server, or * (repeatable)")->allow_extra_args(false);
  app->add_option("--served-model-name", o->names, "Name of the model in the API, * beside it: any name will do (repeatable)")->allow_extra_args(false);
  add_memory_options(*app, o->memory);
  app->add_option("--queue", o->queue, "Requests that may wait beside them")->check(CLI::Range(0, 100000))->capture_default_str();
  app->add_option("--cache-disk", o->cache_disk, "Disk space of the prefix cache, such as 16G, or off")->check(check_size)->capture_default_str();
  app->add_option("--decode-share", o->decode_share, "Share of the time for answers under way while prompts wait")->check(CLI::Range(0.01, 0.99))->capture_default_str();
  app->add_option("--idle-release", o->idle_release_s, "Seconds without a request after which weights and lanes are given back (0: never)")->check(CLI::Range(0.0, 1e9));
  app->add_option("--default-thinking", o->default_thinking, "on, off or a budget of tokens, for requests that do not say (default: the template's)");
  app->add_option("--max-request", o->max_request, "Largest body of a request")->check(check_request_size)->capture_default_str();
  app->add_option("--drain-delay", o->drain_delay_s, "Seconds after SIGTERM in which requests are still taken, while /ready says no")->check(CLI::Range(0.0, 1e4))->capture_default_str();
  app->add_option("--drain-timeout", o->drain_s, "Seconds for answers under way after that")->check(CLI::Range(0.0, 1e6))->capture_default_str();
  app->add_flag("--no-webui", o->no_webui, "No page at /");
  app->add_option("--engine-fd", o->engine_fd)->group("");
  return {app, [o] { return serve_requests(*o); }};
}

}  // namespace foretoken::app
