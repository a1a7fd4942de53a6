// Aligned host memory; large blocks ask for huge pages.
#include "numerics/tensor.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

namespace foretoken {

Buffer::Buffer(size_t bytes) : size_(bytes) {
  constexpr size_t kHuge = 2u << 20;
  const size_t alignment = bytes >= kHuge ? kHuge : 64;
  const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  if (rounded == 0) return;
  auto* p = static_cast<std::byte*>(std::aligned_alloc(alignment, rounded));
  if (!p) throw std::bad_alloc();
  if (rounded >= kHuge) ::madvise(p, rounded, MADV_HUGEPAGE);
  std::memset(p, 0, rounded);
  data_.reset(p);
}

void Buffer::free_host(std::byte* p) { std::free(p); }

}  // namespace foretoken
