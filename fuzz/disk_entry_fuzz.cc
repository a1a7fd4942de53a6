// Entries of the disk tier: any bytes under an entry's name are refused or restored as they stand. Input: a byte that says what is
// repaired first, so that what lies behind the checksums is reached, then the file.
// Covers: src/engine/disk_entry.cc
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "engine/disk_folder.h"
#include "tests/support/simulated_files.h"

namespace {

using namespace foretoken;

enum Repair : uint8_t { kHeaderSum = 1, kNumbers = 2, kPartSums = 4, kNames = 8 };

constexpr uint64_t kPageBytes = 64;
const Digest kFingerprint = [] {
  Digest digest{};
  digest[0] = std::byte{1};
  return digest;
}();

struct NoTime final : Clock {
  TimePoint now() const override { return {}; }
};

void check(bool condition) {
  if (!condition) std::abort();
}

std::span<const std::byte> part_of(std::span<const std::byte> file, EntryHeader::Part part) {
  check(part.offset % 64 == 0 && part.offset <= file.size() && part.bytes <= file.size() - part.offset);
  return file.subspan(part.offset, part.bytes);
}

std::vector<TokenId> tokens_of(std::span<const std::byte> file, const EntryHeader& header) {
  const auto bytes = part_of(file, header.tokens());
  std::vector<TokenId> tokens(bytes.size() / sizeof(TokenId));
  if (!bytes.empty()) std::memcpy(tokens.data(), bytes.data(), bytes.size());
  return tokens;
}

void seal_header(std::vector<std::byte>& file) {
  if (file.size() < kEntryHeaderBytes) return;
  const Checksum sum = checksum(std::span(file).first(kEntryHeaderBytes - sizeof(Checksum)));
  std::memcpy(file.data() + kEntryHeaderBytes - sizeof sum, &sum, sizeof sum);
}

void put(std::vector<std::byte>& file, const EntryHeader& header) {
  const auto bytes = encode(header);
  std::copy(bytes.begin(), bytes.end(), file.begin());
}

void repair(std::vector<std::byte>& file, uint8_t what) {
  if (what & kHeaderSum) seal_header(file);
  EntryHeader header;
  if (file.size() < kEntryHeaderBytes) return;
  if (what & kNumbers) {  // a root of this folder, as long as the file allows
    std::memcpy(&header.length, file.data() + 136, sizeof header.length);
    header.length = 1 + static_cast<int64_t>(static_cast<uint64_t>(header.length) % 100);
    header.page_bytes = kPageBytes;
    header.fingerprint = kFingerprint;
    header.state_bytes = file.size() % 97;
    file.resize(header.file_bytes());
    put(file, header);
  }
  if (parse_header(file, file.size(), header)) return;
  const auto tokens = tokens_of(file, header);
  if (what & kPartSums)
    seal(header, {.tokens = tokens, .pages = part_of(file, header.pages()), .state = part_of(file, header.state()), .drafter = part_of(file, header.drafter())});
  if (what & kNames) {
    Sha256 hash;
    header.key = add_tokens(start_key(hash, header.fingerprint), tokens).digest();
    const auto hashes = DiskIndex::hashes_of(tokens);
    header.stem = hashes.stem;
    header.path = hashes.path;
  }
  put(file, header);
}

// A sound header says all there is to say, and a file written from it is read again.
void check_round_trip(std::span<const std::byte> file, const EntryHeader& header) {
  const auto again = encode(header);
  check(std::equal(again.begin(), again.begin() + 256, file.begin()));
  testing::SimulatedFiles files;
  check(files.make_folder("/f").ok());
  const auto tokens = tokens_of(file, header);
  const EntryParts parts{.tokens = tokens, .pages = part_of(file, header.pages()), .state = part_of(file, header.state()), .drafter = part_of(file, header.drafter())};
  EntryHeader sealed = header, read;
  seal(sealed, parts);
  check(write_entry(**files.create("/f/e"), sealed, parts).ok());
  std::unique_ptr<DiskFiles::Reader> reader;
  check(!read_header(files, "/f/e", reader, read) && read == sealed);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  std::vector<std::byte> file(begin + 1, begin + size);
  repair(file, data[0]);

  EntryHeader header;
  const bool sound = !parse_header(file, file.size(), header);
  if (sound) check_round_trip(file, header);

  testing::SimulatedFiles files;
  const NoTime clock;
  const DiskFiles::Path path = DiskFiles::Path("/c") / hex(kFingerprint).substr(0, kFolderNameDigits) / entry_file_name(header.key);
  files.add(path, file);
  DiskFolder folder({.root = "/c", .fingerprint = kFingerprint, .page_bytes = kPageBytes, .limit_bytes = uint64_t{1} << 40, .least_free_bytes = 0}, files, clock);
  folder.open();
  check(folder.mode() == DiskFolder::Mode::kWrites);
  if (!sound) {
    check(files.paths().empty());  // removed
    return 0;
  }
  const auto tokens = tokens_of(file, header);
  const auto match = folder.find(tokens, header.length);
  if (!match) return 0;
  folder.pin(match->entry);
  const DiskLoad load = folder.load(match->entry, tokens);
  if (load.fault) return 0;
  const auto same = [](const Buffer& buffer, std::span<const std::byte> bytes) {
    return buffer.size() == bytes.size() && std::equal(bytes.begin(), bytes.end(), buffer.data());
  };
  Sha256 hash;
  check(add_tokens(start_key(hash, kFingerprint), tokens).digest() == header.key);
  check(load.entry.tokens == tokens && same(load.entry.pages, part_of(file, header.pages())));
  check(same(load.entry.state, part_of(file, header.state())) && same(load.entry.drafter, part_of(file, header.drafter())));
  return 0;
}
