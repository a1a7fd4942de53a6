// Foreign names in error messages: one line, printable, of bounded length.
#include <fmt/format.h>

#include "bundle/formats.h"

namespace foretoken {
namespace {

constexpr size_t kShownBytes = 96;  // as written: an escaped byte counts 4

// Length of the well-formed UTF-8 sequence at the front of `text`, or 0.
size_t sequence_length(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto tail = [&](size_t i) { return (byte(i) & 0xC0u) == 0x80u; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead < 0xE0) return tail(1) ? 2 : 0;
  if (lead >= 0xE0 && lead < 0xF0) {
    const bool overlong = lead == 0xE0 && byte(1) < 0xA0, surrogate = lead == 0xED && byte(1) >= 0xA0;
    return tail(1) && tail(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (lead >= 0xF0 && lead < 0xF5) {
    const bool overlong = lead == 0xF0 && byte(1) < 0x90, beyond = lead == 0xF4 && byte(1) >= 0x90;
    return tail(1) && tail(2) && tail(3) && !overlong && !beyond ? 4 : 0;
  }
  return 0;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out = "'";
  size_t at = 0;
  while (at < text.size() && out.size() <= kShownBytes) {
    const unsigned char first = static_cast<unsigned char>(text[at]);
    const size_t length = sequence_length(text.substr(at));
    const bool control = first < 0x20 || first == 0x7F ||
                         (length == 2 && first == 0xC2 && static_cast<unsigned char>(text[at + 1]) < 0xA0);
    if (length == 0 || control) {
      out += fmt::format("\\x{:02X}", first);
      at += 1;
      if (length == 2) out += fmt::format("\\x{:02X}", static_cast<unsigned char>(text[at++]));
    } else {
      out += text.substr(at, length);
      at += length;
    }
  }
  if (at < text.size()) out += "...";
  out += '\'';
  return out;
}

}  // namespace foretoken
