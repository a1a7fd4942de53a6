// Safetensors files for tests, whole and broken: entries are laid one after the other, or a header is given as raw
// text.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace foretoken::testing {

// u64 length, header, data.
inline std::string safetensors_file(std::string_view header, std::string_view data) {
  const uint64_t size = header.size();
  std::string file(sizeof size, '\0');
  std::memcpy(file.data(), &size, sizeof size);
  file += header;
  file += data;
  return file;
}

class SafetensorsBuilder {
 public:
  SafetensorsBuilder& add(std::string_view name, std::string_view dtype, const std::vector<int64_t>& shape,
                          std::string_view data) {
    std::string sizes;
    for (int64_t size : shape) sizes += (sizes.empty() ? "" : ",") + std::to_string(size);
    entries_ += (entries_.empty() ? "\"" : ",\"") + std::string(name) + "\":{\"dtype\":\"" + std::string(dtype) +
                "\",\"shape\":[" + sizes + "],\"data_offsets\":[" + std::to_string(data_.size()) + "," +
                std::to_string(data_.size() + data.size()) + "]}";
    data_ += data;
    return *this;
  }
  std::string build() const { return safetensors_file("{" + entries_ + "}", data_); }

 private:
  std::string entries_, data_;
};

}  // namespace foretoken::testing
