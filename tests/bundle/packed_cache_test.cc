// Packed weights on disk: what was added comes back, and nothing else ever does. Damage anywhere, another key, another owner, an unfinished
// or abandoned file are misses that leave room for a new file; writers may meet; a refusing disk is one note.
#include "bundle/packed_cache.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>

#include "bundle/content.h"
#include "support/safetensors_builder.h"
#include "support/temp_dir.h"

namespace foretoken {
namespace {

namespace fs = std::filesystem;
using testing::flip_byte;
using testing::TempDir;

std::vector<std::byte> bytes_of(size_t count, uint32_t seed) {
  std::vector<std::byte> bytes(count);
  for (std::byte& b : bytes) b = static_cast<std::byte>((seed = seed * 1664525u + 1013904223u) >> 24);
  return bytes;
}

// Sizes that fill chunks exactly, cross them and leave padding.
std::vector<std::vector<std::byte>> matrices() {
  return {bytes_of(100, 1), bytes_of(kChecksumChunk - 128, 2), bytes_of(64, 3), {}, bytes_of(2 * kChecksumChunk + 7, 4)};
}

fs::path write_packed(const fs::path& path, const std::string& key) {
  auto writer = PackedFileWriter::create(path, key);
  EXPECT_TRUE(writer.ok());
  for (const auto& matrix : matrices()) EXPECT_TRUE(writer->add(matrix));
  EXPECT_TRUE(writer->finish());
  EXPECT_FALSE(fs::exists(path)) << "visible before it is complete";
  EXPECT_TRUE(writer->publish());
  return path;
}

std::string refusal(const fs::path& path, std::string_view key) {
  ThreadPool pool(2);
  const auto file = PackedFile::open(path, key, pool);
  return file ? "" : file.error().message;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    if (!entry.is_directory()) names.push_back(entry.path().filename().string());
  return names;
}

// ---- The file

TEST(PackedFile, GivesBackWhatWasAdded) {
  TempDir folder;
  const fs::path path = write_packed(folder.path() / "a.packed", "key");
  ThreadPool pool(2);
  const auto file = PackedFile::open(path, "key", pool);
  ASSERT_TRUE(file.ok()) << file.error().message;
  const auto expected = matrices();
  ASSERT_EQ(file->size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_TRUE(std::ranges::equal((*file)[i], expected[i])) << "matrix " << i;
    EXPECT_EQ(reinterpret_cast<uintptr_t>((*file)[i].data()) % 64, 0u);
  }
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"a.packed"});
}

TEST(PackedFile, MayBeEmpty) {
  TempDir folder;
  auto writer = PackedFileWriter::create(folder.path() / "a.packed", "key");
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(writer->finish());
  ASSERT_TRUE(writer->publish());
  EXPECT_EQ(refusal(folder.path() / "a.packed", "key"), "");
}

// One flipped bit anywhere is noticed: in every field of table and trailer, in each matrix, and in the padding between them.
TEST(PackedFile, NoticesEveryFlippedByte) {
  TempDir folder;
  const fs::path path = write_packed(folder.path() / "a.packed", "key");
  const uint64_t size = fs::file_size(path);
  std::vector<uint64_t> places = {0, 99, 100, 127, 128, kChecksumChunk - 1, kChecksumChunk, 2 * kChecksumChunk + 1000};
  for (uint64_t back = 1; back <= 400; ++back) places.push_back(size - back);  // trailer, table and the end of the last matrix
  for (const uint64_t at : places) {
    flip_byte(path, at);
    EXPECT_NE(refusal(path, "key"), "") << "byte " << at << " of " << size;
    flip_byte(path, at);
  }
  EXPECT_EQ(refusal(path, "key"), "");
}

