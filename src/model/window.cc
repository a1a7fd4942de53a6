// A header of eight numbers, then pages.
#include "model/window.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"

namespace foretoken {
namespace {

constexpr int64_t kMark = 0x31776e6964746601;  // what the bytes are, and the version of this layout
using Header = std::array<int64_t, 8>;

Header header_of(const KvLayout& layout, int64_t base, int64_t first, int64_t end, int64_t pages) {
  return {kMark, layout.heads, layout.head_dim, static_cast<int64_t>(layout.format), base, first, end, pages};
}

View page_view(std::byte* data, const KvLayout& layout) {
  const int64_t bytes = static_cast<int64_t>(layout.page_bytes());
  return {data, DType::kU8, 1, bytes, bytes};
}

}  // namespace

std::vector<std::byte> save_window(Backend& backend, const KvLayout& layout, int64_t base, int64_t first, int64_t end,
                                   std::span<std::byte* const> pages, int64_t slots) {
  const int64_t count = std::min<int64_t>((slots + kPageTokens - 1) / kPageTokens, static_cast<int64_t>(pages.size()));
  const Header header = header_of(layout, base, first, end, count);
  std::vector<std::byte> saved(sizeof header + static_cast<size_t>(count) * layout.page_bytes());
  std::memcpy(saved.data(), header.data(), sizeof header);
  for (int64_t p = 0; p < count; ++p)
    backend.download(page_view(pages[static_cast<size_t>(p)], layout),
                     page_view(saved.data() + sizeof header + static_cast<size_t>(p) * layout.page_bytes(), layout));
  return saved;
}

std::optional<SavedWindow> open_window(const KvLayout& layout, std::span<const std::byte> saved) {
  Header header;
  if (saved.size() < sizeof header) return {};
  std::memcpy(header.data(), saved.data(), sizeof header);
  const auto [mark, heads, head_dim, format, base, first, end, pages] = header;
  if (header != header_of(layout, base, first, end, pages)) return {};
  if (base < 0 || first < base || end < first || pages < 0) return {};
  const std::span<const std::byte> data = saved.subspan(sizeof header);
  if (static_cast<size_t>(pages) > data.size() || static_cast<size_t>(pages) * layout.page_bytes() != data.size())
    return {};
  return SavedWindow{base, first, end, pages, data};
}

void copy_window(Backend& backend, const SavedWindow& window, const KvLayout& layout,
                 std::span<std::byte* const> pages) {
  CHECK(static_cast<int64_t>(pages.size()) >= window.pages);
  for (int64_t p = 0; p < window.pages; ++p)
    backend.upload(
        page_view(const_cast<std::byte*>(window.data.data()) + static_cast<size_t>(p) * layout.page_bytes(), layout),
        page_view(pages[static_cast<size_t>(p)], layout));
}

}  // namespace foretoken
