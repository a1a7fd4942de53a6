// Flags, their checks, and where the embedded model lies.
#include "app/options.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "app/output_paths.h"

namespace foretoken::app {

namespace fs = std::filesystem;

namespace {

// What is smaller is a number whose unit was forgotten.
constexpr uint64_t kLeastSize = uint64_t{1} << 20;

}  // namespace

LogLevel CommonOptions::level() const {
  if (log_level == "quiet") return LogLevel::kQuiet;
  return log_level == "debug" ? LogLevel::kDebug : LogLevel::kInfo;
}

KvFormat CommonOptions::kv() const {
  if (kv_format == "f32") return KvFormat::kF32;
  return kv_format == "int8" ? KvFormat::kInt8 : KvFormat::kBF16;
}

std::optional<uint64_t> parse_size(const std::string& text) {
  if (text == "off") return 0;
  size_t digits = 0;
  uint64_t value = 0;
  for (; digits < text.size() && text[digits] >= '0' && text[digits] <= '9' && digits < 12; ++digits)
    value = value * 10 + static_cast<uint64_t>(text[digits] - '0');
  const std::string unit = text.substr(digits);
  if (digits == 0) return std::nullopt;
  if (unit.empty()) return value;
  const size_t power = unit.size() == 1 ? std::string("KMGT").find(unit[0]) : std::string::npos;
  if (power == std::string::npos || value >= uint64_t{1} << 23) return std::nullopt;
  return value << (10 * (power + 1));
}

std::string check_size(const std::string& text) {
  const auto bytes = parse_size(text);
  if (!bytes) return "takes off, or bytes such as 32G, not \"" + text + "\"";
  return *bytes == 0 || *bytes >= kLeastSize ? "" : fmt::format("{} are {} bytes, which hold nothing; takes off, or 1M at least", text, *bytes);
}

std::string check_positive_size(const std::string& text) {
  const auto bytes = parse_size(text);
  if (!bytes || *bytes == 0) return "takes bytes such as 32G, not \"" + text + "\"";
  return *bytes >= kLeastSize ? "" : fmt::format("{} are {} bytes, which hold nothing; takes 1M at least", text, *bytes);
}

std::string api_key_of_environment() {
  const char* key = std::getenv("FORETOKEN_API_KEY");
  return key ? key : "";
}

fs::path find_program(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::string_view rest = path ? path : "/usr/local/bin:/usr/bin:/bin";
  while (!rest.empty()) {
    const std::string_view folder = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(folder.size() + 1, rest.size()));
    const fs::path candidate = fs::path(folder.empty() ? "." : folder) / name;
    std::error_code ignored;
    if (fs::is_regular_file(candidate, ignored) && ::access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return {};
}

PackedCacheOptions CommonOptions::packing() const {
  PackedCacheOptions o;
  o.limit_bytes = *parse_size(packed_cache);
  o.threads = threads;
  o.note = [this](const std::string& line) { log_info(*this, line); };
  const fs::path folder = cache_dir.empty() ? default_cache_folder() : fs::path(cache_dir);
  if (!folder.empty() && o.limit_bytes > 0) o.folder = folder / "packed";
  return o;
}

fs::path default_cache_folder() {
  const auto from = [](const char* name, const char* rest) {
    const char* value = std::getenv(name);
    return value && value[0] == '/' ? fs::path(value) / rest : fs::path();
  };
  for (const fs::path& folder : {from("FORETOKEN_CACHE_DIR", ""), from("XDG_CACHE_HOME", "foretoken"), from("HOME", ".cache/foretoken")})
    if (!folder.empty()) return folder;
  return {};
}

void add_common_options(CLI::App& command, CommonOptions& o) {
  command.add_option("--model,-m", o.model, "Folder with safetensors, or a .gguf file (default: the embedded demo model)");
  command.add_option("--backend", o.backend, "auto (the processor), cpu, cuda or reference")
      ->check(CLI::IsMember({"auto", "cpu", "cuda", "reference"}))->capture_default_str();
  command.add_option("--isa", o.isa, "auto, scalar, avx2 or avx512")
      ->check(CLI::IsMember({"auto", "scalar", "avx2", "avx512"}))->capture_default_str();
  command.add_option("--threads,-t", o.threads, "Threads (0: all usable processors)")->check(CLI::Range(0, 1024))->capture_default_str();
  command.add_option("--prefill-chunk", o.prefill_chunk, "Prompt rows of one pass")->check(CLI::Range(1, 8192))->capture_default_str();
  command.add_option("--kv-format", o.kv_format, "Storage of attention keys and values: f32, bf16 or int8")
      ->check(CLI::IsMember({"f32", "bf16", "int8"}))->capture_default_str();
  command.add_option("--numerics", o.numerics, "exact (the default and the promise) or fast")
      ->check(CLI::IsMember({"exact", "fast"}))->capture_default_str();
  command.add_option("--draft-model", o.draft_model, "Folder or file of a drafter for this model");
  command.add_option("--cache-dir", o.cache_dir, "Folder of caches (default: FORETOKEN_CACHE_DIR, or foretoken in XDG_CACHE_HOME or ~/.cache)")
      ->check(check_cache_folder);
  command.add_option("--packed-cache", o.packed_cache, "What weights kept in the kernels' layout may take on disk, such as 32G, or off")
      ->check(check_size)->capture_default_str();
  command.add_option("--draft-weights", o.draft_weights, "Weights of a block drafter: auto (floats become q8_0), stored, q8_0, q6_k, q5_k, q4_k or iq4_xs")
      ->capture_default_str();
  command.add_option("--log-level", o.log_level, "quiet, info or debug")
      ->check(CLI::IsMember({"quiet", "info", "debug"}))->capture_default_str();
  command.add_flag("--json", o.json, "Print the result as JSON");
}

void add_speculation_options(CLI::App& command, SpeculationFlags& f) {
  command.add_option("--speculate", f.speculate, "auto, off, or a comma list of copy, mtp, dflash, grammar")->capture_default_str();
  command.add_option("--verify", f.verify, "auto, chain, live or tree")->check(CLI::IsMember({"auto", "chain", "live", "tree"}))->capture_default_str();
  command.add_option("--width", f.width, "Proposed tokens per cycle (0: the controller's choice)")->check(CLI::Range(0, 64))->capture_default_str();
  command.add_option("--live-threshold", f.live_threshold, "Least cumulative confidence of a verified row")->check(CLI::Range(0.0, 1.0));
}

fs::path embedded_model() {
  std::error_code ignored;
  const fs::path relative = fs::path("models") / "demo-dense";
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const fs::path& candidate : {program.parent_path() / relative, program / relative, program.parent_path() / "share" / "foretoken" / relative, relative})
    if (fs::is_directory(candidate, ignored)) return candidate;
  return relative;
}

Result<std::unique_ptr<Backend>> make_backend(const CommonOptions& o) {
  if (o.backend == "cuda") return make_cuda_backend();
  if (o.backend == "reference") return make_reference_backend();
  CpuOptions cpu{.isa = Isa::kAuto, .threads = o.threads};
  if (o.isa == "scalar") cpu.isa = Isa::kScalar;
  if (o.isa == "avx2") cpu.isa = Isa::kAvx2;
  if (o.isa == "avx512") cpu.isa = Isa::kAvx512;
  return make_cpu_backend(cpu);
}

void log_info(const CommonOptions& options, const std::string& line) {
  if (options.level() != LogLevel::kQuiet) fmt::print(stderr, "{}\n", line);
}

int report(const Error& error) {
  fmt::print(stderr, "foretoken: {}\n", error.message);
  return exit_status(error.code);
}

}  // namespace foretoken::app
