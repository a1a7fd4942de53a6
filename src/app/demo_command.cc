// foretoken demo: the main job on the embedded model, or the user's own: one prompt answered plainly and speculatively, drafted tokens
// marked, and the proof that both answers are the same.
#include <fmt/format.h>
#include <unistd.h>

#include <iostream>

#include "app/answer.h"
#include "app/commands.h"

namespace foretoken::app {
namespace {

struct DemoOptions {
  CommonOptions common;
  SpeculationFlags speculation;
  std::string prompt = "Write a Python function that checks whether a string is a palindrome.";
  std::string thinking = "off";
  int64_t max_tokens = 192;
  bool ignore_eos = false;
};

Result<int> demo(const DemoOptions& o) {
  ASSIGN_OR_RETURN(const ThinkingChoice thinking, ThinkingChoice::parse(o.thinking));
  ASSIGN_OR_RETURN(auto loaded, LoadedModel::load(o.common, &o.speculation));
  LoadedModel& model = *loaded;
  ASSIGN_OR_RETURN(const Tokenizer* tokenizer, model.tokenizer());
  ASSIGN_OR_RETURN(const ChatTemplate* chat_template, model.chat_template());
  const OrderedJson messages = {{{"role", "user"}, {"content", o.prompt}}};
  ASSIGN_OR_RETURN(const RenderedPrompt prompt, render_messages(*chat_template, *tokenizer, messages, nullptr, thinking));
  const DraftResolution& resolution = model.drafts()->resolution();
  fmt::print("model        {} ({}, loaded in {:.2f} s)\n", model.bundle().path().lexically_normal().string(), model.backend().info().detail, model.load_seconds());
  fmt::print("speculation  {}: {}\nprompt       {}\n", resolution.resolved, resolution.why, o.prompt);

  const bool colour = ::isatty(STDOUT_FILENO);
  const auto answer = [&](const char* title, Speculation speculation) -> Result<Answer> {
    fmt::print("\n-- {}\n", title);
    std::fflush(stdout);
    const AnswerSink sink = [&](AnswerPart, std::string_view piece, std::optional<Route> drafted) {
      if (colour) std::cout << marked(piece, drafted);
      else if (drafted) std::cout << "\u2039" << piece << "\u203a";
      else std::cout << piece;
      std::cout << std::flush;
    };
    auto lane = model.target().make_lane();
    SamplingOptions sampling;
    sampling.max_tokens = o.max_tokens;
    sampling.ignore_eos = o.ignore_eos;
    auto result = generate_answer(model, *lane, tokenizer, {.prompt = prompt.ids, .sampling = sampling, .speculation = std::move(speculation)}, o.common, sink);
    std::cout << std::endl;
    return result;
  };
  ASSIGN_OR_RETURN(const Answer plain, answer("plain", {}));
  ASSIGN_OR_RETURN(const Answer fast, answer(colour ? "speculative (drafted tokens coloured and underlined)" : "speculative (drafted tokens in \u2039\u203a)",
                                             model.speculation()));

  const auto row = [](const char* name, const Answer& a) {
    const SpeculationCounters& c = a.counters;
    fmt::print("{:<12} {:>8} {:>14.1f} {:>14.1f} {:>12.2f} {:>11}\n", name, a.ids.size(),
               a.prefill_s > 0 ? static_cast<double>(a.prompt_tokens) / a.prefill_s : 0,
               a.timing.decode_s > 0 ? (static_cast<double>(a.ids.size()) - 1) / a.timing.decode_s : 0, c.tokens_per_cycle(),
               c.drafted > 0 ? fmt::format("{:.0f} %", 100.0 * static_cast<double>(c.accepted) / static_cast<double>(c.drafted)) : "-");
  };
  fmt::print("\n{:<12} {:>8} {:>14} {:>14} {:>12} {:>11}\n", "decoding", "tokens", "prompt tok/s", "answer tok/s", "per cycle", "acceptance");
  row("plain", plain);
  row("speculative", fast);
  const bool same = plain.ids == fast.ids;
  fmt::print("identical: {} ({} tokens)\n", same ? "yes" : "NO", plain.ids.size());
  return same ? 0 : 1;
}

}  // namespace

Command add_demo(CLI::App& program) {
  auto o = std::make_shared<DemoOptions>();
  CLI::App* app = program.add_subcommand("demo", "Answer one prompt plainly and speculatively, and compare");
  add_common_options(*app, o->common);
  add_speculation_options(*app, o->speculation);
  app->add_option("prompt", o->prompt, "The prompt")->capture_default_str();
  app->add_option("--thinking", o->thinking, "on or off")->capture_default_str();
  app->add_option("--max-tokens,-n", o->max_tokens, "Longest answer in tokens")->check(CLI::PositiveNumber)->capture_default_str();
  app->add_flag("--ignore-eos", o->ignore_eos, "An end token does not end the answer");
  return {app, [o] {
            const auto status = demo(*o);
            return status ? *status : report(status.error());
          }};
}

}  // namespace foretoken::app
