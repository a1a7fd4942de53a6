// The operators of block drafters on every instruction set of this machine, against their scalar definition: stored K and V,
// convolutions, candidates and edges bit for bit; attention within rounding of it and with the same bits on every instruction set.
#include "support/draft_contract.h"

namespace foretoken::test {
namespace {

std::vector<std::unique_ptr<Backend>> backends() {
  std::vector<std::unique_ptr<Backend>> all;
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512})
    for (int threads : {1, 3})
      if (auto backend = make_cpu_backend({isa, threads})) all.push_back(*std::move(backend));
  return all;
}

TEST(CpuDraft, InputsAndAttention) { expect_block_attention(backends()); }
TEST(CpuDraft, Convolution) { expect_block_convolution(backends()); }
TEST(CpuDraft, TopK) { expect_top_k(backends()); }
TEST(CpuDraft, Choices) { expect_choices(backends()); }
TEST(CpuDraft, Edges) { expect_edges(backends()); }
TEST(CpuDraft, Lattice) { expect_lattice(backends()); }

}  // namespace
}  // namespace foretoken::test
