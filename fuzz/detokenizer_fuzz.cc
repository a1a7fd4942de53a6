// Bytes through the detokenizer's stream and stop matcher at arbitrary cuts: always valid UTF-8, always what the whole
// input gives in one piece. The first line holds up to three stop strings separated by tabs, the next bytes steer the
// cuts.
// Covers: src/text/detokenizer.cc
#include <cstdlib>
#include <string>
#include <string_view>

#include "text/detokenizer.h"
#include "text/unicode.h"

using namespace foretoken;

namespace {

// The definition: before the stop string that ends first, the longest of those.
std::string cut_by_definition(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops)
      if (end >= stop.size() && stop.size() > longest && text.compare(end - stop.size(), stop.size(), stop) == 0)
        longest = stop.size();
    if (longest > 0) return text.substr(0, end - longest);
  }
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t line = input.find('\n');
  if (line == std::string_view::npos) return 0;
  std::vector<std::string> stops;
  for (size_t begin = 0; begin <= line && stops.size() < 3;) {
    const size_t end = std::min(input.find('\t', begin), line);
    stops.emplace_back(input.substr(begin, end - begin));
    begin = end + 1;
  }
  const std::string_view bytes = input.substr(line + 1);

  Utf8Stream stream;
  StopMatcher matcher(stops);
  std::string text, kept;
  const auto take = [&](const std::string& piece) {
    if (!is_valid_utf8(piece)) std::abort();
    text += piece;
    kept += matcher.add(piece);
  };
  for (size_t at = 0; at < bytes.size();) {
    const size_t step = 1 + static_cast<unsigned char>(bytes[at]) % 5;
    take(stream.add(bytes.substr(at, step)));
    at += step;
  }
  take(stream.flush());
  if (!matcher.stopped()) kept += matcher.flush();
  if (text != repair_utf8(bytes)) std::abort();
  if (kept != cut_by_definition(text, stops)) std::abort();

  // The same text normalised in one go and in the pieces that are marked unchanged agree; NFC is idempotent.
  const Rewritten normal = rewrite_nfc(text);
  if (!rewrite_nfc(normal.text).changed.empty()) std::abort();
  size_t source = 0, result = 0;
  for (const auto& change : normal.changed) {
    if (change.source.begin - source != change.result.begin - result) std::abort();
    if (text.compare(source, change.source.begin - source, normal.text, result, change.result.begin - result) != 0)
      std::abort();
    source = change.source.end;
    result = change.result.end;
  }
  if (text.substr(source) != normal.text.substr(result)) std::abort();
  return 0;
}