TEST(PackedFile, RefusesWhatIsNotWholeOrNotItsOwn) {
  TempDir folder;
  const fs::path path = write_packed(folder.path() / "a.packed", "key");
  const uint64_t size = fs::file_size(path);
  EXPECT_NE(refusal(path, "another key"), "");
  EXPECT_NE(refusal(path, "ke"), "");
  EXPECT_NE(refusal(folder.path() / "absent.packed", "key"), "");
  for (const uint64_t keep : {size - 1, size - 56, size - 57, size / 2, uint64_t{55}, uint64_t{1}, uint64_t{0}}) {
    fs::copy_file(path, folder.path() / "cut.packed", fs::copy_options::overwrite_existing);
    fs::resize_file(folder.path() / "cut.packed", keep);
    EXPECT_NE(refusal(folder.path() / "cut.packed", "key"), "") << keep << " bytes kept";
  }
  std::ofstream(path, std::ios::app | std::ios::binary) << "x";
  EXPECT_NE(refusal(path, "key"), "");
  fs::resize_file(path, size);
  EXPECT_EQ(refusal(path, "key"), "");
  fs::permissions(path, fs::perms::others_write, fs::perm_options::add);
  EXPECT_NE(refusal(path, "key"), "") << "others can write to it";
  fs::permissions(path, fs::perms::others_write, fs::perm_options::remove);
  fs::create_symlink(path, folder.path() / "link.packed");
  EXPECT_NE(refusal(folder.path() / "link.packed", "key"), "");
  fs::create_directory(folder.path() / "folder.packed");
  EXPECT_NE(refusal(folder.path() / "folder.packed", "key"), "");
  EXPECT_EQ(refusal(path, "key"), "");
}

