// A safetensors file of zeros from a list of tensors, so that what a parser looks for can be part of the input: one line for each, a name
// and its dimensions. Lines that say nothing sensible are left out, and the file stays small.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace foretoken {

inline void write_weight_file(const std::filesystem::path& path, std::string_view list) {
  constexpr uint64_t kMostBytes = 1 << 16;
  constexpr size_t kMostTensors = 256;
  std::string header;
  uint64_t offset = 0;
  std::set<std::string> names;
  std::istringstream lines{std::string(list)};
  for (std::string line; std::getline(lines, line) && names.size() < kMostTensors;) {
    std::istringstream words(line);
    std::string name, shape;
    words >> name;
    uint64_t bytes = 2;
    for (uint64_t dim = 0; words >> dim && dim > 0 && dim < 4096 && bytes < kMostBytes; bytes *= dim)
      shape += (shape.empty() ? "" : ",") + std::to_string(dim);
    const bool plain = name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.") == std::string::npos;
    if (name.empty() || !plain || bytes > kMostBytes || offset + bytes > kMostBytes || !names.insert(name).second) continue;
    header += (header.empty() ? "\"" : ",\"") + name + R"(":{"dtype":"BF16","shape":[)" + shape + "],\"data_offsets\":[" +
              std::to_string(offset) + "," + std::to_string(offset + bytes) + "]}";
    offset += bytes;
  }
  header = "{" + header + "}";
  const uint64_t size = header.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&size), 8);
  file << header << std::string(offset, '\0');
}

}  // namespace foretoken
