// Reads the golden set that `tools/make_bundle.py tiny` writes into the build folder (make golden, make test): bundles beside
// raw .f32 and .i32 arrays whose shapes golden.json lists. Its README says what each file holds.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "base/file.h"
#include "base/json.h"

namespace foretoken::test {

template <class T>
struct GoldenArray {
  std::vector<int64_t> shape;
  std::vector<T> values;

  int64_t rows() const { return shape.empty() ? 1 : shape[0]; }
  int64_t row_elements() const { return static_cast<int64_t>(values.size()) / rows(); }
  const T* row(int64_t index) const { return values.data() + index * row_elements(); }
};

// One folder of the set, for example "qwen35". Absent files end the test program with the command that writes them.
class Golden {
 public:
  static std::filesystem::path root() { return std::filesystem::path(FORETOKEN_BINARY_DIR) / "golden"; }

  explicit Golden(const std::string& name) : folder_(root() / name) {
    const auto text = read_file(folder_ / "golden.json");
    if (!text) ADD_FAILURE() << text.error().message << "; write the golden set with: make golden";
    CHECK(text.ok());
    shapes_ = *parse_json(*text, folder_.string());
  }

  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path path(const std::string& relative) const { return folder_ / relative; }
  bool has(const std::string& name) const { return shapes_.contains(name + ".f32") || shapes_.contains(name + ".i32"); }

  GoldenArray<float> f32(const std::string& name) const { return read<float>(name + ".f32"); }
  GoldenArray<int32_t> i32(const std::string& name) const { return read<int32_t>(name + ".i32"); }
  GoldenArray<uint8_t> u8(const std::string& name) const { return read<uint8_t>(name + ".u8"); }

 private:
  template <class T>
  GoldenArray<T> read(const std::string& file) const {
    CHECK(shapes_.contains(file));
    const auto raw = read_file(folder_ / file);
    CHECK(raw.ok());
    GoldenArray<T> array{shapes_[file].get<std::vector<int64_t>>(), std::vector<T>(raw->size() / sizeof(T))};
    int64_t elements = 1;
    for (const int64_t dim : array.shape) elements *= dim;
    CHECK(static_cast<size_t>(elements) * sizeof(T) == raw->size());
    std::memcpy(array.values.data(), raw->data(), raw->size());
    return array;
  }

  std::filesystem::path folder_;
  Json shapes_;
};

}  // namespace foretoken::test
