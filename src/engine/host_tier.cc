// Blocks, and lists of what to copy.
#include "engine/host_tier.h"

#include <algorithm>

namespace foretoken {
namespace {

// Pieces that continue each other on both sides are one copy: pages are taken in rows, so that a whole checkpoint is
// few of them. `joins`: neither begins an allocation, since what adjoins across two of them a device does not copy at once.
class Pieces {
 public:
  void add(const std::byte* from, std::byte* to, size_t bytes, bool joins) {
    if (bytes == 0) return;
    sum_ += bytes;
    if (joins && !list_.empty() && list_.back().from + list_.back().bytes == from && list_.back().to + list_.back().bytes == to)
      list_.back().bytes += bytes;
    else list_.push_back({from, to, bytes});
  }
  std::span<const TransferPiece> list() const { return list_; }
  size_t sum() const { return sum_; }

 private:
  std::vector<TransferPiece> list_;
  size_t sum_ = 0;
};

bool is_known(std::span<std::byte* const> known, size_t page) { return page < known.size() && known[page] != nullptr; }

}  // namespace

HostImage::~HostImage() {
  for (std::byte* page : pages_) blocks_.give_back(page);
  for (std::byte* block : recurrent_) blocks_.give_back(block);
}

HostTier::HostTier(PagePool& device, size_t limit_bytes)
    : device_(device),
      limit_bytes_(limit_bytes),
      blocks_(device.layout(), device.backend(), PagePool::Memory::kStaging) {
  blocks_.set_limit(limit_bytes / blocks_.page_stride());
}

size_t HostTier::bytes_of(const Checkpoint& checkpoint, std::span<std::byte* const> known) const {
  const auto shared = static_cast<size_t>(
      std::count_if(known.begin(), known.end(), [](const std::byte* page) { return page != nullptr; }));
  return (checkpoint.pages().size() - shared + blocks_for(checkpoint.recurrent_bytes())) * blocks_.page_stride();
}

bool HostTier::joins(const std::byte* page, const std::byte* block) const {
  return !device_.begins_slab(page) && !blocks_.begins_slab(block);
}

HostTier::Moving<HostImage> HostTier::begin_out(const Checkpoint& checkpoint, std::span<std::byte* const> known) {
  std::unique_ptr<HostImage> image(new HostImage(blocks_));
  image->length_ = checkpoint.length();
  image->recurrent_bytes_ = checkpoint.recurrent_bytes();
  Pieces pieces;
  for (size_t i = 0; i < checkpoint.pages().size(); ++i) {
    if (is_known(known, i)) {
      blocks_.share(known[i]);
      image->pages_.push_back(known[i]);
      continue;
    }
    image->pages_.push_back(blocks_.take());
    std::byte* const from = checkpoint.pages()[i];
    pieces.add(from, image->pages_.back(), blocks_.layout().page_bytes(), joins(from, image->pages_.back()));
  }
  for (size_t at = 0; at < image->recurrent_bytes_; at += blocks_.page_stride()) {
    image->recurrent_.push_back(blocks_.take());
    pieces.add(checkpoint.recurrent_memory() + at, image->recurrent_.back(),
               std::min(blocks_.page_stride(), image->recurrent_bytes_ - at),
               at > 0 && !blocks_.begins_slab(image->recurrent_.back()));
  }
  const TransferId transfer = device_.backend().begin_transfer(pieces.list(), TransferWay::kToStaging);
  return {std::move(image), transfer, pieces.sum()};
}

HostTier::Moving<Checkpoint> HostTier::begin_in(const HostImage& image, std::span<std::byte* const> known) {
  std::unique_ptr<Checkpoint> checkpoint = Checkpoint::blank(device_, image.length_, image.recurrent_bytes_, known);
  Pieces pieces;
  for (size_t i = 0; i < image.pages_.size(); ++i)
    if (std::byte* const to = checkpoint->pages()[i]; !is_known(known, i))
      pieces.add(image.pages_[i], to, blocks_.layout().page_bytes(), joins(to, image.pages_[i]));
  for (size_t i = 0; i < image.recurrent_.size(); ++i) {
    const size_t at = i * blocks_.page_stride();
    pieces.add(image.recurrent_[i], checkpoint->recurrent_memory() + at,
               std::min(blocks_.page_stride(), image.recurrent_bytes_ - at),
               at > 0 && !blocks_.begins_slab(image.recurrent_[i]));
  }
  const TransferId transfer = device_.backend().begin_transfer(pieces.list(), TransferWay::kFromStaging);
  return {std::move(checkpoint), transfer, pieces.sum()};
}

}  // namespace foretoken
