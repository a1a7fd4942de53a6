// What memory on the host costs, in advance of taking it: the roundings of Buffer and of packed matrices. It allocates nothing.
#pragma once

#include <cstdint>

namespace foretoken {

// Of a Buffer of `bytes`: large ones are whole huge pages (numerics/tensor.cc).
constexpr uint64_t buffer_memory(uint64_t bytes) {
  constexpr uint64_t kHuge = 2u << 20;
  return bytes >= kHuge ? (bytes + kHuge - 1) / kHuge * kHuge : bytes;
}

// About that of one packed matrix whose parts are stored in `bytes` bytes, `super_block_bytes` of them in formats with blocks of 256 weights,
// whose scales are unpacked.
constexpr uint64_t packed_memory(uint64_t bytes, uint64_t super_block_bytes) { return buffer_memory(bytes + super_block_bytes / 36); }

}  // namespace foretoken
