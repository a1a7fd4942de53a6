// foretoken chat: a conversation in the terminal. Ctrl-C stops the answer; an empty line at the prompt does nothing; /help lists the rest.
#include <editline/readline.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "app/answer.h"
#include "app/commands.h"

namespace foretoken::app {
namespace {

struct ChatOptions {
  CommonOptions common;
  SamplingOptions sampling;
  SpeculationFlags speculation;
  std::string system, thinking;
};

// One line from the terminal with editing and history, or from a pipe; false at the end of input.
bool read_line(const char* prompt, std::string& line) {
  if (::isatty(STDIN_FILENO)) {
    char* raw = ::readline(prompt);
    if (!raw) return false;
    line = raw;
    if (!line.empty()) ::add_history(raw);
    std::free(raw);
    return true;
  }
  return static_cast<bool>(std::getline(std::cin, line));
}

// A message: one line; a trailing backslash continues it; """ alone opens and closes a block of lines.
bool read_message(std::string& message) {
  message.clear();
  std::string line;
  if (!read_line("> ", line)) return false;
  if (line == "\"\"\"") {
    while (read_line(". ", line) && line != "\"\"\"") message += line + "\n";
    return true;
  }
  while (!line.empty() && line.back() == '\\') {
    message += line.substr(0, line.size() - 1) + "\n";
    if (!read_line(". ", line)) return true;
  }
  message += line;
  return true;
}

constexpr const char* kHelp =
    "/new starts over, /system TEXT sets the system message and starts over, /quit or Ctrl-D leaves. A line that ends with \\ goes on;\n"
    "\"\"\" on a line of its own opens and closes a message of several lines. Ctrl-C stops an answer.\n";

// Leading tokens of `prompt` that the lane can keep: all it holds when they are a proper prefix, else none.
int64_t reusable(const std::vector<TokenId>& held, const std::vector<TokenId>& prompt) {
  if (held.size() >= prompt.size() || !std::equal(held.begin(), held.end(), prompt.begin())) return 0;
  return static_cast<int64_t>(held.size());
}

Result<int> chat(const ChatOptions& o) {
  TRY(o.sampling.params.validate());
  ASSIGN_OR_RETURN(const ThinkingChoice thinking, ThinkingChoice::parse(o.thinking));
  ASSIGN_OR_RETURN(auto loaded, LoadedModel::load(o.common, &o.speculation));
  LoadedModel& model = *loaded;
  ASSIGN_OR_RETURN(const Tokenizer* tokenizer, model.tokenizer());
  ASSIGN_OR_RETURN(const ChatTemplate* chat_template, model.chat_template());
  const bool terminal = ::isatty(STDOUT_FILENO);
  if (terminal) fmt::print("{} · {} tokens of context · /help\n", model.config().architecture, model.config().max_positions);

  auto lane = model.target().make_lane();
  std::vector<TokenId> held;  // what the lane has committed
  std::string system = o.system;
  const auto opening = [&] {
    OrderedJson messages = OrderedJson::array();
    if (!system.empty()) messages.push_back({{"role", "system"}, {"content", system}});
    return messages;
  };
  OrderedJson messages = opening();
  std::string message;
  while (read_message(message)) {
    if (message.empty()) continue;
    if (message == "/quit" || message == "/exit") break;
    if (message == "/help") {
      std::cout << kHelp;
      continue;
    }
    if (message == "/new" || message.starts_with("/system ")) {
      if (message != "/new") system = message.substr(8);
      messages = opening();
      continue;
    }
    messages.push_back({{"role", "user"}, {"content", message}});
    ASSIGN_OR_RETURN(RenderedPrompt prompt, render_messages(*chat_template, *tokenizer, messages, nullptr, thinking));
    if (static_cast<int64_t>(prompt.ids.size()) + 1 > model.config().max_positions) {
      std::cout << "The conversation has filled the context; /new starts over.\n";
      messages.erase(messages.size() - 1);
      continue;
    }
    const int64_t cached = reusable(held, prompt.ids);
    if (cached == 0) lane->reset();
    AnswerPart last = AnswerPart::kText;
    const AnswerSink sink = [&](AnswerPart part, std::string_view piece, std::optional<Route>) {
      if (part != last && terminal) std::cout << (part == AnswerPart::kReasoning ? "\033[2m" : "\033[0m\n\n");
      last = part;
      std::cout << piece << std::flush;
    };
    watch_interrupts();
    const bool split = opens_reasoning(*tokenizer, prompt.ids);
    ASSIGN_OR_RETURN(const auto rules, answer_rules(model, thinking, {}, split));
    ASSIGN_OR_RETURN(const Answer answer, generate_answer(model, *lane, tokenizer,
                                                          {.prompt = prompt.ids, .cached = cached, .sampling = o.sampling, .split_reasoning = split, .speculation = model.speculation(), .rules = rules.get()},
                                                          o.common, sink));
    clear_interrupt();
    if (terminal && last == AnswerPart::kReasoning) std::cout << "\033[0m";
    std::cout << (answer.reason == FinishReason::kCancelled ? " [stopped]\n" : "\n") << std::flush;
    held = prompt.ids;
    held.insert(held.end(), answer.ids.begin(), answer.ids.end());
    held.resize(static_cast<size_t>(lane->length()));  // the last token of an answer is not committed
    OrderedJson reply = {{"role", "assistant"}, {"content", answer.text}};
    if (!answer.reasoning.empty()) reply["reasoning_content"] = answer.reasoning;
    messages.push_back(std::move(reply));
  }
  clear_interrupt();  // an answer was cut, not the program
  return 0;
}

}  // namespace

Command add_chat(CLI::App& program) {
  auto o = std::make_shared<ChatOptions>();
  CLI::App* app = program.add_subcommand("chat", "Interactive conversation in the terminal");
  o->sampling.max_tokens = 2048;
  add_common_options(*app, o->common);
  add_sampling_options(*app, o->sampling);
  add_speculation_options(*app, o->speculation);
  app->add_option("--system", o->system, "System message");
  app->add_option("--thinking", o->thinking, "on, off or a budget of tokens (default: the template's)");
  return {app, [o] {
            const auto status = chat(*o);
            return status ? *status : report(status.error());
          }};
}

}  // namespace foretoken::app
