// foretoken logits and perplexity: what the model says about given tokens.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <iostream>
#include <numeric>

#include "app/commands.h"
#include "app/output_paths.h"
#include "app/progress.h"
#include "app/prompt.h"
#include "decode/generation.h"

namespace foretoken::app {
namespace {

// Rows of one pass so that its logits stay near 64 MiB.
int logits_chunk(const LoadedModel& model, const CommonOptions& o) {
  const int64_t fitting = (64 << 20) / (int64_t{4} * model.config().vocab);
  return static_cast<int>(std::clamp<int64_t>(fitting, 1, o.prefill_chunk));
}

Status check_ids(const LoadedModel& model, std::span<const TokenId> ids) {
  for (const TokenId id : ids)
    if (id >= model.config().vocab)
      return Error{ErrorCode::kUsage, fmt::format("token id {} is outside the vocabulary of {}", id, model.config().vocab)};
  return {};
}

struct LogitsOptions {
  CommonOptions common;
  std::string ids, out;
  int64_t last = 1;
};

// One fp32 tensor "logits" [positions, vocab] and one I64 tensor "positions", as safetensors.
std::string logits_safetensors(std::span<const int64_t> positions, std::span<const float> logits, int64_t vocab) {
  const size_t logits_bytes = logits.size_bytes(), positions_bytes = positions.size_bytes();
  const int64_t n = static_cast<int64_t>(positions.size());
  std::string header = dump_json({{"logits", {{"dtype", "F32"}, {"shape", {n, vocab}}, {"data_offsets", {0, logits_bytes}}}},
                                  {"positions", {{"dtype", "I64"}, {"shape", {n}}, {"data_offsets", {logits_bytes, logits_bytes + positions_bytes}}}}});
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t size = header.size();
  std::string file(reinterpret_cast<const char*>(&size), 8);
  file += header;
  file.append(reinterpret_cast<const char*>(logits.data()), logits_bytes);
  file.append(reinterpret_cast<const char*>(positions.data()), positions_bytes);
  return file;
}

Result<int> logits(const LogitsOptions& o) {
  ASSIGN_OR_RETURN(const std::vector<TokenId> ids, parse_ids(o.ids));
  ASSIGN_OR_RETURN(auto loaded, LoadedModel::load(o.common));
  LoadedModel& model = *loaded;
  TRY(check_ids(model, ids));
  const int64_t n = static_cast<int64_t>(ids.size()), count = std::min(o.last, n), vocab = model.config().vocab;
  std::vector<int64_t> positions(static_cast<size_t>(count));
  std::iota(positions.begin(), positions.end(), n - count);
  std::vector<float> values;
  values.reserve(static_cast<size_t>(count * vocab));
  auto lane = model.target().make_lane();
  const int chunk = count > 1 ? logits_chunk(model, o.common) : o.common.prefill_chunk;
  run_prompt(model.target(), *lane, ids, chunk, positions, [&](int64_t, int64_t, const ForwardResult& result) {
    for (int64_t r = 0; r < result.logits.rows; ++r) values.insert(values.end(), result.logits.f32(r), result.logits.f32(r) + vocab);
    return true;
  });
  if (!o.out.empty()) {
    TRY(write_file_atomically(o.out, logits_safetensors(positions, values, vocab)));
    return 0;
  }
  // Written number by number: the shortest decimal that reads back as the same fp32 value, at most 9 digits.
  fmt::memory_buffer text;
  fmt::format_to(std::back_inserter(text), "{{\"positions\":[{}],\"logits\":[", fmt::join(positions, ","));
  for (int64_t r = 0; r < count; ++r) {
    text.append(std::string_view(r == 0 ? "[" : ",["));
    for (int64_t i = 0; i < vocab; ++i) {
      const float value = values[static_cast<size_t>(r * vocab + i)];
      if (i > 0) text.push_back(',');
      if (std::isfinite(value)) fmt::format_to(std::back_inserter(text), "{}", value);
      else text.append(std::string_view("null"));
    }
    text.push_back(']');
  }
  text.append(std::string_view("]}\n"));
  std::cout << std::string_view(text.data(), text.size()) << std::flush;
  return 0;
}

struct PerplexityOptions {
  CommonOptions common;
  std::string file, ids;
  int64_t context = 0;
};

// -log softmax(logits)[token], in double.
double negative_log_likelihood(const float* logits, int64_t vocab, TokenId token) {
  const double top = *std::max_element(logits, logits + vocab);
  double sum = 0;
  for (int64_t i = 0; i < vocab; ++i) sum += std::exp(logits[i] - top);
  return top + std::log(sum) - logits[token];
}

Result<int> perplexity(const PerplexityOptions& o) {
  ASSIGN_OR_RETURN(auto loaded, LoadedModel::load(o.common));
  LoadedModel& model = *loaded;
  std::vector<TokenId> ids;
  if (!o.ids.empty()) {
    ASSIGN_OR_RETURN(ids, parse_ids(o.ids));
  } else {
    ASSIGN_OR_RETURN(const std::string text, read_file(o.file));
    ASSIGN_OR_RETURN(const Tokenizer* tokenizer, model.tokenizer());
    ASSIGN_OR_RETURN(ids, tokenizer->encode(text));
  }
  TRY(check_ids(model, ids));
  if (ids.size() < 2) return Error{ErrorCode::kUsage, "perplexity needs a text of at least two tokens"};
  const int64_t total = static_cast<int64_t>(ids.size()), vocab = model.config().vocab;
  const int64_t window = o.context > 0 ? std::min(o.context, model.config().max_positions) : model.config().max_positions;
  const int chunk = logits_chunk(model, o.common);
  const auto begin = std::chrono::steady_clock::now();
  double sum = 0;
  int64_t scored = 0;
  bool finite = true;
  ProgressLine progress("scoring", o.common.level() != LogLevel::kQuiet);
  for (int64_t start = 0; start + 1 < total; start += window) {
    const std::span<const TokenId> part = std::span(ids).subspan(static_cast<size_t>(start), static_cast<size_t>(std::min(window, total - start)));
    std::vector<int64_t> wanted(part.size() - 1);
    std::iota(wanted.begin(), wanted.end(), 0);
    auto lane = model.target().make_lane();
    run_prompt(model.target(), *lane, part, chunk, wanted, [&](int64_t first, int64_t rows, const ForwardResult& result) {
      for (int64_t r = 0; r < result.logits.rows; ++r) {
        const double nll = negative_log_likelihood(result.logits.f32(r), vocab, part[static_cast<size_t>(first + r + 1)]);
        finite &= std::isfinite(nll);
        sum += nll;
        ++scored;
      }
      progress.show(static_cast<uint64_t>(start + first + rows), static_cast<uint64_t>(total));
      return true;
    });
  }
  progress.clear();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (!finite) return Error{ErrorCode::kInvalidFile, "the model's result is not finite: its weights are damaged"};
  const double mean = sum / static_cast<double>(scored);
  if (o.common.json)
    std::cout << dump_json({{"mean_nll", mean}, {"perplexity", std::exp(mean)}, {"tokens", scored}, {"seconds", seconds}}) << "\n";
  else
    fmt::print("mean NLL {:.6f} per token (perplexity {:.4f}), {} tokens, {:.3f} s\n", mean, std::exp(mean), scored, seconds);
  return 0;
}

template <class Options>
std::function<int()> runner(Result<int> (*command)(const Options&), std::shared_ptr<Options> options) {
  return [command, options] {
    const auto status = command(*options);
    return status ? *status : report(status.error());
  };
}

}  // namespace

Command add_logits(CLI::App& program) {
  auto o = std::make_shared<LogitsOptions>();
  CLI::App* app = program.add_subcommand("logits", "Raw logits of the last positions");
  add_common_options(*app, o->common);
  app->add_option("--ids", o->ids, "Token ids, comma separated")->required();
  app->add_option("--last", o->last, "How many of the last positions")->check(CLI::PositiveNumber)->capture_default_str();
  app->add_option("--out", o->out, "Write a safetensors file instead of JSON")->check(check_output_file);
  return {app, runner(&logits, o)};
}

Command add_perplexity(CLI::App& program) {
  auto o = std::make_shared<PerplexityOptions>();
  CLI::App* app = program.add_subcommand("perplexity", "Mean negative log-likelihood of a text");
  add_common_options(*app, o->common);
  CLI::Option* file = app->add_option("--file,-f", o->file, "Text file")->check(CLI::ExistingFile);
  app->add_option("--ids", o->ids, "Token ids instead of a file")->excludes(file);
  app->add_option("--context", o->context, "Tokens per independent window (0: the model's context)")
      ->check([](const std::string& text) { return text == "1" ? "takes 2 tokens at least: the first of a window has nothing before it" : ""; })
      ->check(CLI::NonNegativeNumber);
  app->callback([o] {
    if (o->file.empty() && o->ids.empty()) throw CLI::RequiredError("perplexity: --file or --ids");
  });
  return {app, runner(&perplexity, o)};
}

}  // namespace foretoken::app
