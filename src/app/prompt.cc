// Prompts and sampling flags.
#include "app/prompt.h"

#include <fmt/format.h>

#include <charconv>
#include <iostream>
#include <iterator>
#include <random>

namespace foretoken::app {

Result<ThinkingChoice> ThinkingChoice::parse(const std::string& text) {
  if (text.empty()) return ThinkingChoice{};
  if (text == "on") return ThinkingChoice{.enabled = true};
  if (text == "off") return ThinkingChoice{.enabled = false};
  if (text.find_first_not_of("0123456789") == std::string::npos && text.size() < 10) return ThinkingChoice{.enabled = true, .budget = std::stoll(text)};
  return Error{ErrorCode::kUsage, fmt::format("--thinking takes on, off or a number of tokens, not \"{}\"", text)};
}

void add_sampling_options(CLI::App& command, SamplingOptions& o) {
  command.add_option("--max-tokens,-n", o.max_tokens, "Longest answer in tokens")->check(CLI::Range(int64_t{0}, int64_t{1} << 26))->capture_default_str();
  command.add_option("--temperature", o.params.temperature, "0 is greedy")->capture_default_str();
  command.add_option("--top-p", o.params.top_p, "Keep the most likely tokens up to this mass")->capture_default_str();
  command.add_option("--top-k", o.params.top_k, "Keep this many tokens (0: all)")->capture_default_str();
  command.add_option("--min-p", o.params.min_p, "Keep tokens at least this likely, relative to the best")->capture_default_str();
  command.add_option("--repetition-penalty", o.params.repetition_penalty, "Divides or multiplies logits of tokens seen before")->capture_default_str();
  command.add_option("--presence-penalty", o.params.presence_penalty, "Subtracted from tokens of the answer")->capture_default_str();
  command.add_option("--frequency-penalty", o.params.frequency_penalty, "Subtracted per occurrence in the answer")->capture_default_str();
  command.add_option("--seed", o.seed, "Seed of sampled answers (absent: drawn and reported)");
  command.add_option("--stop", o.stop, "Text that ends the answer (repeatable)")
      ->check([](const std::string& text) { return text.empty() ? "takes a text of at least one character" : ""; })
      ->allow_extra_args(false);
  command.add_flag("--ignore-eos", o.ignore_eos, "An end token does not end the answer");
}

uint64_t draw_seed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

Result<std::vector<TokenId>> parse_ids(const std::string& text) {
  std::vector<TokenId> ids;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    std::string_view piece(text.data() + begin, comma - begin);
    while (!piece.empty() && std::isspace(static_cast<unsigned char>(piece.front()))) piece.remove_prefix(1);
    while (!piece.empty() && std::isspace(static_cast<unsigned char>(piece.back()))) piece.remove_suffix(1);
    TokenId id = 0;
    const auto parsed = std::from_chars(piece.data(), piece.data() + piece.size(), id);
    if (piece.empty() || parsed.ec != std::errc() || parsed.ptr != piece.data() + piece.size() || id < 0)
      return Error{ErrorCode::kUsage, fmt::format("token ids are comma-separated numbers such as 1,2,3; \"{}\" is not one", piece)};
    ids.push_back(id);
    begin = comma + 1;
  }
  return ids;
}

Result<RenderedPrompt> render_messages(const ChatTemplate& chat_template, const Tokenizer& tokenizer, const OrderedJson& messages,
                                       const OrderedJson& tools, const ThinkingChoice& thinking, bool generation_prompt) {
  RenderOptions options;
  options.add_generation_prompt = generation_prompt;
  options.enable_thinking = thinking.enabled;
  return render_prompt(chat_template, tokenizer, messages, tools, std::move(options));
}

std::string read_standard_input() {
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

}  // namespace foretoken::app
