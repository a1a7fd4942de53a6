// One entry of the disk tier as a file: a header of fixed size, then tokens, pages, state and drafter. The file holds what its parent,
// an entry of a proper prefix of its tokens, lacks. It knows one file at a time; layout and guarantees: docs/prefix_cache.md, "Disk".
#pragma once

#include <array>
#include <optional>
#include <string>

#include "base/digest.h"
#include "base/file.h"
#include "engine/disk_fault.h"
#include "engine/disk_files.h"
#include "numerics/tensor.h"
#include "ops/batch.h"

namespace foretoken {

inline constexpr uint32_t kEntryVersion = 1;
inline constexpr size_t kEntryHeaderBytes = 320;
inline constexpr int64_t kMaxEntryTokens = int64_t{1} << 28;
inline constexpr std::string_view kEntrySuffix = ".entry", kUnfinishedSuffix = ".tmp";

constexpr int64_t pages_of(int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

// A chain of hashes, one step a page: equal values mean equal prefixes, up to chance. `before` stands for all tokens before `tokens`,
// which are at most a page.
Checksum extend(const Checksum& before, std::span<const TokenId> tokens);

struct EntryHeader {
  struct Part {
    uint64_t offset, bytes;
  };

  Digest fingerprint{}, key{}, parent_key{};  // parent_key is zero when there is no parent
  uint64_t page_bytes = 0;
  int64_t length = 0, parent_length = 0;  // tokens: the file holds [parent_length, length)
  uint64_t state_bytes = 0, drafter_bytes = 0;
  Checksum stem, path;  // of all whole pages' tokens; of all tokens (extend)
  Checksum tokens_sum, pages_sum, state_sum, drafter_sum;

  int64_t first_page() const { return parent_length / kPageTokens; }
  int64_t page_count() const { return pages_of(length) - first_page(); }
  Part tokens() const;
  Part pages() const;
  Part state() const;
  Part drafter() const;
  uint64_t file_bytes() const;

  bool operator==(const EntryHeader&) const = default;
};

// SHA-256 over the fingerprint and tokens: the name of what they stand for.
Sha256& start_key(Sha256& hash, const Digest& fingerprint);
Sha256& add_tokens(Sha256& hash, std::span<const TokenId> tokens);

bool is_hex(std::string_view text);  // of lower case
std::string entry_file_name(const Digest& key);
bool is_entry_file_name(std::string_view name);
bool is_unfinished_file_name(std::string_view name);  // an entry's that is being written, or was when a process ended

std::array<std::byte, kEntryHeaderBytes> encode(const EntryHeader& header);

// Reads a header out of a file's first bytes. A header without a fault has sound numbers, its parts lie inside the file and fill it;
// nothing is said of the parts' bytes.
std::optional<DiskFault> parse_header(std::span<const std::byte> bytes, uint64_t file_bytes, EntryHeader& header);

struct EntryParts {
  std::span<const TokenId> tokens;  // [parent_length, length)
  std::span<const std::byte> pages, state, drafter;
};
// Sets the header's checksums of `parts`, whose sizes are the header's.
void seal(EntryHeader& header, const EntryParts& parts);
// Writes a sealed entry and waits until the disk has its bytes.
Status write_entry(DiskFiles::Writer& file, const EntryHeader& header, const EntryParts& parts);

// Memory that is written before it is read, so nobody clears it; nothing when there is none.
std::optional<Buffer> host_buffer(uint64_t bytes);

// Opens a file and reads its header. kGone when there is none, kUnreadable when the system refuses.
std::optional<DiskFault> read_header(DiskFiles& files, const DiskFiles::Path& path, std::unique_ptr<DiskFiles::Reader>& file,
                                     EntryHeader& header);
// Reads one part and compares its checksum.
std::optional<DiskFault> read_part(DiskFiles::Reader& file, EntryHeader::Part part, const Checksum& sum, std::span<std::byte> out);

}  // namespace foretoken
