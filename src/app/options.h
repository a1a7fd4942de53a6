// What every command takes, and the one place where flags become typed options. The environment is read here and nowhere else.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "base/result.h"
#include "bundle/packed_cache.h"
#include "model/target.h"
#include "ops/ops.h"

namespace foretoken::app {

enum class LogLevel : uint8_t { kQuiet, kInfo, kDebug };

struct CommonOptions {
  std::string model;       // empty: the embedded demo model
  std::string backend = "auto";
  std::string isa = "auto";
  int threads = 0;         // 0: all usable processors
  int prefill_chunk = 512;
  std::string kv_format = "bf16";
  std::string numerics = "exact";
  std::string draft_model;
  std::string cache_dir;            // empty: where the environment says
  std::string packed_cache = "32G"; // "off", or what all packed weights may take
  std::string draft_weights = "auto";
  std::string log_level = "info";
  bool json = false;

  LogLevel level() const;
  KvFormat kv() const;
  // Where and how packed weights are kept; notes go to log_info. `this` must outlive the result.
  PackedCacheOptions packing() const;
};

void add_common_options(CLI::App& command, CommonOptions& options);

// How an answer may be drafted and verified.
struct SpeculationFlags {
  std::string speculate = "auto", verify = "auto";
  int width = 0;              // proposed tokens per cycle; 0: the controller's choice
  double live_threshold = -1; // negative: by expected gain
};
void add_speculation_options(CLI::App& command, SpeculationFlags& flags);

// The folder of the embedded model: models/demo-dense of the source tree the program was built from, of the installation, or of the
// working directory.
std::filesystem::path embedded_model();

// Where this user's caches lie: FORETOKEN_CACHE_DIR, or foretoken in XDG_CACHE_HOME or in ~/.cache. Empty where none of them is set.
std::filesystem::path default_cache_folder();

// "off" is 0; a number may end in K, M, G or T. Nothing when it is no size.
std::optional<uint64_t> parse_size(const std::string& text);
// CLI11 checks of the same: empty, or what is wrong. Sizes of memory and of caches are 1M at least; "off" is none for the second.
std::string check_size(const std::string& text);
std::string check_positive_size(const std::string& text);

// FORETOKEN_API_KEY, or empty.
std::string api_key_of_environment();

// An executable file of that name in PATH, or empty.
std::filesystem::path find_program(const std::string& name);

// The backend that `options` ask for. "auto" is the CPU: a GPU gives other bits, so it is asked for by name.
Result<std::unique_ptr<Backend>> make_backend(const CommonOptions& options);

// One line to stderr, unless the level hides it.
void log_info(const CommonOptions& options, const std::string& line);
// Prints the error's sentence to stderr; returns its exit status.
int report(const Error& error);

}  // namespace foretoken::app
