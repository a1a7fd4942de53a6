// HostTier: copies of checkpoints in host memory, for backends whose memory is not the host's. It keeps bytes within a
// limit and moves them beside the passes; which checkpoints they are, which are wanted and which go first is the prefix
// cache's business. Single-threaded.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "model/state.h"

namespace foretoken {

struct HostTierStatistics {
  uint64_t moved_out = 0, tokens_out = 0,
           bytes_out = 0;  // checkpoints that were copied to the host; bytes that crossed for them
  uint64_t moved_in = 0, tokens_in = 0, bytes_in = 0;  // the same, back
  uint64_t hits = 0;                                   // requests whose prefix came back for them
  uint64_t waits = 0;                                  // times that memory was needed before its copy was done
  uint64_t dropped = 0, no_room = 0;                   // copies that gave way to others; checkpoints that found no room
  size_t entries = 0, bytes = 0, limit_bytes = 0;
};

// A checkpoint's bytes on the host, in blocks as large as a page: its pages, full ones shared with other images, and
// the recurrent memory.
class HostImage {
 public:
  ~HostImage();
  HostImage(const HostImage&) = delete;
  HostImage& operator=(const HostImage&) = delete;

  int64_t length() const { return length_; }
  std::span<std::byte* const> pages() const { return pages_; }
  size_t recurrent_bytes() const { return recurrent_bytes_; }

 private:
  friend class HostTier;
  explicit HostImage(PagePool& blocks) : blocks_(blocks) {}
  PagePool& blocks_;
  int64_t length_ = 0;
  size_t recurrent_bytes_ = 0;
  std::vector<std::byte*> pages_, recurrent_;
};

class HostTier {
 public:
  // `device` must outlive the tier, and so must the tier its images.
  HostTier(PagePool& device, size_t limit_bytes);

  // Bytes that an image of `checkpoint` takes when the pages in `known` (of the host, null where there is none) are
  // shared.
  size_t bytes_of(const Checkpoint& checkpoint, std::span<std::byte* const> known) const;
  size_t bytes_in_use() const { return blocks_.pages_in_use() * blocks_.page_stride(); }
  size_t limit_bytes() const { return limit_bytes_; }

  // Begins a copy in either direction, of everything but the pages in `known`, which lie where the copy will. There
  // must be room. Until the transfer is finished both sides must be kept, and the new one not be used.
  template <class T>
  struct Moving {
    std::unique_ptr<T> copy;
    TransferId transfer = 0;
    size_t bytes = 0;
  };
  Moving<HostImage> begin_out(const Checkpoint& checkpoint, std::span<std::byte* const> known);
  Moving<Checkpoint> begin_in(const HostImage& image, std::span<std::byte* const> known);
  bool finished(TransferId transfer) const { return device_.backend().transfer_finished(transfer); }
  void finish(TransferId transfer) const { device_.backend().finish_transfer(transfer); }

 private:
  bool joins(const std::byte* page, const std::byte* block) const;
  size_t blocks_for(size_t bytes) const { return (bytes + blocks_.page_stride() - 1) / blocks_.page_stride(); }

  PagePool& device_;
  size_t limit_bytes_;
  PagePool blocks_;
};

}  // namespace foretoken
