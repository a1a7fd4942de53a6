// Report: publishes a measurement's figures, and recomputes published ones.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "qualify/summary.h"

namespace foretoken {

// Writes the whole folder: manifest, rows, summary, table and page.
Result<Summary> publish(const std::filesystem::path& folder, Evidence& evidence);

struct ReportResult {
  Summary summary;                       // as recomputed
  std::vector<std::string> differences;  // one sentence each; empty: everything published follows from the raw rows
};
// Errors as read_evidence() and summarize(), and where a published file is missing or unreadable.
Result<ReportResult> recompute(const std::filesystem::path& folder);

// Writes summary, table and page again from manifest and rows as they are: after a change of how figures are computed
// or shown. Refuses rows that are not the manifest's.
Result<Summary> derive_anew(const std::filesystem::path& folder);

// The page: one file that needs nothing else.
std::string page(const Evidence& evidence, const Summary& summary);

}  // namespace foretoken
