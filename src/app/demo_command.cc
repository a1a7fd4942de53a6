// foretoken demo: the main job on the embedded model (or the user's own), and a proof that the arithmetic is what it claims: the same
// answer on another instruction set, with another prompt chunking, is identical.
#include <fmt/format.h>

#include <iostream>

#include "app/answer.h"
#include "app/commands.h"

namespace foretoken::app {
namespace {

struct DemoOptions {
  CommonOptions common;
  std::string prompt = "Write a Python function that reverses a string.";
  int64_t max_tokens = 160;
};

struct Pass {
  Answer answer;
  BackendInfo backend;
  double load_s = 0;
};

Result<Pass> answer_once(const CommonOptions& common, const DemoOptions& o, const AnswerSink& sink) {
  ASSIGN_OR_RETURN(auto model, LoadedModel::load(common));
  ASSIGN_OR_RETURN(const Tokenizer* tokenizer, model->tokenizer());
  ASSIGN_OR_RETURN(const ChatTemplate* chat_template, model->chat_template());
  const OrderedJson messages = {{{"role", "user"}, {"content", o.prompt}}};
  ASSIGN_OR_RETURN(RenderedPrompt prompt, render_messages(*chat_template, *tokenizer, messages, nullptr, {.enabled = false}));
  auto lane = model->target().make_lane();
  SamplingOptions sampling;
  sampling.max_tokens = o.max_tokens;
  ASSIGN_OR_RETURN(Answer answer, generate_answer(*model, *lane, tokenizer, {.prompt = std::move(prompt.ids), .sampling = sampling}, common, sink));
  return Pass{std::move(answer), model->backend().info(), model->load_seconds()};
}

Result<int> demo(const DemoOptions& o) {
  fmt::print("model   {}\nprompt  {}\n\n", o.common.model.empty() ? embedded_model().lexically_normal().string() : o.common.model, o.prompt);
  const AnswerSink sink = [](AnswerPart, std::string_view piece) { std::cout << piece << std::flush; };
  ASSIGN_OR_RETURN(const Pass first, answer_once(o.common, o, sink));
  CommonOptions other = o.common;
  other.isa = "scalar";
  other.prefill_chunk = 7;
  other.log_level = "quiet";
  ASSIGN_OR_RETURN(const Pass second, answer_once(other, o, {}));

  const auto row = [](const char* name, const Pass& p) {
    const GenerationTiming& t = p.answer.timing;
    fmt::print("{:<10} {:<28} {:>8.2f} {:>12.1f} {:>12.1f}\n", name, p.backend.detail, p.load_s,
               t.prefill_s > 0 ? static_cast<double>(p.answer.prompt_tokens) / t.prefill_s : 0,
               t.decode_s > 0 ? static_cast<double>(t.cycles) / t.decode_s : 0);
  };
  fmt::print("\n\n{:<10} {:<28} {:>8} {:>12} {:>12}\n", "decoding", "kernels", "load s", "prompt tok/s", "answer tok/s");
  row("plain", first);
  row("check", second);
  const bool same = first.answer.ids == second.answer.ids;
  fmt::print("identical: {} ({} tokens; the check reads the prompt in chunks of 7 with scalar kernels)\n", same ? "yes" : "NO", first.answer.ids.size());
  return same ? 0 : 1;
}

}  // namespace

Command add_demo(CLI::App& program) {
  auto o = std::make_shared<DemoOptions>();
  CLI::App* app = program.add_subcommand("demo", "Answer one prompt and check the answer against scalar kernels");
  add_common_options(*app, o->common);
  app->add_option("prompt", o->prompt, "The prompt")->capture_default_str();
  app->add_option("--max-tokens,-n", o->max_tokens, "Longest answer in tokens")->check(CLI::PositiveNumber)->capture_default_str();
  return {app, [o] {
            const auto status = demo(*o);
            return status ? *status : report(status.error());
          }};
}

}  // namespace foretoken::app
