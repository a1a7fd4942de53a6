// Tests that need a device, and skip without one.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "ops/ops.h"

namespace foretoken::test {

inline std::unique_ptr<Backend> cuda_or_null() {
  auto made = make_cuda_backend();
  return made ? *std::move(made) : nullptr;
}

// One backend for all of them; null without a device.
inline Backend* cuda() {
  static const std::unique_ptr<Backend> backend = cuda_or_null();
  return backend.get();
}

class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda() == nullptr) GTEST_SKIP() << "no device";
  }
};

}  // namespace foretoken::test
