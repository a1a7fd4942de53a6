// foretoken run: one answer, streamed to standard output or printed as JSON.
#include <fmt/format.h>
#include <unistd.h>

#include <iostream>

#include "app/answer.h"
#include "app/commands.h"
#include "app/output_paths.h"

namespace foretoken::app {
namespace {

struct RunOptions {
  CommonOptions common;
  SamplingOptions sampling;
  std::string prompt, prompt_file, ids, system, thinking, json_schema, trace;
  bool raw = false;
  SpeculationFlags speculation;
};

Result<std::vector<TokenId>> prompt_ids(const RunOptions& o, LoadedModel& model) {
  if (!o.ids.empty()) return parse_ids(o.ids);
  std::string text = o.prompt;
  if (!o.prompt_file.empty()) {
    ASSIGN_OR_RETURN(text, read_file(o.prompt_file));
  } else if (text.empty()) {
    if (::isatty(STDIN_FILENO)) return Error{ErrorCode::kUsage, "run needs a prompt: foretoken run \"...\", --prompt-file or --ids"};
    text = read_standard_input();
  }
  if (text.empty()) return Error{ErrorCode::kUsage, "the prompt is empty; give foretoken run some text, or --ids"};
  ASSIGN_OR_RETURN(const Tokenizer* tokenizer, model.tokenizer());
  if (o.raw) return tokenizer->encode(text);
  ASSIGN_OR_RETURN(const ChatTemplate* chat_template, model.chat_template());
  OrderedJson messages = OrderedJson::array();
  if (!o.system.empty()) messages.push_back({{"role", "system"}, {"content", o.system}});
  messages.push_back({{"role", "user"}, {"content", text}});
  ASSIGN_OR_RETURN(const ThinkingChoice thinking, ThinkingChoice::parse(o.thinking));
  ASSIGN_OR_RETURN(RenderedPrompt rendered, render_messages(*chat_template, *tokenizer, messages, nullptr, thinking));
  return std::move(rendered.ids);
}

OrderedJson answer_json(const Answer& a, std::span<const TokenId> prompt, const SpeculationFlags& flags, LoadedModel& model) {
  const int64_t computed = a.prompt_tokens - a.cached_tokens;
  const auto rate = [](double tokens, double seconds) { return seconds > 0 ? tokens / seconds : 0.0; };
  OrderedJson by_drafter = OrderedJson::object();
  for (const Route route : {Route::kCopy, Route::kMtp, Route::kBlock, Route::kGrammar})
    if (const SpeculationCounters::Of& of = a.counters.of(route); model.drafts()->has(route))
      by_drafter[std::string(route_name(route))] = {{"cycles", of.cycles}, {"drafted", of.drafted}, {"verified_rows", of.verified}, {"accepted", of.accepted}};
  return {{"text", a.text},
          {"reasoning", a.reasoning},
          {"ids", a.ids},
          {"prompt_ids", std::vector<TokenId>(prompt.begin(), prompt.end())},
          {"finish_reason", std::string(finish_reason_name(a.reason))},
          {"seed", a.seed},
          {"usage",
           {{"prompt_tokens", a.prompt_tokens},
            {"completion_tokens", a.ids.size()},
            {"reasoning_tokens", a.reasoning_tokens},
            {"cached_tokens", a.cached_tokens}}},
          {"speculation",
           {{"drafter", model.drafts()->resolution().resolved},
            {"why", model.drafts()->resolution().why},
            {"verify", flags.verify},
            {"cycles", a.counters.cycles},
            {"drafted", a.counters.drafted},
            {"verified_rows", a.counters.verified_rows},
            {"accepted", a.counters.accepted},
            {"tokens_per_cycle", a.counters.tokens_per_cycle()},
            {"by_drafter", by_drafter},
            {"plans", a.counters.plans},
            {"notes", model.drafts()->resolution().notes},
            {"dormant", a.dormant}}},
          {"timing",
           {{"load_s", model.load_seconds()},
            {"prefill_s", a.prefill_s},
            {"decode_s", a.timing.decode_s},
            {"prefill_tok_s", rate(static_cast<double>(computed), a.prefill_s)},
            {"decode_tok_s", rate(static_cast<double>(a.ids.size()) - 1, a.timing.decode_s)},
            {"draft_s", a.timing.draft_s},
            {"verify_s", a.timing.verify_s},
            {"commit_s", a.timing.commit_s}}}};
}

Status check(const RunOptions& o) {
  TRY(o.sampling.params.validate());
  if (!o.json_schema.empty() && o.sampling.ignore_eos) return Error{ErrorCode::kUsage, "--ignore-eos: an answer under --json-schema ends where its JSON does"};
  TRY(ThinkingChoice::parse(o.thinking));
  const int sources = !o.ids.empty() + !o.prompt_file.empty() + !o.prompt.empty();
  if (sources > 1) return Error{ErrorCode::kUsage, "give one of PROMPT, --prompt-file and --ids"};
  return {};
}

int run(const RunOptions& o) {
  if (const Status valid = check(o); !valid) return report(valid.error());
  auto loaded = LoadedModel::load(o.common, &o.speculation);
  if (!loaded) return report(loaded.error());
  LoadedModel& model = **loaded;
  auto prompt = prompt_ids(o, model);
  if (!prompt) return report(prompt.error());
  if (const int64_t most = model.config().max_positions; most > 0 && static_cast<int64_t>(prompt->size()) >= most)
    return report({ErrorCode::kUsage, fmt::format("the prompt has {} tokens and the model's context is {}; shorten it", prompt->size(), most)});
  const auto tokenizer = model.tokenizer();
  const Tokenizer* text = tokenizer ? *tokenizer : nullptr;

  watch_interrupts();
  const bool stream = !o.common.json;
  const bool dim = ::isatty(STDOUT_FILENO);
  AnswerPart last = AnswerPart::kText;
  const AnswerSink sink = [&](AnswerPart part, std::string_view piece, std::optional<Route> drafted) {
    if (dim && part != last) std::cout << (part == AnswerPart::kReasoning ? "\033[2m" : "\033[0m\n\n");
    else if (!dim && part != last && part == AnswerPart::kText) std::cout << "\n</think>\n\n";
    last = part;
    std::cout << (dim ? marked(piece, drafted, part == AnswerPart::kReasoning) : std::string(piece)) << std::flush;
  };
  auto lane = model.target().make_lane();
  const bool split = text && !o.raw && o.ids.empty() && opens_reasoning(*text, *prompt);
  Trace trace(SteadyClock().now());
  auto rules = answer_rules(model, *ThinkingChoice::parse(o.thinking), o.json_schema, split);
  if (!rules) return report(rules.error());
  const auto answer = generate_answer(model, *lane, text, {.prompt = *prompt, .sampling = o.sampling, .split_reasoning = split, .speculation = model.speculation(), .rules = rules->get(), .trace = o.trace.empty() ? nullptr : &trace},
                                      o.common, stream ? sink : AnswerSink());
  if (!answer) return report(answer.error());
  if (!o.trace.empty())
    if (const Status written = trace.write(o.trace); !written) return report(written.error());
  if (!stream) {
    std::cout << dump_json(answer_json(*answer, *prompt, o.speculation, model), 1) << "\n";
    return 0;
  }
  if (!text) {
    for (size_t i = 0; i < answer->ids.size(); ++i) std::cout << (i ? "," : "") << answer->ids[i];
  }
  if (dim && last == AnswerPart::kReasoning) std::cout << "\033[0m";
  std::cout << std::endl;
  const double rate = answer->timing.decode_s > 0 ? (static_cast<double>(answer->ids.size()) - 1) / answer->timing.decode_s : 0;
  if (::isatty(STDERR_FILENO))
    log_info(o.common, fmt::format("{} prompt tokens in {:.3f} s, {} tokens at {:.1f} tokens/s ({}); speculation {}: {:.2f} tokens per cycle",
                                   answer->prompt_tokens, answer->prefill_s, answer->ids.size(), rate, finish_reason_name(answer->reason),
                                   model.drafts()->resolution().resolved, answer->counters.tokens_per_cycle()));
  return 0;
}

}  // namespace

Command add_run(CLI::App& program) {
  auto o = std::make_shared<RunOptions>();
  CLI::App* app = program.add_subcommand("run", "Answer one prompt");
  add_common_options(*app, o->common);
  add_sampling_options(*app, o->sampling);
  app->add_option("prompt", o->prompt, "The prompt (standard input when absent)");
  app->add_option("--prompt-file", o->prompt_file, "Read the prompt from a file")->check(CLI::ExistingFile);
  app->add_option("--ids", o->ids, "Raw token ids, comma separated; no template");
  app->add_flag("--raw", o->raw, "No chat template; the text is printed unsplit");
  app->add_option("--system", o->system, "System message");
  app->add_option("--thinking", o->thinking, "on, off or a budget of tokens (default: the template's)");
  add_speculation_options(*app, o->speculation);
  app->add_option("--trace", o->trace, "Write the cycles and their phases to a file in Chrome's trace format")->check(check_output_file);
  app->add_option("--json-schema", o->json_schema, "Constrain the answer to a JSON Schema file")->check(CLI::ExistingFile);
  return {app, [o] { return run(*o); }};
}

}  // namespace foretoken::app
