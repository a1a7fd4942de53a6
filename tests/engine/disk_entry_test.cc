// The file format of an entry: what is written is what is read, every damaged bit and every cut is noticed, and only what a sound writer
// can have meant passes.
#include "engine/disk_entry.h"

#include <gtest/gtest.h>

#include <cstring>

#include "engine/disk_index.h"
#include "support/simulated_files.h"
#include "support/toy_entries.h"

namespace foretoken {
namespace {

using testing::random_tokens;
using testing::Tokens;

EntryHeader sound_header() {
  EntryHeader header{.page_bytes = 96, .length = 100, .parent_length = 40, .state_bytes = 130, .drafter_bytes = 1};
  for (size_t i = 0; i < 32; ++i) {
    header.fingerprint[i] = std::byte(i + 1);
    header.key[i] = std::byte(0x40 + i);
    header.parent_key[i] = std::byte(0x80 + i);
  }
  header.stem = {1, 2};
  header.path = {3, 4};
  return header;
}

// The part of a file without its checksum is sealed again, so that what lies behind the checksum is reached.
std::array<std::byte, kEntryHeaderBytes> resealed(std::array<std::byte, kEntryHeaderBytes> bytes) {
  const Checksum sum = checksum(std::span(bytes).first(kEntryHeaderBytes - sizeof(Checksum)));
  std::memcpy(bytes.data() + kEntryHeaderBytes - sizeof sum, &sum, sizeof sum);
  return bytes;
}

TEST(DiskEntry, PartsFollowEachOtherAligned) {
  const EntryHeader h = sound_header();
  EXPECT_EQ(h.first_page(), 1);
  EXPECT_EQ(h.page_count(), 3);  // slots 32 to 127
  EXPECT_EQ(h.tokens().offset, kEntryHeaderBytes);
  EXPECT_EQ(h.tokens().bytes, 60u * 4);
  EXPECT_EQ(h.pages().bytes, 3u * 96);
  for (const auto part : {h.tokens(), h.pages(), h.state(), h.drafter()}) EXPECT_EQ(part.offset % 64, 0u);
  EXPECT_GE(h.pages().offset, h.tokens().offset + h.tokens().bytes);
  EXPECT_GE(h.state().offset, h.pages().offset + h.pages().bytes);
  EXPECT_GE(h.drafter().offset, h.state().offset + h.state().bytes);
  EXPECT_EQ(h.file_bytes(), h.drafter().offset + 64);
}

TEST(DiskEntry, AHeaderComesBack) {
  const EntryHeader h = sound_header();
  EntryHeader read;
  ASSERT_FALSE(parse_header(encode(h), h.file_bytes(), read));
  EXPECT_EQ(read, h);
  EXPECT_NE(read, EntryHeader{});
}

TEST(DiskEntry, EveryBitOfAHeaderCounts) {
  const EntryHeader h = sound_header();
  const auto bytes = encode(h);
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    auto damaged = bytes;
    damaged[bit / 8] ^= std::byte(1u << bit % 8);
    EntryHeader read;
    ASSERT_TRUE(parse_header(damaged, h.file_bytes(), read)) << "bit " << bit;
    ASSERT_EQ(read, EntryHeader{}) << "nothing is handed out";
  }
}

TEST(DiskEntry, OtherSizesAreCuts) {
  const EntryHeader h = sound_header();
  const auto bytes = encode(h);
  EntryHeader read;
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_EQ(parse_header(std::span(bytes).first(size), size, read), DiskFault::kTruncated);
  EXPECT_EQ(parse_header(bytes, h.file_bytes() - 1, read), DiskFault::kTruncated);
  EXPECT_EQ(parse_header(bytes, h.file_bytes() + 1, read), DiskFault::kTruncated);
}

TEST(DiskEntry, NumbersNobodyWritesAreRefused) {
  const auto fault_of = [](const EntryHeader& h) {
    EntryHeader read;
    return parse_header(encode(h), h.file_bytes(), read);
  };
  const auto with = [](auto&& change) {
    EntryHeader h = sound_header();
    change(h);
    return h;
  };
  EXPECT_EQ(fault_of(sound_header()), std::nullopt);
  EXPECT_EQ(fault_of(with([](EntryHeader& h) { h.length = 0; })), DiskFault::kDamaged);
  EXPECT_EQ(fault_of(with([](EntryHeader& h) { h.length = kMaxEntryTokens + 1; })), DiskFault::kDamaged);
  EXPECT_EQ(fault_of(with([](EntryHeader& h) { h.parent_length = h.length; })), DiskFault::kDamaged);
  EXPECT_EQ(fault_of(with([](EntryHeader& h) { h.parent_length = -1; })), DiskFault::kDamaged);
  EXPECT_EQ(fault_of(with([](EntryHeader& h) { h.parent_length = 0; })), DiskFault::kDamaged) << "a key without a parent";
  EXPECT_EQ(fault_of(with([](EntryHeader& h) { h.parent_key = {}; })), DiskFault::kDamaged) << "a parent without a key";
  EXPECT_EQ(fault_of(with([](EntryHeader& h) { h.page_bytes = uint64_t{1} << 40; })), DiskFault::kDamaged);
  EXPECT_EQ(fault_of(with([](EntryHeader& h) { h.state_bytes = ~uint64_t{0}; })), DiskFault::kDamaged);
  EXPECT_EQ(fault_of(with([](EntryHeader& h) { h.drafter_bytes = uint64_t{1} << 63; })), DiskFault::kDamaged);
  auto version = encode(sound_header());
  version[16] ^= std::byte{3};
  EntryHeader read;
  EXPECT_EQ(parse_header(resealed(version), sound_header().file_bytes(), read), DiskFault::kVersion);
  auto page = encode(sound_header());
  page[20] ^= std::byte{48};  // pages of 16 tokens
  EXPECT_EQ(parse_header(resealed(page), sound_header().file_bytes(), read), DiskFault::kForeign);
}

TEST(DiskEntry, PartsComeBackAndDamageIsNoticed) {
  const Tokens tokens = random_tokens(1, 60);
  std::vector<std::byte> pages(3 * 96, std::byte{1}), state(130, std::byte{2}), drafter(1, std::byte{3});
  EntryHeader header = sound_header();
  const EntryParts parts{tokens, pages, state, drafter};
  seal(header, parts);
  testing::SimulatedFiles files;
  ASSERT_TRUE(files.make_folder("/d"));
  {
    auto file = files.create("/d/e");
    ASSERT_TRUE(file);
    ASSERT_TRUE(write_entry(**file, header, parts));
  }
  ASSERT_EQ(files.bytes("/d/e").size(), header.file_bytes());
  const auto read_all = [&]() -> std::optional<DiskFault> {
    std::unique_ptr<DiskFiles::Reader> file;
    EntryHeader read;
    if (const auto fault = read_header(files, "/d/e", file, read)) return fault;
    Tokens t(tokens.size());
    std::vector<std::byte> p(pages.size()), s(state.size()), d(drafter.size());
    if (const auto fault = read_part(*file, read.tokens(), read.tokens_sum, std::as_writable_bytes(std::span(t)))) return fault;
    if (const auto fault = read_part(*file, read.pages(), read.pages_sum, p)) return fault;
    if (const auto fault = read_part(*file, read.state(), read.state_sum, s)) return fault;
    if (const auto fault = read_part(*file, read.drafter(), read.drafter_sum, d)) return fault;
    EXPECT_TRUE(t == tokens && p == pages && s == state && d == drafter);
    return std::nullopt;
  };
  EXPECT_EQ(read_all(), std::nullopt);
  int noticed = 0;
  for (size_t i = 0; i < header.file_bytes(); ++i) {
    files.bytes("/d/e")[i] ^= std::byte{0x10};
    noticed += read_all().has_value();  // or, between the parts, the right bytes
    files.bytes("/d/e")[i] ^= std::byte{0x10};
  }
  EXPECT_EQ(noticed, kEntryHeaderBytes + tokens.size() * 4 + pages.size() + state.size() + drafter.size());
}

TEST(DiskEntry, NamesAreKeys) {
  const std::string name = entry_file_name(sound_header().key);
  EXPECT_TRUE(is_entry_file_name(name));
  EXPECT_TRUE(is_unfinished_file_name(name + ".tmp"));
  for (const std::string& other : {std::string("lock"), name + ".tmp", "x" + name.substr(1), name.substr(1), std::string("A") + name.substr(1), std::string()})
    EXPECT_FALSE(is_entry_file_name(other)) << other;
  EXPECT_FALSE(is_unfinished_file_name("notes.tmp"));
  EXPECT_FALSE(is_unfinished_file_name(name));
}

}  // namespace
}  // namespace foretoken
