// Reference values written by other programs: a JSON file and a safetensors file of fp32 or int32 tensors beside it.
#pragma once

#include <cstring>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"

namespace foretoken::test {

inline Json read_json(const std::filesystem::path& path) {
  const auto text = read_file(path);
  if (!text) throw std::runtime_error(text.error().message);
  auto json = parse_json(*text, path.string());
  if (!json) throw std::runtime_error(json.error().message);
  return *std::move(json);
}

struct ReferenceTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;  // int32 tensors converted
};

// Reads every F32, I32 and I64 tensor of one safetensors file. Test-only: the file is trusted.
inline std::map<std::string, ReferenceTensor> read_tensors(const std::filesystem::path& path) {
  const auto content = read_file(path, size_t{1} << 30);
  if (!content) throw std::runtime_error(content.error().message);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, content->data(), 8);
  const auto header = parse_json(content->substr(8, header_bytes), path.string());
  if (!header) throw std::runtime_error(header.error().message);
  const char* data = content->data() + 8 + header_bytes;
  std::map<std::string, ReferenceTensor> tensors;
  for (const auto& [name, info] : header->items()) {
    if (name == "__metadata__") continue;
    ReferenceTensor t;
    t.shape = info["shape"].get<std::vector<int64_t>>();
    const size_t begin = info["data_offsets"][0], end = info["data_offsets"][1];
    const std::string type = info["dtype"];
    if (type == "F32") {
      t.values.resize((end - begin) / 4);
      std::memcpy(t.values.data(), data + begin, end - begin);
    } else if (type == "I32") {
      std::vector<int32_t> raw((end - begin) / 4);
      std::memcpy(raw.data(), data + begin, end - begin);
      t.values.assign(raw.begin(), raw.end());
    } else if (type == "I64") {
      std::vector<int64_t> raw((end - begin) / 8);
      std::memcpy(raw.data(), data + begin, end - begin);
      t.values.assign(raw.begin(), raw.end());
    } else {
      throw std::runtime_error(name + " has type " + type);
    }
    tensors.emplace(name, std::move(t));
  }
  return tensors;
}

}  // namespace foretoken::test
