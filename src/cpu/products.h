// Products with packed matrices over a thread pool: quantises activations once per call and weight format, then splits the
// outputs of all parts over the threads. Rows may belong to different matrices (the experts of a mixture): all of them are one
// job. It knows no operator beyond the product and the gated feed-forward.
#pragma once

#include <span>
#include <vector>

#include "base/threads.h"
#include "cpu/kernels.h"
#include "cpu/packing.h"
#include "ops/ops.h"

namespace foretoken::cpu {

// Rows [first, first + count) of x and out, and what they are multiplied with.
struct MatrixRows {
  int64_t first, count;
  const Matrix* matrix;
};
struct ExpertRows {
  int64_t first, count;
  const ExpertWeights* expert;
};

class Products {
 public:
  // Both are borrowed and must outlive this.
  Products(const KernelTable& kernels, ThreadPool& pool);

  // out[r, o] = sum_k W[o, k] x[r, k]: Backend::linear. `w` was packed by pack_matrix.
  void linear(View x, const Matrix& w, View out);
  // out = down(silu(gate x) * up x): Backend::gated_ffn.
  void gated_ffn(View x, const ExpertWeights& w, View out);
  // The same for rows of several matrices or experts of one shape; every row of x belongs to exactly one. Equal bits.
  void linear(View x, std::span<const MatrixRows> groups, View out);
  void gated_ffn(View x, std::span<const ExpertRows> groups, View out);

 private:
  // Activations of one call, for the formats that need the same integers.
  struct Prepared {
    Activations activations{};
    Buffer memory;
  };
  // Quantises x as `format` needs it, unless one of the first `used` slots holds that already; returns the slot.
  size_t prepare(View x, QuantFormat format, size_t& used);
  // kNone for float formats, which take x as it is.
  size_t slot_of(View x, const PackedPart& part, size_t& used);
  // out = silu(gate x) * up x in one job. False, with nothing done, where gate and up cannot be told apart by groups of outputs.
  bool gated_products(View x, std::span<const ExpertRows> groups, View out);
  void run();

  const KernelTable& kernels_;
  ThreadPool& pool_;
  std::vector<Prepared> prepared_;  // grows to the number of formats in one call
  std::vector<LinearTask> tasks_;
  static constexpr size_t kNone = SIZE_MAX;
  struct Slots { size_t own, up; };
  std::vector<Slots> slots_;        // of prepared_, per task
  std::vector<MatrixRows> matrix_rows_;
  Buffer scratch_;                  // kLinearScratchBytes per thread
  Buffer hidden_;                   // gate | up of the feed-forward
};

}  // namespace foretoken::cpu
