// Drafter windows as bytes: pages of one layer of context K/V with the positions they hold, for the prefix cache. A
// window that does not fit the layout is refused, never trusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ops/ops.h"

namespace foretoken {

struct SavedWindow {
  int64_t base = 0, first = 0, end = 0;  // positions: of physical row 0, of the first entry, behind the last one
  int64_t pages = 0;
  std::span<const std::byte> data;  // the pages, one behind the other
};

// Positions [first, end) in `pages`, which lie where the backend computes, of which those of the first `slots` slots
// are kept.
std::vector<std::byte> save_window(Backend& backend, const KvLayout& layout, int64_t base, int64_t first, int64_t end,
                                   std::span<std::byte* const> pages, int64_t slots);
// Borrows `saved`. Nothing when it is not one whole window of this layout.
std::optional<SavedWindow> open_window(const KvLayout& layout, std::span<const std::byte> saved);
void copy_window(Backend& backend, const SavedWindow& window, const KvLayout& layout,
                 std::span<std::byte* const> pages);

}  // namespace foretoken
