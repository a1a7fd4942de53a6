// The reference backend keeps the promise that the others are held to: a row's bits are a function of its own path.
#include "support/ops_rows.h"

namespace foretoken::test {
namespace {

// Rows of random trees, with and without settled rows, equal token-by-token decoding; commit leaves its state and tail.
TEST(ReferenceRows, DeltaTreesEqualDecoding) {
  const std::unique_ptr<Backend> backend = make_reference_backend();
  Random random(20);
  for (int kernel : {1, 2, 4}) {
    for (int settled : {0, 1, 3, 9}) {
      const DeltaShape shape{2, 4, 8, 6, kernel, settled == 1};
      const LanePlan plan = random_tree(random, 9, 3, settled);
      expect_delta_paths(*backend, shape, plan, random.bits());
      expect_delta_paths(*backend, shape, {9, 3, settled, {}}, random.bits());
    }
  }
}

// The same for attention: siblings, page boundaries and span boundaries inside the tree change nothing.
TEST(ReferenceRows, AttentionTreesEqualDecoding) {
  const std::unique_ptr<Backend> backend = make_reference_backend();
  Random random(21);
  const AttentionShape shape{4, 2, 16, 1e-6f};
  for (KvFormat format : {KvFormat::kF32, KvFormat::kBF16, KvFormat::kInt8}) {
    for (int64_t prefix : {0, 30, 507}) {
      expect_attention_paths(*backend, shape, format, random_tree(random, 9, prefix, 0), random.bits());
      expect_attention_paths(*backend, shape, format, random_tree(random, 9, prefix, 2), random.bits());
      expect_attention_paths(*backend, shape, format, {9, prefix, 0, {}}, random.bits());
    }
  }
}

// A prompt fed in chunks of any size leaves the state, the tail and the outputs of the whole.
TEST(ReferenceRows, PromptChunksLeaveTheSameState) {
  const std::unique_ptr<Backend> backend = make_reference_backend();
  const DeltaShape shape{2, 4, 8, 6, 4, false};
  const int rows = 23;
  const DeltaWorld world(shape, rows, 22);
  DeltaLane whole(shape, rows, 23);
  const Matrix2 expected = world.forward(*backend, {LaneRows{0, rows, 0, rows, {}}}, {whole.memory()});
  for (int chunk : {1, 2, 7, 22}) {
    DeltaLane lane(shape, rows, 23);
    for (int first = 0; first < rows; first += chunk) {
      const int n = std::min(chunk, rows - first);
      const Matrix2 out = world.forward(*backend, {LaneRows{0, n, first, n, {}}}, {lane.memory()}, first);
      expect_same_bits(out.view(), expected.view().row_range(first, first + n), "chunk of " + std::to_string(chunk));
    }
    expect_same_lane(lane, whole, "chunks of " + std::to_string(chunk));
  }
}

}  // namespace
}  // namespace foretoken::test
