// Results beside the tiny golden bundles (tools/make_bundle.py tiny), raw little-endian fp32 and int32.
#pragma once

#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <vector>

#include "base/file.h"

namespace foretoken::test {

inline std::filesystem::path golden_dir() { return std::filesystem::path(FORETOKEN_BINARY_DIR) / "golden"; }

template <class T>
std::vector<T> read_raw(const std::filesystem::path& path) {
  const auto content = read_file(path);
  if (!content) throw std::runtime_error(content.error().message + "; run make test, which writes the golden bundles");
  std::vector<T> values(content->size() / sizeof(T));
  std::memcpy(values.data(), content->data(), values.size() * sizeof(T));
  return values;
}

}  // namespace foretoken::test
