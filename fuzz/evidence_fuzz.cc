// Published measurements are foreign files: any manifest and any rows are an error or a page, never a crash.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "qualify/report.h"

using namespace foretoken;

// The manifest up to the first line that holds "---", then rows as JSON lines.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t mark = input.find("\n---\n");
  auto manifest = parse_ordered_json(input.substr(0, mark), "manifest", {.depth = 32});
  if (!manifest || !manifest->is_object()) {
    (void)unpack_rows(input, "rows");
    return 0;
  }
  Evidence evidence{.manifest = *std::move(manifest)};
  for (size_t begin = mark == std::string_view::npos ? size : mark + 5; begin < size && evidence.rows.size() < 200;) {
    const size_t end = std::min(input.find('\n', begin), size);
    auto row = parse_json(input.substr(begin, end - begin), "row", {.depth = 16});
    if (row && row->is_object()) evidence.rows.push_back(*std::move(row));
    begin = end + 1;
  }
  const auto summary = summarize(evidence);
  if (!summary) return 0;
  (void)summary->markdown();
  (void)page(evidence, *summary);
  return 0;
}
