// foretoken bench conversation: turns whose prompts begin with what was said before, read anew, restored from memory
// and restored from disk.
#include <fmt/format.h>

#include <cmath>

#include "app/bench_options.h"
#include "app/dialogue.h"
#include "base/temporary.h"

namespace foretoken::app {
namespace {

struct BenchConversationOptions {
  CommonOptions common;
  BenchOutput output;
  SpeculationFlags speculation;
  int blocks = 4, warm_blocks = 1, filler = 400;
  int64_t tokens = 128;
};

struct Script {
  const char* name;
  bool thinking;
  std::vector<const char*> turns;
};
const Script kScripts[] = {
    {"essay",
     false,
     {"Write about the printing press and what it changed.",
      "And now about the steam engine, with what you said in mind.", "Which of the two mattered more?"}},
    {"code",
     false,
     {"Write a Python function that counts the words of a text.",
      "Rename the function to word_count and add a docstring.", "Now write a test for it."}},
    {"thinking",
     true,
     {"Tom has 24 marbles and gives a third of them to Eva. How many are left?",
      "He then wins 5. How many has he now?"}},
};

// A system message of about so many tokens: what agents send with every request.
std::string system_text(int tokens) {
  std::string text = "You are a helpful assistant. Keep to these rules.";
  for (int i = 1; static_cast<int>(text.size()) < 4 * tokens; ++i)
    text += fmt::format(" Rule {}: answer question {} in {} sentences, and mention source {}.", i, i * 7 % 31,
                        i % 4 + 1, i * 13 % 97);
  return text;
}

constexpr const char* kArms[] = {"cold", "memory", "disk"};

class Conversations {
 public:
  Conversations(const BenchConversationOptions& o, Dialogue& dialogue, Measurement& measurement)
      : o_(o), dialogue_(dialogue), measurement_(measurement) {}

  // Answers of a cold lane decide what is said, so that every arm reads the same prompts.
  Status prepare() {
    for (const Script& script : kScripts) {
      serve::Conversation c;
      c.thinking = script.thinking;
      const auto say = [&](const char* role, const std::string& text) {
        OrderedJson message = OrderedJson::object();
        message["role"] = role;
        message["content"] = text;
        c.messages.push_back(message);
      };
      if (o_.filler > 0) say("system", system_text(o_.filler));
      std::vector<DialogueTurn> turns;
      for (const char* words : script.turns) {
        say("user", words);
        ASSIGN_OR_RETURN(DialogueTurn turn, dialogue_.turn(c, o_.tokens));
        ASSIGN_OR_RETURN(const DialogueAnswer answer, dialogue_.alone(turn));
        say("assistant", dialogue_.said(answer.tokens));
        turns.push_back(std::move(turn));
      }
      turns_.push_back(std::move(turns));
    }
    return {};
  }

  // All turns of one conversation in one arm.
  Status run(size_t script, int arm, int block, int round, bool warm) {
    const TemporaryFolder folder("foretoken-bench");
    std::unique_ptr<DiskTier> disk;
    std::unique_ptr<Engine> engine;
    for (size_t t = 0; t < turns_[script].size(); ++t) {
      if (arm == 0 || arm == 2 ||
          !engine) {  // a cold engine every turn; or one that finds what the last one has left on disk
        engine.reset();
        disk.reset();
        if (arm == 2) disk = dialogue_.open_disk(folder.path());
        engine = dialogue_.make_engine(arm != 0, disk.get());
      }
      ASSIGN_OR_RETURN(const DialogueAnswer answer, dialogue_.ask(*engine, turns_[script][t]));
      if (disk) disk->flush();
      Json row = Json::object();
      row["row"] = "turn";
      row["block"] = block;
      row["round"] = round;
      if (warm) row["warm"] = true;
      row["arm"] = kArms[arm];
      row["conversation"] = kScripts[script].name;
      row["thinking"] = kScripts[script].thinking;
      row["turn"] = t + 1;
      row["prompt_tokens"] = answer.prompt_tokens;
      row["cached_tokens"] = answer.cached_tokens;
      row["first_token_us"] = std::round(1e7 * answer.first_token_s) / 10;
      row["decode_us"] = std::round(1e7 * answer.decode.decode_s) / 10;
      row["tokens"] = answer.tokens.size();
      row["cycles"] = answer.counters.cycles;
      row["accepted"] = answer.counters.accepted;
      row["drafted"] = answer.counters.drafted;
      row["ids"] = digest_of(answer.tokens);
      measurement_.add(std::move(row));
    }
    return {};
  }

  size_t scripts() const { return turns_.size(); }

 private:
  const BenchConversationOptions& o_;
  Dialogue& dialogue_;
  Measurement& measurement_;
  std::vector<std::vector<DialogueTurn>> turns_;
};

Result<int> bench_conversation(BenchConversationOptions o) {
  ASSIGN_OR_RETURN(auto model, LoadedModel::load(o.common, &o.speculation));
  EngineOptions engine{.lanes = 1, .max_context = 8192 + 4 * int64_t{o.filler} + 4 * o.tokens};
  engine.schedule.prefill_chunk = o.common.prefill_chunk;
  ASSIGN_OR_RETURN(const auto dialogue, Dialogue::open(*model, engine));
  Measurement measurement("conversation",
                          "Turns of conversations: read anew, restored from memory, restored from disk");
  measurement.describe_model(*model, o.common);
  OrderedJson& design = measurement.design();
  for (const char* arm : kArms) design["arms"].push_back(arm);
  design["order"] = "every conversation meets all arms in mirrored order, twice a block";
  design["blocks"] = o.blocks;
  design["warm_up_blocks"] = o.warm_blocks;
  design["system_message_tokens"] = o.filler;
  design["tokens"] = o.tokens;
  Conversations conversations(o, *dialogue, measurement);
  TRY(conversations.prepare());
  const auto progress = bench_progress(o.common);
  const int total = (o.blocks + o.warm_blocks) * static_cast<int>(conversations.scripts());
  int done = 0;
  for (int block = -o.warm_blocks; block < o.blocks; ++block)
    for (size_t script = 0; script < conversations.scripts(); ++script) {
      int seen[3] = {0, 0, 0};
      for (const int arm : block_order(3, block + o.warm_blocks + static_cast<int>(script)))
        TRY(conversations.run(script, arm, std::max(block, 0), seen[arm]++, block < 0));
      if (!progress(++done, total))
        return Error{ErrorCode::kCheckFailed, "the measurement was interrupted, and nothing was published"};
    }
  o.output.json = o.common.json;
  return measurement.finish(o.output);
}

}  // namespace

Command add_bench_conversation(CLI::App& bench) {
  auto o = std::make_shared<BenchConversationOptions>();
  CLI::App* app =
      bench.add_subcommand("conversation", "Follow-up turns read anew, restored from memory and restored from disk");
  add_common_options(*app, o->common);
  add_bench_output(*app, o->output, false);
  add_speculation_options(*app, o->speculation);
  add_trial_blocks(*app, o->blocks, o->warm_blocks);
  app->add_option("--filler", o->filler, "Tokens of the system message, about")
      ->check(CLI::Range(0, 1 << 18))
      ->capture_default_str();
  app->add_option("--tokens,-n", o->tokens, "Longest answer")->check(CLI::Range(2, 100000))->capture_default_str();
  return {app, [o] {
            const auto status = bench_conversation(*o);
            return status ? *status : report(status.error());
          }};
}

}  // namespace foretoken::app
