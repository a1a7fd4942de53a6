// Cohorts are files that people write: every field is checked.
#include "app/cohort.h"

#include <fmt/format.h>

#include <algorithm>

#include "app/prompt.h"
#include "base/file.h"

namespace foretoken::app {
namespace {

namespace fs = std::filesystem;

constexpr int kMostRandom = 1 << 20;

std::vector<TokenId> random_ids(const Json& entry, int vocab) {
  std::vector<TokenId> ids;
  uint64_t state = entry["random"].get<uint64_t>();
  for (int i = 0; i < std::clamp(entry.value("count", 64), 1, kMostRandom); ++i) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    ids.push_back(static_cast<TokenId>((state >> 33) % static_cast<uint64_t>(vocab)));
  }
  return ids;
}

Result<std::vector<TokenId>> prompt_of(LoadedModel& model, const Json& entry, const fs::path& folder) {
  if (entry.contains("random")) return random_ids(entry, model.config().vocab);
  ASSIGN_OR_RETURN(const Tokenizer* tokenizer, model.tokenizer());
  std::string words = entry.at("text").get<std::string>();
  if (entry.contains("file")) {
    ASSIGN_OR_RETURN(const std::string content, read_file(folder / entry["file"].get<std::string>()));
    words += content;
  }
  if (entry.value("raw", false)) return tokenizer->encode(words);
  ASSIGN_OR_RETURN(const ChatTemplate* chat_template, model.chat_template());
  OrderedJson message = OrderedJson::object();
  message["role"] = "user";
  message["content"] = words;
  ASSIGN_OR_RETURN(RenderedPrompt rendered, render_messages(*chat_template, *tokenizer, OrderedJson::array({message}),
                                                            nullptr, {.enabled = entry.value("thinking", false)}));
  return std::move(rendered.ids);
}

}  // namespace

Result<Cohort> load_cohort(LoadedModel& model, const std::string& which, const std::vector<std::string>& classes) {
  Cohort cohort{.name = which};
  std::string text;
  if (which == "standard") {
    text = kStandardCohort;
  } else if (which == "holdout") {
    text = kHoldoutCohort;
  } else {
    ASSIGN_OR_RETURN(text, read_file(which, size_t{64} << 20));
    cohort.name = fs::path(which).filename().string();
  }
  cohort.sha256 = sha256_hex(text);
  ASSIGN_OR_RETURN(const Json list, parse_json(text, which));
  const auto bad = [&](const std::string& why) {
    return Error{ErrorCode::kInvalidFile, fmt::format("{} is no cohort: {}", which, why)};
  };
  if (!list.is_array()) return bad("it is no list of prompts");
  try {
    for (const Json& entry : list) {
      BenchPrompt prompt{
          .kind = entry.at("class").get<std::string>(), .ids = {}, .tokens = entry.value("tokens", int64_t{0})};
      if (!classes.empty() && std::find(classes.begin(), classes.end(), prompt.kind) == classes.end()) continue;
      ASSIGN_OR_RETURN(prompt.ids, prompt_of(model, entry, fs::path(which).parent_path()));
      cohort.prompts.push_back(std::move(prompt));
    }
  } catch (const Json::exception& e) {
    return bad(e.what());
  }
  if (cohort.prompts.empty()) return bad(classes.empty() ? "it has no prompts" : "it has no prompts of these classes");
  return cohort;
}

}  // namespace foretoken::app
