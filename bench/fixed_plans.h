// Every plan that a user could pin, for comparing a controller with the best of them in hindsight.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

#include "decode/controller.h"

namespace foretoken::bench {

struct Plan {
  std::string name;
  std::optional<Route> route;
  SpeculationOptions options;
};

inline std::vector<Plan> fixed_plans() {
  std::vector<Plan> plans = {{"plain", {}, {}}};
  const auto add = [&](const char* name, Route route, VerifyMode mode, int width, float threshold = -1) {
    plans.push_back({fmt::format("{} {}", name, width), route, {.verify = mode, .width = width, .live_threshold = threshold}});
  };
  for (const int k : {1, 2, 3, 5, 7}) add("mtp chain", Route::kMtp, VerifyMode::kChain, k);
  for (const int n : {7, 11, 15}) add("mtp tree", Route::kMtp, VerifyMode::kTree, n);
  for (const int k : {2, 3, 5, 7}) add("dflash chain", Route::kBlock, VerifyMode::kChain, k);
  for (const float t : {0.05f, 0.2f, 0.5f}) {
    add("dflash live", Route::kBlock, VerifyMode::kLive, 7, t);
    plans.back().name = fmt::format("dflash live {:.2f}", t);
  }
  for (const int n : {7, 11, 15, 16, 31, 63}) add("dflash tree", Route::kBlock, VerifyMode::kTree, n);
  for (const int k : {3, 7, 15, 31, 63}) add("copy chain", Route::kCopy, VerifyMode::kChain, k);
  return plans;
}

}  // namespace foretoken::bench
