// The operators of block drafters on the CUDA backend, against their scalar definition: stored K and V, convolutions, candidates and
// edges bit for bit; attention within rounding of it.
#include "support/draft_contract.h"
#include "support/mirrored.h"

namespace foretoken::test {
namespace {

const std::vector<std::unique_ptr<Backend>>& backends() {
  static const std::vector<std::unique_ptr<Backend>> all = [] {
    std::vector<std::unique_ptr<Backend>> list;
    if (auto backend = make_cuda_backend()) list.push_back(std::make_unique<Mirrored>(*std::move(backend)));
    return list;
  }();
  return all;
}

class CudaDraft : public ::testing::Test {
 protected:
  void SetUp() override {
    if (backends().empty()) GTEST_SKIP() << "no device";
  }
};

TEST_F(CudaDraft, InputsAndAttention) { expect_block_attention(backends()); }
TEST_F(CudaDraft, Convolution) { expect_block_convolution(backends()); }
TEST_F(CudaDraft, TopK) { expect_top_k(backends()); }
TEST_F(CudaDraft, Choices) { expect_choices(backends()); }
TEST_F(CudaDraft, Edges) { expect_edges(backends()); }
TEST_F(CudaDraft, Lattice) { expect_lattice(backends()); }

}  // namespace
}  // namespace foretoken::test
