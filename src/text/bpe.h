// Bpe: byte-pair merging inside one piece. Repeatedly joins the adjacent pair of lowest rank, the leftmost among
// equals, which is what Hugging Face's BPE does. It knows ids and ranks, no text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace foretoken {

class Bpe {
 public:
  static constexpr int32_t kNone = -1;

  // Room for `merges` entries; ranks are the order of add_merge() calls. A pair given twice keeps its last rank.
  explicit Bpe(size_t merges = 0);
  void add_merge(int32_t left, int32_t right, int32_t joined);
  void set_byte(uint8_t byte, int32_t id) { byte_ids_[byte] = id; }
  int32_t byte_id(uint8_t byte) const { return byte_ids_[byte]; }
  size_t merge_count() const { return joined_.size(); }

  // Appends the ids of `piece`; every byte that occurs must have an id. Time is O(n log n) in the piece's length.
  void encode(std::string_view piece, std::vector<int32_t>& ids) const;

 private:
  static constexpr uint32_t kNoRank = UINT32_MAX;
  struct Slot {
    uint64_t key = UINT64_MAX;
    uint32_t rank = kNoRank;
  };
  uint32_t rank(int32_t left, int32_t right) const;
  size_t slot_of(uint64_t key) const;
  void grow();
  void encode_short(std::string_view piece, std::vector<int32_t>& ids) const;
  void encode_long(std::string_view piece, std::vector<int32_t>& ids) const;

  std::array<int32_t, 256> byte_ids_;
  std::vector<Slot> slots_;  // open addressing, at most half full
  size_t used_ = 0;
  std::vector<int32_t> joined_;  // by rank
};

}  // namespace foretoken
