// Evidence: what a measurement leaves behind, as a folder that anyone can check. The manifest says what ran, where and
// how; the rows are what was measured, one JSON object a line, compressed. Everything else in the folder follows from
// these two. No generated text, no host name and no absolute path is part of it.
//
//   manifest.json    command, environment, build, model, design; size and SHA-256 of the rows
//   rows.jsonl.zst   raw rows
//   summary.json     figures and verdicts        \.
//   table.md         the same for people          } written from the first two, and recomputed by `bench report`
//   report.html      the same with plots         /
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace foretoken {

struct Evidence {
  OrderedJson manifest = OrderedJson::object();
  std::vector<Json> rows;

  // "speed", "rows", ...; empty where the manifest does not say.
  std::string kind() const;
};

inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kRowsFile = "rows.jsonl.zst";
inline constexpr const char* kSummaryFile = "summary.json";
inline constexpr const char* kTableFile = "table.md";
inline constexpr const char* kPageFile = "report.html";

// Fills the manifest's "files". `folder` is made where it is missing.
Status write_evidence(const std::filesystem::path& folder, Evidence& evidence);

// `changed`: the rows are not the ones that the manifest was written for; evidence.rows is then what they are now, or
// empty where they cannot be read any more.
struct ReadEvidence {
  Evidence evidence;
  std::string manifest_text;
  bool changed = false;
};
// kInvalidFile, kNotFound: the folder holds no evidence, or what claims to be it is damaged.
Result<ReadEvidence> read_evidence(const std::filesystem::path& folder);

// The rows as they are stored, and back.
std::string pack_rows(const std::vector<Json>& rows);
Result<std::vector<Json>> unpack_rows(std::string_view packed, std::string_view what);

// A command line fit to be published: absolute paths become the names of what they name, and values of keys disappear.
std::vector<std::string> publishable(const std::vector<std::string>& words);
std::string publishable(const std::string& word);
// This process's command line, published.
std::vector<std::string> own_command();

}  // namespace foretoken
