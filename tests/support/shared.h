// Where material beside the repository lies (trained bundles, reference values). Tests that need it run where it is present.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>

namespace foretoken::test {

inline std::filesystem::path shared_dir() { return std::filesystem::path(FORETOKEN_SOURCE_DIR).parent_path() / "shared"; }

}  // namespace foretoken::test

// Skips the running test, saying what is missing, when ../shared/`relative` is not there.
#define FORETOKEN_NEEDS_SHARED(relative)                                                                     \
  if (!std::filesystem::exists(::foretoken::test::shared_dir() / (relative)))                                \
  GTEST_SKIP() << "../shared/" << (relative) << " is not on this machine: trained bundles are not part of the repository"
