// foretoken bench variate: one conversation through everything a user may change between turns, each turn against a
// cold run.
#include <fmt/format.h>

#include <cmath>

#include "app/bench_options.h"
#include "app/dialogue.h"

namespace foretoken::app {
namespace {

struct BenchVariateOptions {
  CommonOptions common;
  BenchOutput output;
  SpeculationFlags speculation;
  int64_t tokens = 96;
};

OrderedJson message(const char* role, const std::string& text) {
  OrderedJson m = OrderedJson::object();
  m["role"] = role;
  m["content"] = text;
  return m;
}

OrderedJson weather_tool() {
  return OrderedJson::parse(
      R"([{"type":"function","function":{"name":"get_weather","description":"The weather of a city",
    "parameters":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}}}])");
}

serve::GrammarSpec city_schema() {
  serve::GrammarSpec spec{.kind = serve::GrammarSpec::Kind::kJsonSchema};
  spec.schema = OrderedJson::parse(
      R"({"type":"object","properties":{"city":{"type":"string","maxLength":20},"hours":{"type":"integer"}},"required":["city","hours"]})");
  return spec;
}

class Variation {
 public:
  Variation(const BenchVariateOptions& o, Dialogue& dialogue, Measurement& measurement)
      : o_(o), dialogue_(dialogue), measurement_(measurement), engine_(dialogue.make_engine(true)) {
    chat_.messages.push_back(message("system",
                                     "You are a travel assistant. Answer briefly, name the source of every claim, and "
                                     "keep the units that the question uses."));
  }

  Status run() {
    TRY(say("thinking off", "Which rivers flow through Paris?", false));
    TRY(say("thinking on", "And through London?", true));
    TRY(say("thinking off again", "Which of these cities is larger?", false));
    chat_.tools = weather_tool();
    TRY(say("tools offered", "What is the weather in Oslo?", false));
    chat_.tools = nullptr;
    TRY(say("tools gone", "And how far is it from Bergen?", false));
    TRY(say("bound to a schema", "Name one city and the hours to see it.", false, city_schema()));
    TRY(say("grown by one turn", "Thank you. Now sum up what we have found.", false));
    return answer("replayed word for word", last_);
  }

 private:
  Status say(const char* name, const char* words, bool thinking,
             std::optional<serve::GrammarSpec> grammar = std::nullopt) {
    chat_.thinking = thinking;
    chat_.messages.push_back(message("user", words));
    ASSIGN_OR_RETURN(last_, dialogue_.turn(chat_, o_.tokens, std::move(grammar)));
    TRY(answer(name, last_));
    chat_.messages.push_back(message("assistant", said_));
    return {};
  }

  Status answer(const char* name, const DialogueTurn& turn) {
    ASSIGN_OR_RETURN(const DialogueAnswer cold, dialogue_.alone(turn));
    ASSIGN_OR_RETURN(const DialogueAnswer warm, dialogue_.ask(*engine_, turn));
    said_ = dialogue_.said(cold.tokens);
    Json row = Json::object();
    row["row"] = "turn";
    row["turn"] = ++turns_;
    row["name"] = name;
    row["prompt_tokens"] = warm.prompt_tokens;
    row["cached_tokens"] = warm.cached_tokens;
    row["tokens"] = warm.tokens.size();
    row["ids"] = digest_of(warm.tokens);
    row["cold_ids"] = digest_of(cold.tokens);
    row["drafted"] = warm.counters.drafted;
    row["accepted"] = warm.counters.accepted;
    row["cold_first_token_us"] = std::round(1e7 * cold.first_token_s) / 10;
    row["first_token_us"] = std::round(1e7 * warm.first_token_s) / 10;
    row["must_restore"] = turns_ > 1 && (std::string_view(name) == "grown by one turn" ||
                                         std::string_view(name) == "replayed word for word");
    measurement_.add(std::move(row));
    return {};
  }

  const BenchVariateOptions& o_;
  Dialogue& dialogue_;
  Measurement& measurement_;
  std::unique_ptr<Engine> engine_;
  serve::Conversation chat_;
  DialogueTurn last_;
  std::string said_;
  int turns_ = 0;
};

Result<int> bench_variate(BenchVariateOptions o) {
  ASSIGN_OR_RETURN(auto model, LoadedModel::load(o.common, &o.speculation));
  EngineOptions engine{.lanes = 1, .max_context = 8192 + 16 * o.tokens};
  engine.schedule.prefill_chunk = o.common.prefill_chunk;
  ASSIGN_OR_RETURN(const auto dialogue, Dialogue::open(*model, engine));
  Measurement measurement("variate",
                          "One conversation through everything a user may change, each turn against a cold run");
  measurement.describe_model(*model, o.common);
  measurement.design()["order"] = "each turn cold and alone, then on the engine that holds the turns before";
  measurement.design()["tokens"] = o.tokens;
  TRY(Variation(o, *dialogue, measurement).run());
  o.output.json = o.common.json;
  return measurement.finish(o.output);
}

}  // namespace

Command add_bench_variate(CLI::App& bench) {
  auto o = std::make_shared<BenchVariateOptions>();
  CLI::App* app = bench.add_subcommand(
      "variate", "One conversation with thinking, tools, a schema, growth and replay, each turn against a cold run");
  add_common_options(*app, o->common);
  add_bench_output(*app, o->output, false);
  add_speculation_options(*app, o->speculation);
  app->add_option("--tokens,-n", o->tokens, "Longest answer")->check(CLI::Range(2, 100000))->capture_default_str();
  return {app, [o] {
            const auto status = bench_variate(*o);
            return status ? *status : report(status.error());
          }};
}

}  // namespace foretoken::app
