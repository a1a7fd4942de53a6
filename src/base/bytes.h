// A bounds-checked little-endian cursor over borrowed bytes. Every parser of foreign binary data reads through it;
// it knows nothing about formats.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

namespace foretoken {

static_assert(std::endian::native == std::endian::little, "file formats are read in place");

// Reads fail softly: after the first read past the end, `ok()` is false and every later read yields zero.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  bool ok() const { return ok_; }
  size_t offset() const { return offset_; }
  size_t remaining() const { return bytes_.size() - offset_; }

  template <class T>
  T read() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    if (const auto raw = take(sizeof(T)); raw.size() == sizeof(T)) std::memcpy(&value, raw.data(), sizeof(T));
    return value;
  }

  // The next `size` bytes, borrowed; empty and !ok() when fewer remain.
  std::span<const std::byte> take(uint64_t size) {
    if (!ok_ || size > remaining()) {
      ok_ = false;
      return {};
    }
    const auto part = bytes_.subspan(offset_, static_cast<size_t>(size));
    offset_ += static_cast<size_t>(size);
    return part;
  }

  std::string_view take_text(uint64_t size) {
    const auto raw = take(size);
    return {reinterpret_cast<const char*>(raw.data()), raw.size()};
  }

 private:
  std::span<const std::byte> bytes_;
  size_t offset_ = 0;
  bool ok_ = true;
};

}  // namespace foretoken
