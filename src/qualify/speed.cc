// The alternation itself.
#include "qualify/speed.h"

#include <fmt/format.h>

#include <cstdio>

#include "qualify/trial.h"

namespace foretoken {

Result<SpeedArm> parse_speed_arm(const std::string& text) {
  SpeedArm arm{.name = text};
  if (text == "plain" || text == "auto") {
    arm.plain = text == "plain";
    return arm;
  }
  char route[16], mode[16];
  if (std::sscanf(text.c_str(), "%15s %15s %d", route, mode, &arm.options.width) != 3 || arm.options.width < 1 ||
      arm.options.width > kMaxNodes)
    return Error{
        ErrorCode::kUsage,
        fmt::format("an arm is plain, auto or \"ROUTE MODE WIDTH\" such as \"mtp chain 3\", not \"{}\"", text)};
  ASSIGN_OR_RETURN(arm.options.verify, parse_verify_mode(mode));
  for (const Route known : {Route::kCopy, Route::kMtp, Route::kBlock})
    if (route_name(known) == route) arm.routes = {known};
  if (arm.routes.empty())
    return Error{ErrorCode::kUsage, fmt::format("\"{}\" is no route; there are copy, mtp and dflash", route)};
  return arm;
}

std::string missing_for(const SpeedArm& arm, const DraftModels& drafts) {
  for (const Route route : arm.routes)
    if (!drafts.has(route)) return fmt::format("{}: this model has no {} drafter", arm.name, route_name(route));
  return {};
}

namespace {

Result<Json> measured_row(TargetModel& target, DraftModels& drafts, const Clock& clock, const SpeedOptions& o,
                          size_t prompt, const SpeedArm& arm) {
  auto lane = target.make_lane();
  Speculation speculation;
  if (!arm.plain)
    speculation = {.drafters = drafts.make(arm.routes), .options = arm.options, .memory = &drafts.memory()};
  const GenerationOptions how{.sampling = o.sampling,
                              .max_tokens = o.prompts[prompt].tokens,
                              .stop_tokens = o.stop_tokens,
                              .prefill_chunk = o.prefill_chunk};
  ASSIGN_OR_RETURN(const MeasuredAnswer answer,
                   measure_answer(target, *lane, o.prompts[prompt].ids, {}, how, std::move(speculation), clock));
  if (o.trace) o.trace->cycles(arm.name, answer.cycles, answer.plans);
  Json row = Json::object();
  row["row"] = "answer";
  row["set"] = o.sampling.temperature > 0 ? "sampled" : "greedy";
  row["arm"] = arm.name;
  row["prompt"] = prompt;
  row["class"] = o.prompts[prompt].kind;
  answer.fill(row);
  return row;
}

}  // namespace

Status measure_speed(TargetModel& target, DraftModels& drafts, const Clock& clock, const SpeedOptions& o,
                     const RowSink& rows, const std::function<bool(int, int)>& progress) {
  const int total = (o.blocks + o.warm_blocks) * static_cast<int>(o.prompts.size());
  int done = 0;
  for (int block = -o.warm_blocks; block < o.blocks; ++block)
    for (size_t prompt = 0; prompt < o.prompts.size(); ++prompt) {
      std::vector<int> seen(o.arms.size());
      const int turn = block + o.warm_blocks + static_cast<int>(prompt);
      for (const int arm : block_order(static_cast<int>(o.arms.size()), turn)) {
        ASSIGN_OR_RETURN(Json row, measured_row(target, drafts, clock, o, prompt, o.arms[static_cast<size_t>(arm)]));
        row["block"] = block < 0 ? block + o.warm_blocks : block;
        row["round"] = seen[static_cast<size_t>(arm)]++;
        if (block < 0) row["warm"] = true;
        rows(std::move(row));
      }
      if (progress && !progress(++done, total))
        return Error{ErrorCode::kCheckFailed, "the measurement was interrupted, and nothing was published"};
    }
  return {};
}

}  // namespace foretoken
