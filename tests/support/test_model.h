// A bundle loaded far enough to run, for tests: failures to load throw with the error's sentence.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>

#include "model/target.h"
#include "support/test_backend.h"

namespace foretoken::test {

struct TestModel {
  Bundle bundle;
  ModelConfig config;
  std::unique_ptr<Backend> backend;
  Weights weights;
  std::unique_ptr<TargetModel> target;
};

template <class T>
T value_or_throw(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return *std::move(result);
}

inline std::unique_ptr<TestModel> load_model(const std::filesystem::path& path, TargetOptions options = {.kv_format = KvFormat::kF32},
                                             std::unique_ptr<Backend> backend = fast_backend()) {
  auto m = std::make_unique<TestModel>();
  m->bundle = value_or_throw(Bundle::open(path));
  m->config = value_or_throw(ModelConfig::from_bundle(m->bundle));
  m->backend = std::move(backend);
  m->weights = value_or_throw(Weights::load(m->bundle, m->config, *m->backend));
  m->target = std::make_unique<TargetModel>(m->config, m->weights, *m->backend, options);
  return m;
}

}  // namespace foretoken::test
