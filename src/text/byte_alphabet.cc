// Bytes 33-126, 161-172 and 174-255 spell themselves; the other 68, ascending, are U+0100, U+0101, ...
#include "text/byte_alphabet.h"

#include <array>

#include "text/unicode.h"

namespace foretoken {
namespace {

bool spells_itself(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

struct Alphabet {
  std::array<char32_t, 256> character{};
  std::array<int16_t, 324> byte{};
  Alphabet() {
    byte.fill(-1);
    char32_t next = 256;
    for (int b = 0; b < 256; ++b) {
      character[static_cast<size_t>(b)] = spells_itself(b) ? static_cast<char32_t>(b) : next++;
      byte[character[static_cast<size_t>(b)]] = static_cast<int16_t>(b);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet made;
  return made;
}

}  // namespace

std::optional<std::string> bytes_of_spelling(std::string_view spelling) {
  const auto& byte = alphabet().byte;
  std::string bytes;
  bytes.reserve(spelling.size());
  for (size_t at = 0; at < spelling.size();) {
    const CodePoint c = decode_utf8(spelling, at);
    at += c.size;
    if (!c.valid || c.value >= byte.size() || byte[c.value] < 0) return std::nullopt;
    bytes += static_cast<char>(byte[c.value]);
  }
  return bytes;
}

std::string spelling_of_bytes(std::string_view bytes) {
  const auto& character = alphabet().character;
  std::string spelling;
  spelling.reserve(bytes.size() + bytes.size() / 2);
  for (const char b : bytes) append_utf8(character[static_cast<uint8_t>(b)], spelling);
  return spelling;
}

}  // namespace foretoken
