// The GPT-2 byte alphabet: vocabulary files spell each byte as one printable character. Knows nothing of tokens.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace foretoken {

// Bytes that `spelling` stands for; nothing when a character is outside the alphabet.
std::optional<std::string> bytes_of_spelling(std::string_view spelling);
std::string spelling_of_bytes(std::string_view bytes);

}  // namespace foretoken
