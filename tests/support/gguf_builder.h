// GGUF files for tests, byte by byte: nothing is checked, so that every field can be wrong.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace foretoken::testing {

class GgufBuilder {
 public:
  uint32_t version = 3;
  int64_t tensor_count = -1;  // -1: as many as were added
  int64_t value_count = -1;
  uint64_t alignment = 32;  // of the padding; the key is added by the test
  std::string magic = "GGUF";

  template <class T>
  static std::string raw(T value) {
    std::string bytes(sizeof value, '\0');
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes;
  }
  static std::string text(std::string_view value) { return raw(uint64_t{value.size()}) + std::string(value); }
  static std::string array(uint32_t element_type, uint64_t count, std::string_view elements) {
    return raw(element_type) + raw(count) + std::string(elements);
  }

  GgufBuilder& value(std::string_view key, uint32_t type, std::string_view bytes) {
    values_ += text(key) + raw(type) + std::string(bytes);
    ++values_added_;
    return *this;
  }
  GgufBuilder& u32(std::string_view key, uint32_t v) { return value(key, 4, raw(v)); }
  GgufBuilder& str(std::string_view key, std::string_view v) { return value(key, 8, text(v)); }

  // `ne` as in the file, the row length first.
  GgufBuilder& info(std::string_view name, const std::vector<uint64_t>& ne, uint32_t type, uint64_t offset) {
    infos_ += text(name) + raw(static_cast<uint32_t>(ne.size()));
    for (uint64_t n : ne) infos_ += raw(n);
    infos_ += raw(type) + raw(offset);
    ++infos_added_;
    return *this;
  }
  // An info and its data, at the next aligned place.
  GgufBuilder& tensor(std::string_view name, const std::vector<uint64_t>& ne, uint32_t type, std::string_view bytes) {
    data_.resize((data_.size() + alignment - 1) / alignment * alignment, '\0');
    info(name, ne, type, data_.size());
    data_ += bytes;
    return *this;
  }
  GgufBuilder& data(std::string_view bytes) {
    data_ += bytes;
    return *this;
  }

  std::string header() const {
    return magic + raw(version) + raw(static_cast<uint64_t>(tensor_count < 0 ? infos_added_ : tensor_count)) +
           raw(static_cast<uint64_t>(value_count < 0 ? values_added_ : value_count)) + values_ + infos_;
  }
  std::string build() const {
    std::string file = header();
    if (alignment) file.resize((file.size() + alignment - 1) / alignment * alignment, '\0');
    return file + data_;
  }

 private:
  std::string values_, infos_, data_;
  int64_t values_added_ = 0, infos_added_ = 0;
};

}  // namespace foretoken::testing
