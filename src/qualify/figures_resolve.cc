// Figures of `bench resolve`: what every bundle of a folder would use, and why. Nothing is timed.
#include <fmt/format.h>

#include "qualify/figures.h"

namespace foretoken {

Summary summarize_resolve(const Evidence& evidence) {
  Summary summary;
  Table table{.title = "What every bundle would use",
              .header = {"bundle", "architecture", "GiB", "runs", "MTP head", "drafter", "speculation", "why"}};
  size_t refused = 0;
  for (const Json* row : counted_rows(evidence, "bundle", summary)) {
    if (row->contains("refused")) {
      ++refused;
      table.rows.push_back(
          {text(*row, "name"), nullptr, nullptr, false, nullptr, nullptr, nullptr, text(*row, "refused")});
      continue;
    }
    table.rows.push_back({text(*row, "name"), text(*row, "architecture"), published(number(*row, "bytes") / (1 << 30)),
                          flag(*row, "runs"), text(*row, "mtp"), text(*row, "drafter"), text(*row, "resolved"),
                          text(*row, "why")});
  }
  if (refused > 0)
    summary.notes.push_back(
        fmt::format("{} of {} bundles are refused, each with its reason.", refused, table.rows.size()));
  summary.tables = {std::move(table)};
  return summary;
}

}  // namespace foretoken
