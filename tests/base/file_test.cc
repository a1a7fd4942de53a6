// Files: mappings, whole reads, atomic replacement also when the disk refuses, and fingerprints of known answers.
#include "base/file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace foretoken {
namespace {

namespace fs = std::filesystem;

// A folder of its own for each test, removed afterwards.
class FileTest : public testing::Test {
 protected:
  FileTest() {
    std::string pattern = (fs::temp_directory_path() / "foretoken-file-test-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~FileTest() override { fs::remove_all(folder_); }

  fs::path write(const std::string& name, std::string_view content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return folder_ / name;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& entry : fs::directory_iterator(folder_)) out.push_back(entry.path().filename().string());
    return out;
  }

  fs::path folder_;
};

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A mapping shows the file's bytes, keeps their address when moved, and survives the file's replacement.
TEST_F(FileTest, MappingShowsTheFile) {
  const std::string content = std::string(100'000, 'x') + "end";
  const fs::path path = write("a", content);
  Result<MappedFile> mapped = MappedFile::open(path);
  ASSERT_TRUE(mapped);
  EXPECT_EQ(text_of(mapped->bytes()), content);
  EXPECT_EQ(mapped->path(), path);

  const std::byte* address = mapped->bytes().data();
  MappedFile moved = *std::move(mapped);
  EXPECT_EQ(moved.bytes().data(), address);
  MappedFile assigned;
  assigned = std::move(moved);
  EXPECT_EQ(assigned.bytes().data(), address);

  ASSERT_TRUE(write_file_atomically(path, "new"));
  EXPECT_EQ(text_of(assigned.bytes()), content) << "a reader keeps the content it opened";
  assigned.release(assigned.bytes());
  EXPECT_EQ(text_of(assigned.bytes()), content) << "released pages come back from the file";
}

// Releasing a part that does not lie in the mapping is a programmer's mistake.
TEST_F(FileTest, ReleaseOutsideTheMappingDies) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const fs::path path = write("a", std::string(10, 'x'));
  Result<MappedFile> mapped = MappedFile::open(path);
  ASSERT_TRUE(mapped);
  const std::vector<std::byte> elsewhere(1);
  EXPECT_DEATH(mapped->release({mapped->bytes().data(), 11}), "CHECK");
  mapped->release({});
}

TEST_F(FileTest, EmptyFileMapsToNothing) {
  Result<MappedFile> mapped = MappedFile::open(write("empty", ""));
  ASSERT_TRUE(mapped);
  EXPECT_TRUE(mapped->bytes().empty());
  const Result<std::string> read = read_file(folder_ / "empty");
  ASSERT_TRUE(read);
  EXPECT_EQ(*read, "");
}

// Each failure names the path and says what the system refused; kinds tell absence from misuse.
TEST_F(FileTest, ErrorsNameThePath) {
  const fs::path absent = folder_ / "absent.gguf";
  for (const Error& error : {MappedFile::open(absent).error(), read_file(absent).error()}) {
    EXPECT_EQ(error.code, ErrorCode::kNotFound);
    EXPECT_EQ(error.message, absent.string() + ": cannot open: No such file or directory");
  }
  for (const Error& error : {MappedFile::open(folder_).error(), read_file(folder_).error()}) {
    EXPECT_EQ(error.code, ErrorCode::kUsage);
    EXPECT_EQ(error.message, folder_.string() + ": not a regular file");
  }
  EXPECT_EQ(MappedFile::open(write("file", "x") / "below").error().code, ErrorCode::kNotFound);
}

// The limit is exact: a file of the limit's size is read, one byte more is refused before it is read.
TEST_F(FileTest, ReadLimitIsExact) {
  const fs::path path = write("a", "12345");
  EXPECT_EQ(*read_file(path, 5), "12345");
  const Result<std::string> refused = read_file(path, 4);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidFile);
  EXPECT_NE(refused.error().message.find("5 bytes is larger than the limit of 4"), std::string::npos);
}

// Replacement leaves exactly the new content, readable by all, and no temporary file.
TEST_F(FileTest, AtomicWriteReplaces) {
  const fs::path path = folder_ / "out.json";
  ASSERT_TRUE(write_file_atomically(path, "first"));
  ASSERT_TRUE(write_file_atomically(path, std::string("se\0cond", 7)));
  EXPECT_EQ(*read_file(path), std::string("se\0cond", 7));
  EXPECT_EQ(names(), std::vector<std::string>{"out.json"});
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0644u);
  ASSERT_TRUE(write_file_atomically(path, ""));
  EXPECT_EQ(*read_file(path), "");
}

// When the disk refuses at any byte, the old content stays and no temporary file is left.
TEST_F(FileTest, AtomicWriteFailsCleanlyAtEveryByte) {
  const fs::path path = folder_ / "out";
  ASSERT_TRUE(write_file_atomically(path, "old"));
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const std::string content = "0123456789";
  for (size_t limit = 0; limit <= content.size(); ++limit) {
    struct rlimit now = before;
    now.rlim_cur = limit;
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &now), 0);
    const Status status = write_file_atomically(path, content);
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    ASSERT_EQ(status.ok(), limit == content.size()) << "limit " << limit;
    if (!status) {
      EXPECT_EQ(status.error().code, ErrorCode::kIo);
      EXPECT_NE(status.error().message.find("File too large"), std::string::npos) << status.error().message;
    }
    EXPECT_EQ(*read_file(path), status ? content : "old");
    EXPECT_EQ(names(), std::vector<std::string>{"out"});
  }
  ::signal(SIGXFSZ, handler);
}

TEST_F(FileTest, AtomicWriteNeedsAWritablePlace) {
  const Status absent = write_file_atomically(folder_ / "no" / "folder", "x");
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code, ErrorCode::kNotFound);
  fs::create_directories(folder_ / "taken" / "inner");
  const Status taken = write_file_atomically(folder_ / "taken", "x");
  ASSERT_FALSE(taken);
  EXPECT_NE(taken.error().message.find((folder_ / "taken").string()), std::string::npos);
  EXPECT_EQ(names(), std::vector<std::string>{"taken"}) << "the temporary file is removed";
}

// Published answers of SHA-256 (FIPS 180-4 examples).
TEST(Sha256, KnownAnswers) {
  EXPECT_EQ(sha256_hex(std::string_view("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex(std::string_view("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const std::string million(1'000'000, 'a');
  EXPECT_EQ(sha256_hex(std::string_view(million)), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

}  // namespace
}  // namespace foretoken
