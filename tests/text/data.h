// The text tests' own files, under tests/data/text.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/file.h"
#include "base/json.h"

namespace foretoken {

inline std::string read_data(const std::string& name) {
  auto text = read_file(std::filesystem::path(FORETOKEN_SOURCE_DIR) / "tests/data/text" / name);
  EXPECT_TRUE(text.ok()) << (text.ok() ? "" : text.error().message);
  return text.ok() ? *std::move(text) : std::string();
}

inline OrderedJson parse_or_fail(const std::string& text, const std::string& what) {
  auto json = parse_ordered_json(text, what);
  EXPECT_TRUE(json.ok()) << (json.ok() ? "" : json.error().message);
  return json.ok() ? *std::move(json) : OrderedJson();
}

}  // namespace foretoken
