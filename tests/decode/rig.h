// The embedded model with its head and its block drafter, loaded once per test program.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "decode/generation.h"
#include "model/dflash.h"
#include "model/mtp.h"
#include "support/shared.h"
#include "support/test_model.h"

namespace foretoken::test {

struct Rig {
  std::unique_ptr<TestModel> model;
  MtpWeights mtp_weights;
  std::unique_ptr<MtpHead> mtp;
  Bundle drafter_bundle;
  std::unique_ptr<DflashModel> block;
  SteadyClock clock;

  static std::unique_ptr<Rig> load(const std::string& name, KvFormat kv = KvFormat::kBF16) {
    auto r = std::make_unique<Rig>();
    r->model = load_model(demo_dir(name), {.kv_format = kv}, cpu_backend(Isa::kAuto, 1));
    auto& m = *r->model;
    r->mtp_weights = value_or_throw(load_mtp(m.bundle, m.config, *m.backend));
    r->mtp = std::make_unique<MtpHead>(m.config, m.weights, r->mtp_weights, *m.backend, MtpOptions{});
    r->drafter_bundle = value_or_throw(Bundle::open(demo_dir(name) / "dflash2"));
    r->block = value_or_throw(DflashModel::load(r->drafter_bundle, m.config, m.weights, *m.backend, {}));
    return r;
  }
  static Rig& dense() {
    static const std::unique_ptr<Rig> rig = load("demo-dense");
    return *rig;
  }

  std::vector<std::unique_ptr<Drafter>> drafters(std::span<const Route> routes) {
    std::vector<std::unique_ptr<Drafter>> d;
    for (const Route route : routes) {
      if (route == Route::kCopy) d.push_back(make_lookup_drafter());
      if (route == Route::kMtp) d.push_back(make_mtp_drafter(model->config, *mtp));
      if (route == Route::kBlock) d.push_back(make_block_drafter(*block));
      if (route == Route::kGrammar) d.push_back(make_grammar_drafter());
    }
    return d;
  }
};

}  // namespace foretoken::test
