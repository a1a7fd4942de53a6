// Backend::choose in scalar code: the definition.
#include <algorithm>

#include "base/threads.h"
#include "numerics/gumbel.h"
#include "ops/checks.h"
#include "ops/ops.h"

namespace foretoken {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

RowChoice choice_of(const float* logits, int64_t vocab, const ChoiceSpec& spec) {
  RowChoice row{.largest = -kInfinity};
  bool nan = false;
  for (int64_t i = 0; i < vocab; ++i) {
    const float l = logits[i] + 0.0f;
    nan |= l != l;
    if (l > row.largest) row.largest = l, row.best = static_cast<TokenId>(i);
  }
  row.finite = !nan && row.largest != kInfinity;
  if (!row.finite || row.best < 0 || (!spec.noisy && !spec.mass)) return row;
  float best = 0;
  for (int64_t i = 0; i < vocab; ++i) {
    const float z = (logits[i] - row.largest) / spec.temperature;
    if (!(z >= spec.least && z > -kInfinity)) continue;
    if (spec.mass) row.mass += nucleus_mass(z);
    if (!spec.noisy) continue;
    const float noisy = z + gumbel(spec.seed, spec.choice, spec.position, static_cast<TokenId>(i));
    if (row.noisy < 0 || noisy > best) best = noisy, row.noisy = static_cast<TokenId>(i);
  }
  return row;
}

}  // namespace

void Backend::choose(View logits, std::span<const ChoiceSpec> specs, Choices& out) {
  checks::choose(logits, specs);
  set_float_environment();
  out.rows.clear();
  for (int64_t r = 0; r < logits.rows; ++r) out.rows.push_back(choice_of(logits.f32(r), logits.cols, specs[static_cast<size_t>(r)]));
  const bool wanted = std::any_of(specs.begin(), specs.end(), [](const ChoiceSpec& s) { return s.leaders; });
  out.leader_count = wanted ? static_cast<int>(std::min<int64_t>(kLeaders, logits.cols)) : 0;
  const size_t count = static_cast<size_t>(logits.rows) * static_cast<size_t>(out.leader_count);
  out.leaders.resize(count);
  out.values.resize(count);
  if (count > 0) top_k(logits, out.leader_count, out.leaders, View::of(out.values.data(), logits.rows, out.leader_count));
}

}  // namespace foretoken
