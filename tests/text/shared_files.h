// Files the text tests read: our own under tests/data/text, and the shared material beside the source tree, which a
// fresh clone does not have.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <string>

#include "base/file.h"
#include "base/json.h"

namespace foretoken {

inline std::optional<std::string> read_shared(const std::string& name) {
  const std::filesystem::path root = FORETOKEN_SOURCE_DIR;
  for (const auto& folder : {root.parent_path(), root.parent_path().parent_path()}) {
    const auto path = folder / "shared" / name;
    if (std::filesystem::exists(path)) {
      auto text = read_file(path);
      if (text) return *std::move(text);
    }
  }
  return std::nullopt;
}

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

#define SHARED_FILE_OR_SKIP(variable, name)                                                                      \
  const auto variable##_found = foretoken::read_shared(name);                                                    \
  if (!variable##_found) GTEST_SKIP() << "../shared/" << (name) << " is not on this machine; the test needs it"; \
  const std::string& variable = *variable##_found
