// The folder of material that lies beside some checkouts: bigger bundles and oracle outputs. Tests that need it skip
// elsewhere.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace foretoken::testing {

// ../shared/NAME as seen from the source folder, or nothing when it is not there. Use with
// GTEST_SKIP() << missing_shared(NAME).
inline std::optional<std::filesystem::path> shared_path(std::string_view name) {
  const std::filesystem::path path = std::filesystem::path(FORETOKEN_SOURCE_DIR) / ".." / "shared" / name;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::nullopt;
  return path;
}

inline std::string missing_shared(std::string_view name) {
  return "needs ../shared/" + std::string(name) + ", which is not beside this checkout";
}

}  // namespace foretoken::testing
