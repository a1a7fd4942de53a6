// Products with packed matrices over a thread pool: quantises activations once per call and weight format, then splits the
// outputs of all parts over the threads. It knows no operator beyond the product and the gated feed-forward.
#pragma once

#include <span>
#include <vector>

#include "base/threads.h"
#include "cpu/kernels.h"
#include "cpu/packing.h"
#include "ops/ops.h"

namespace foretoken::cpu {

class Products {
 public:
  // Both are borrowed and must outlive this.
  Products(const KernelTable& kernels, ThreadPool& pool);

  // out[r, o] = sum_k W[o, k] x[r, k]: Backend::linear. `w` was packed by pack_matrix.
  void linear(View x, const Matrix& w, View out);
  // out = down(silu(gate x) * up x): Backend::gated_ffn.
  void gated_ffn(View x, const ExpertWeights& w, View out);

 private:
  // Activations of one call, for the formats that need the same integers.
  struct Prepared {
    Activations activations{};
    Buffer memory;
  };
  // Quantises x as `format` needs it, unless one of the first `used` slots holds that already; returns the slot.
  size_t prepare(View x, QuantFormat format, size_t& used);

  const KernelTable& kernels_;
  ThreadPool& pool_;
  std::vector<Prepared> prepared_;  // grows to the number of formats in one matrix
  Buffer scratch_;                  // kLinearScratchBytes per thread
  Buffer hidden_;                   // gate | up of the feed-forward
};

}  // namespace foretoken::cpu
