// One reader for all versions: they differ in which keys are choices.
#include "decode/stored_settings.h"

#include <algorithm>

#include "base/json.h"
#include "decode/draft_models.h"

namespace foretoken {
namespace {

constexpr int kOldest = 1;

// Whether `key` was chosen by the user in a file of `version`.
bool chosen(const Json& json, int version, const char* key) {
  if (!json.contains(key)) return false;
  if (version >= 2) return true;
  const auto list = json.find("chosen");
  return list != json.end() && list->is_array() && std::any_of(list->begin(), list->end(), [key](const Json& k) { return k == key; });
}

}  // namespace

Result<ReadSettings> read_settings(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, parse_json(text, "stored settings"));
  if (!json.is_object()) return Error{ErrorCode::kInvalidFile, "the stored settings are not a JSON object"};
  int version = kOldest;
  if (const auto v = json.find("version"); v != json.end()) {
    if (!v->is_number_integer() || v->get<int64_t>() < kOldest) return Error{ErrorCode::kInvalidFile, "the stored settings' version is not a positive whole number"};
    if (v->get<int64_t>() > kSettingsVersion)
      return Error{ErrorCode::kUnsupported, "the stored settings were written by a newer program (version " + std::to_string(v->get<int64_t>()) + "); they are left alone"};
    version = v->get<int>();
  }
  ReadSettings read;
  read.migrated = version < kSettingsVersion;
  const auto take = [&](const char* key, std::optional<std::string>& to, const auto& valid) {
    if (!chosen(json, version, key)) return;
    const Json& value = json[key];
    if (value.is_string() && valid(value.get<std::string>())) to = value.get<std::string>();
    else read.notes.push_back("the stored value of " + std::string(key) + " is not valid and is dropped");
  };
  StoredSettings& s = read.settings;
  take("speculate", s.speculate, [](const std::string& v) { return static_cast<bool>(DraftSettings::parse(v, "")); });
  take("verify", s.verify, [](const std::string& v) { return static_cast<bool>(parse_verify_mode(v)); });
  take("draft_weights", s.draft_weights, [](const std::string& v) { return static_cast<bool>(DraftSettings::parse("auto", "", v)); });
  if (chosen(json, version, "width")) {
    const Json& value = json["width"];
    if (value.is_number_integer() && value.get<int64_t>() >= 0 && value.get<int64_t>() <= kMaxNodes) s.width = value.get<int>();
    else read.notes.push_back("the stored value of width is not valid and is dropped");
  }
  return read;
}

std::string write_settings(const StoredSettings& s) {
  OrderedJson json = {{"version", kSettingsVersion}};
  if (s.speculate) json["speculate"] = *s.speculate;
  if (s.verify) json["verify"] = *s.verify;
  if (s.draft_weights) json["draft_weights"] = *s.draft_weights;
  if (s.width) json["width"] = *s.width;
  return dump_json(json, 1) + "\n";
}

}  // namespace foretoken
