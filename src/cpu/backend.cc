// The backend's identity, packing, products and embedding; the other operators are in operators.cc.
#include "cpu/backend.h"

#include <fmt/format.h>

#include <algorithm>

#include "cpu/packing.h"
#include "numerics/quant.h"

namespace foretoken::cpu {

BackendInfo CpuBackend::info() const {
  return {.name = "cpu",
          .detail = fmt::format("{}, {} threads", kernels_.name, pool_.size()),
          .packing = fmt::format("{}", kPackingVersion)};
}

CpuBackend::CpuBackend(const KernelTable& kernels, int threads)
    : kernels_(kernels), pool_(threads), products_(kernels, pool_) {}

MatrixPtr CpuBackend::pack(std::span<const MatrixSource> parts, MatrixUse) { return pack_matrix(parts, pool_); }

MatrixPtr CpuBackend::adopt(std::span<const MatrixSource> parts, std::span<const std::byte> packed) {
  return adopt_matrix(parts, packed);
}

void CpuBackend::embed(std::span<const RowInput> inputs, const MatrixSource& table, View out) {
  CHECK(out.rows == static_cast<int64_t>(inputs.size()));
  CHECK(out.cols == table.cols);
  CHECK(table.column_order.empty());
  const size_t bytes = row_bytes(table.format, table.cols);
  CHECK(table.data.size() == static_cast<size_t>(table.rows) * bytes);
  pool_.parallel_for(out.rows, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const RowInput& input = inputs[static_cast<size_t>(r)];
      const std::span<float> to(out.f32(r), static_cast<size_t>(out.cols));
      if (input.embedding) {
        std::copy_n(input.embedding, out.cols, to.data());
        continue;
      }
      CHECK(input.token >= 0);
      int64_t row = input.token;
      if (!table.row_order.empty()) {
        CHECK(row < static_cast<int64_t>(table.row_order.size()));
        row = table.row_order[static_cast<size_t>(row)];
      }
      CHECK(row < table.rows);
      dequantize(table.format, table.data.subspan(static_cast<size_t>(row) * bytes, bytes), to);
    }
  });
}

void CpuBackend::linear(View x, const Matrix& w, View out) { products_.linear(x, w, out); }

void CpuBackend::gated_ffn(View x, const ExpertWeights& w, View out) { products_.gated_ffn(x, w, out); }

}  // namespace foretoken::cpu

namespace foretoken {

Result<std::unique_ptr<Backend>> make_cpu_backend(const CpuOptions& options) {
  const cpu::KernelTable* kernels = cpu::find_kernels(options.isa);
  if (!kernels)
    return Error{ErrorCode::kUnsupported,
                 "This processor lacks the requested instruction set; Foretoken needs AVX2, FMA and F16C at least, and "
                 "AVX-512 with VNNI for 'avx512': choose another one or leave the choice to 'auto'."};
  const int threads = options.threads > 0 ? options.threads : usable_processors();
  return std::unique_ptr<Backend>(std::make_unique<cpu::CpuBackend>(*kernels, threads));
}

}  // namespace foretoken