// A writer that ends early leaves nothing; what a killed one leaves is removed by the next, and what a living one has is not.
TEST(PackedFile, AbandonedFilesGo) {
  TempDir folder;
  {
    auto writer = PackedFileWriter::create(folder.path() / "a.packed", "key");
    ASSERT_TRUE(writer->add(matrices()[1]));
    EXPECT_EQ(names_in(folder.path()).size(), 1u);
  }
  EXPECT_TRUE(names_in(folder.path()).empty());
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto writer = PackedFileWriter::create(folder.path() / "a.packed", "key");
    ::_exit(writer.ok() && writer->add(matrices()[1]) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  auto living = PackedFileWriter::create(folder.path() / "b.packed", "key");
  ASSERT_EQ(names_in(folder.path()).size(), 2u);
  PackedFileWriter::remove_abandoned(folder.path());
  EXPECT_EQ(names_in(folder.path()).size(), 2u) << "files just made may not be locked yet";
  for (const auto& entry : fs::directory_iterator(folder.path()))
    fs::last_write_time(entry.path(), fs::file_time_type::clock::now() - std::chrono::hours(1));
  PackedFileWriter::remove_abandoned(folder.path());
  ASSERT_EQ(names_in(folder.path()).size(), 1u);
  EXPECT_EQ(names_in(folder.path())[0].rfind("b.packed.", 0), 0u);
}

// ---- The folder

// A bundle of one file.
class PackedCacheTest : public ::testing::Test {
 protected:
  PackedCacheTest() {
    testing::SafetensorsBuilder builder;
    builder.add("w", "F32", {1024, 64}, std::string(1024 * 64 * 4, 'w'));
    model_ = folder_.write("model/model.safetensors", builder.build());
  }
  fs::path cache() const { return folder_.path() / "cache"; }
  Bundle bundle() const { return *Bundle::open(model_.parent_path()); }
  PackedCacheOptions options() {
    return {.folder = cache(), .least_bytes = 0, .threads = 2, .note = [this](const std::string& line) { notes_.push_back(line); }};
  }
  // Packs as a load would. True when the file was found.
  bool load(const PackedKey& key, const PackedCacheOptions& o) {
    const Bundle b = bundle();
    PackedCache cache(o);
    if (const auto file = cache.find(b, key)) {
      EXPECT_EQ(file->size(), 2u);
      EXPECT_TRUE(std::ranges::equal((*file)[0], matrices()[0]));
      EXPECT_TRUE(std::ranges::equal((*file)[1], matrices()[4]));
      return true;
    }
    if (auto writer = cache.start(b, key, b.tensor_bytes())) {
      for (const size_t i : {size_t{0}, size_t{4}})
        if (const Status added = writer->add(matrices()[i]); !added) return cache.give_up(added.error()), false;
      cache.publish(b, *std::move(writer));
    }
    return false;
  }
  bool load() { return load(kKey, options()); }
  fs::path packed_file() const {
    for (const std::string& name : names_in(cache()))
      if (name.ends_with(".packed")) return cache() / name;
    return {};
  }

  const PackedKey kKey{.set = "trunk", .backend = "cpu", .packing = "1 x", .matrices = "m"};
  TempDir folder_;
  fs::path model_;
  std::vector<std::string> notes_;
};

TEST_F(PackedCacheTest, SecondLoadFindsTheFirst) {
  EXPECT_FALSE(load());
  ASSERT_EQ(notes_.size(), 1u) << "the user is told once that the disk is used";
  EXPECT_NE(notes_[0].find(cache().string()), std::string::npos);
  EXPECT_NE(notes_[0].find("--packed-cache off"), std::string::npos);
  EXPECT_TRUE(load());
  EXPECT_TRUE(load());
  EXPECT_EQ(notes_.size(), 1u);
  EXPECT_EQ(fs::status(cache()).permissions(), fs::perms::owner_all);
}

TEST_F(PackedCacheTest, EveryPartOfTheKeyCounts) {
  EXPECT_FALSE(load());
  for (const PackedKey& other : {PackedKey{"mtp", "cpu", "1 x", "m"}, PackedKey{"trunk", "cuda", "1 x", "m"},
                                 PackedKey{"trunk", "cpu", "2 x", "m"}, PackedKey{"trunk", "cpu", "1 x", "n"}}) {
    EXPECT_FALSE(load(other, options())) << other.set << other.backend << other.packing << other.matrices;
    EXPECT_TRUE(load(other, options()));
  }
  // A newer layout takes the older one's place: two files cannot lie under one name.
  EXPECT_FALSE(load());
  EXPECT_TRUE(load());
}

// A changed byte in the middle of a weight, with the times that a program can set put back, asks for another file; put back, the byte
// finds the first again.
TEST_F(PackedCacheTest, ChangedWeightsAreNeverAnsweredFromTheCache) {
  EXPECT_FALSE(load());
  EXPECT_TRUE(load());
  const auto written = fs::last_write_time(model_);
  const uint64_t middle = fs::file_size(model_) / 2;
  flip_byte(model_, middle);
  fs::last_write_time(model_, written);
  EXPECT_FALSE(load());
  EXPECT_TRUE(load());
  flip_byte(model_, middle);
  fs::last_write_time(model_, written);
  EXPECT_TRUE(load());
}

// Copies elsewhere are the same content.
TEST_F(PackedCacheTest, TheSameFilesElsewhereAreFound) {
  EXPECT_FALSE(load());
  fs::copy(model_.parent_path(), folder_.path() / "copy");
  model_ = folder_.path() / "copy" / "model.safetensors";
  EXPECT_TRUE(load());
}

TEST_F(PackedCacheTest, DamagedFilesAreRemovedAndMadeAgain) {
  EXPECT_FALSE(load());
  const fs::path path = packed_file();
  const uint64_t size = fs::file_size(path);
  const auto spoil = {+[](const fs::path& p, uint64_t n) { flip_byte(p, n / 2); }, +[](const fs::path& p, uint64_t n) { fs::resize_file(p, n / 2); },
                      +[](const fs::path& p, uint64_t) { std::ofstream(p) << "something else"; },
                      +[](const fs::path& p, uint64_t) { fs::remove(p), fs::create_symlink("/dev/null", p); },
                      +[](const fs::path& p, uint64_t) { fs::permissions(p, fs::perms::all); }};
  for (const auto& damage : spoil) {
    damage(path, size);
    notes_.clear();
    EXPECT_FALSE(load());
    ASSERT_FALSE(notes_.empty());
    EXPECT_NE(notes_[0].find("made again"), std::string::npos) << notes_[0];
    EXPECT_TRUE(load());
  }
}

// While the bundle is written to during a load nothing is kept.
TEST_F(PackedCacheTest, BundlesThatChangeWhileLoadedAreNotKept) {
  const Bundle b = bundle();
  {
    PackedCache cache(options());
    auto writer = cache.start(b, kKey, b.tensor_bytes());
    ASSERT_TRUE(writer);
    flip_byte(model_, fs::file_size(model_) / 2);
    cache.publish(b, *std::move(writer));
  }
  EXPECT_TRUE(packed_file().empty());
  EXPECT_EQ(notes_.size(), 1u);
}

TEST_F(PackedCacheTest, TheLeastRecentlyUsedGoes) {
  PackedCacheOptions o = options();
  EXPECT_FALSE(load({"a", "cpu", "1", "m"}, o));
  o.limit_bytes = 5 * fs::file_size(packed_file()) / 2;  // room for two
  EXPECT_FALSE(load({"b", "cpu", "1", "m"}, o));
  for (const auto& entry : fs::directory_iterator(cache()))
    fs::last_write_time(entry.path(), fs::file_time_type::clock::now() - std::chrono::hours(2));
  EXPECT_TRUE(load({"a", "cpu", "1", "m"}, o));
  EXPECT_FALSE(load({"c", "cpu", "1", "m"}, o));
  EXPECT_TRUE(load({"a", "cpu", "1", "m"}, o));
  EXPECT_TRUE(load({"c", "cpu", "1", "m"}, o));
  EXPECT_FALSE(load({"b", "cpu", "1", "m"}, o));
}

TEST_F(PackedCacheTest, LimitsKeepFilesOff) {
  PackedCacheOptions o = options();
  o.limit_bytes = 1000;
  EXPECT_FALSE(load(kKey, o));
  EXPECT_FALSE(load(kKey, o));
  EXPECT_TRUE(packed_file().empty());
  EXPECT_EQ(notes_.size(), 2u) << "one note a load";
  o = options();
  o.least_bytes = uint64_t{1} << 20;
  EXPECT_FALSE(load(kKey, o));
  EXPECT_TRUE(packed_file().empty());
  o = options();
  o.folder.clear();
  EXPECT_FALSE(load(kKey, o));
  EXPECT_EQ(notes_.size(), 2u);
}

// A folder that cannot be made, and a disk that takes no more in the middle of a file: one note each, and the load goes on.
TEST_F(PackedCacheTest, ARefusingDiskIsOneNote) {
  PackedCacheOptions o = options();
  o.folder = folder_.write("file", "in the way") / "cache";
  EXPECT_FALSE(load(kKey, o));
  EXPECT_EQ(notes_.size(), 1u);
  notes_.clear();
  const auto ignore = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit small{.rlim_cur = kChecksumChunk / 2, .rlim_max = old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_FALSE(load());
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, ignore);
  EXPECT_EQ(notes_.size(), 1u);
  EXPECT_TRUE(names_in(cache()).empty()) << names_in(cache())[0];
}

// Processes that load the same bundle at once all succeed and leave one whole file.
TEST_F(PackedCacheTest, WritersMayMeet) {
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (int round = 0; round < 5; ++round) load();
      ::_exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(names_in(cache()).size(), 1u);
  EXPECT_TRUE(load());
}

// ---- What is remembered

// After a load, what the files hold is known without reading them, where the file system vouches for them and they are not brand new; a
// remembered line that was damaged, or files that changed, are not known.
TEST_F(PackedCacheTest, ContentIsRememberedForFilesThatStay) {
  PackedCacheOptions o = options();
  const auto looks = [&] { return PackedCache(o).look(bundle(), kKey).has_value(); };
  EXPECT_FALSE(load(kKey, o));
  EXPECT_FALSE(looks()) << "seconds old: an identity proves nothing yet";
  o.settled = std::chrono::seconds(0);
  EXPECT_TRUE(load(kKey, o));
  const bool vouches = bundle().files()[0].identity().vouches;
  EXPECT_EQ(looks(), vouches);
  if (!vouches) return;  // nothing below is ever remembered here, and loads read all bytes
  EXPECT_TRUE(load(kKey, o));
  const auto seen = fs::directory_iterator(cache() / "seen")->path();
  const std::string line = *read_file(seen);
  for (size_t i = 0; i < line.size(); ++i) {
    std::string damaged = line;
    damaged[i] ^= 1;
    std::ofstream(seen, std::ios::binary) << damaged;
    EXPECT_FALSE(looks()) << "byte " << i;
    EXPECT_FALSE(fs::exists(seen));
  }
  EXPECT_TRUE(load(kKey, o));
  EXPECT_TRUE(looks());
  const auto written = fs::last_write_time(model_);
  flip_byte(model_, fs::file_size(model_) / 2);
  fs::last_write_time(model_, written);
  EXPECT_FALSE(looks());
  EXPECT_FALSE(load(kKey, o));
}

TEST_F(PackedCacheTest, ContentIsEveryByte) {
  ThreadPool one(1), two(2);
  const std::string content = content_checksum(bundle(), one);
  EXPECT_EQ(content.size(), 32u);
  EXPECT_EQ(content_checksum(bundle(), two), content);
  const uint64_t size = fs::file_size(model_);
  for (const uint64_t at : {uint64_t{200}, size / 2, size - 1}) {
    flip_byte(model_, at);
    EXPECT_NE(content_checksum(bundle(), two), content) << at;
    flip_byte(model_, at);
  }
  EXPECT_EQ(content_checksum(bundle(), two), content);
}

}  // namespace
}  // namespace foretoken
