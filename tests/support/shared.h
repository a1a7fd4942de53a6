// Where trained bundles and reference values lie: beside the repository, and not part of it. A test that needs them names them first and is
// skipped, with the reason, on machines that lack them.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/file.h"

namespace foretoken::test {

// The folder `shared` beside the checkout, or beside the folder of checkouts.
inline const std::filesystem::path& shared_dir() {
  static const std::filesystem::path path = [] {
    const std::filesystem::path beside = std::filesystem::path(FORETOKEN_SOURCE_DIR).parent_path();
    const bool here = std::filesystem::exists(beside / "shared");
    return (here ? beside : beside.parent_path()) / "shared";
  }();
  return path;
}

// The text of a file there; call after FORETOKEN_NEEDS_SHARED.
inline std::string read_shared(const std::string& name) { return *read_file(shared_dir() / name); }

// demo-dense or demo-moe: in the source tree where its weights are there, else in the shared folder.
inline std::filesystem::path demo_dir(const std::string& name) {
  const auto embedded = std::filesystem::path(FORETOKEN_SOURCE_DIR) / "models" / name;
  return std::filesystem::exists(embedded / "config.json") ? embedded : shared_dir() / "models" / name;
}

}  // namespace foretoken::test

// Skips the running test, saying what is missing, when `path` is not there.
#define FORETOKEN_NEEDS(path, name)  \
  if (!std::filesystem::exists(path)) \
  GTEST_SKIP() << (name) << " is not on this machine: trained bundles and their references are not part of the repository"
#define FORETOKEN_NEEDS_SHARED(name) FORETOKEN_NEEDS(::foretoken::test::shared_dir() / (name), std::string("../shared/") + (name))
#define FORETOKEN_NEEDS_DEMO(name) FORETOKEN_NEEDS(::foretoken::test::demo_dir(name) / "config.json", name)
