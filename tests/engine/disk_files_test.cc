// The system's files through the disk tier's interface: each operation does what its comment says, and failures are sentences.
#include "engine/disk_files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/temp_dir.h"

namespace foretoken {
namespace {

using testing::TempDir;

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(PosixFiles, WritesReadsRenamesRemoves) {
  TempDir temp;
  PosixFiles files;
  const auto folder = temp.path() / "a" / "b";
  ASSERT_TRUE(files.make_folder(folder));
  ASSERT_TRUE(files.make_folder(folder)) << "twice is once";
  struct stat info {};
  ASSERT_EQ(::stat(folder.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  {
    auto file = files.create(folder / "x.tmp");
    ASSERT_TRUE(file);
    ASSERT_TRUE((*file)->write(bytes_of("hello ")));
    ASSERT_TRUE((*file)->write(bytes_of("world")));
    ASSERT_TRUE((*file)->sync());
  }
  ASSERT_EQ(::stat((folder / "x.tmp").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  ASSERT_TRUE(files.rename(folder / "x.tmp", folder / "x"));
  ASSERT_TRUE(files.sync_folder(folder));
  const auto file = files.open(folder / "x");
  ASSERT_TRUE(file);
  EXPECT_EQ((*file)->size(), 11u);
  std::string text(5, ' ');
  ASSERT_TRUE((*file)->read(6, std::as_writable_bytes(std::span(text))));
  EXPECT_EQ(text, "world");
  const Status beyond = (*file)->read(7, std::as_writable_bytes(std::span(text)));
  ASSERT_FALSE(beyond);
  EXPECT_EQ(beyond.error().code, ErrorCode::kInvalidFile);

  ASSERT_TRUE(files.touch(folder / "x", 1'234'567'890'000'000'000));
  const auto listed = files.list(folder);
  ASSERT_TRUE(listed);
  ASSERT_EQ(listed->size(), 1u);
  EXPECT_EQ(listed->front().name, "x");
  EXPECT_EQ(listed->front().bytes, 11u);
  EXPECT_EQ(listed->front().modified_ns, 1'234'567'890'000'000'000);
  EXPECT_FALSE(listed->front().folder);
  EXPECT_TRUE(files.list(temp.path())->front().folder);

  ASSERT_TRUE(files.remove(folder / "x"));
  ASSERT_TRUE(files.remove(folder / "x")) << "what is not there is removed";
  EXPECT_EQ(files.open(folder / "x").error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(files.list(folder)->empty());
  EXPECT_GT(*files.free_bytes(folder), 0u);
  EXPECT_GT(files.now_ns(), 1'600'000'000'000'000'000);
}

TEST(PosixFiles, ALockHasOneHolder) {
  TempDir temp;
  PosixFiles files;
  auto first = files.lock(temp.path() / "lock");
  ASSERT_TRUE(first);
  ASSERT_NE(*first, nullptr);
  const auto second = files.lock(temp.path() / "lock");
  ASSERT_TRUE(second);
  EXPECT_EQ(*second, nullptr);
  first->reset();
  EXPECT_NE(*files.lock(temp.path() / "lock"), nullptr);
}

TEST(PosixFiles, RefusesWhatOthersCouldHavePrepared) {
  TempDir temp;
  PosixFiles files;
  const auto folder = temp.path() / "open";
  ASSERT_TRUE(files.make_folder(folder));
  ASSERT_EQ(::chmod(folder.c_str(), 0770), 0);
  const Status refused = files.make_folder(folder);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("others can write"), std::string::npos);
  ASSERT_EQ(::symlink("elsewhere", (temp.path() / "link").c_str()), 0);
  EXPECT_FALSE(files.open(temp.path() / "link"));
  EXPECT_FALSE(files.create(temp.path() / "link"));
  EXPECT_FALSE(std::filesystem::exists(temp.path() / "elsewhere"));
  EXPECT_FALSE(files.open(folder)) << "a folder is no file";
}

TEST(PosixFiles, FailuresNameThePathAndTheReason) {
  TempDir temp;
  PosixFiles files;
  const auto none = temp.path() / "none" / "x";
  for (const Status& status : {Status(files.open(none).error()), Status(files.create(none).error()), files.rename(none, none),
                              files.sync_folder(none), files.touch(none, 0), Status(files.list(none).error()),
                              Status(files.lock(none).error()), Status(files.free_bytes(none).error())}) {
    ASSERT_FALSE(status);
    EXPECT_NE(status.error().message.find(none.string()), std::string::npos);
    EXPECT_NE(status.error().message.find("No such file"), std::string::npos) << status.error().message;
  }
  temp.write("file", "x");
  EXPECT_FALSE(files.make_folder(temp.path() / "file" / "below"));
}

}  // namespace
}  // namespace foretoken
