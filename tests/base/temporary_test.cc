// Temporary files and folders: they go with their object, with a signal that ends the program, and never once they are
// published.
#include "base/temporary.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>

#include "support/temp_dir.h"

namespace foretoken {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> names(const fs::path& folder) {
  std::vector<std::string> out;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) out.push_back(entry.path().filename().string());
  std::sort(out.begin(), out.end());
  return out;
}

TEST(Temporary, GoesWithItsObject) {
  const testing::TempDir dir;
  const fs::path wanted = dir.path() / "a.gguf";
  {
    auto file = TemporaryFile::beside(wanted);
    ASSERT_TRUE(file);
    EXPECT_TRUE(file->name().starts_with(wanted.string() + "."));
    TemporaryFile moved = *std::move(file);
    EXPECT_EQ(names(dir.path()).size(), 1u);
  }
  EXPECT_EQ(names(dir.path()).size(), 0u);
  {
    auto file = TemporaryFile::beside(wanted);
    ASSERT_TRUE(file);
    ASSERT_TRUE(file->publish());
    EXPECT_TRUE(file->name().empty());
  }
  EXPECT_EQ(names(dir.path()), std::vector<std::string>{"a.gguf"});

  const auto refused = TemporaryFile::beside(dir.path() / "absent" / "a");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message,
            (dir.path() / "absent" / "a").string() + ": cannot create: No such file or directory");

  fs::path scratch;
  {
    const TemporaryFolder folder("foretoken-test");
    scratch = folder.path();
    std::ofstream(scratch / "b") << "b";
    EXPECT_TRUE(fs::exists(scratch / "b"));
  }
  EXPECT_FALSE(fs::exists(scratch));
}

// How a process ends that does `work`, says that it is ready, and gets `signal` then; 0: none. `seen` looks at what it
// does meanwhile.
int ended_by(const std::function<void()>& work, int signal, const std::function<void()>& seen) {
  int ready[2];
  EXPECT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    for (const int one : {SIGINT, SIGTERM, SIGHUP}) std::signal(one, SIG_DFL);  // whoever runs the tests may ignore them
    work();
    [[maybe_unused]] const ssize_t told = ::write(ready[1], "r", 1);
    for (;;) ::pause();
  }
  ::close(ready[1]);
  char byte = 0;
  [[maybe_unused]] const ssize_t heard = ::read(ready[0], &byte, 1);  // nothing, when it has ended
  ::close(ready[0]);
  seen();
  if (signal != 0) ::kill(child, signal);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

TEST(Temporary, GoesWithASignalThatEndsTheProgram) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const testing::TempDir dir;
    const auto work = [&] {
      ::setenv("TMPDIR", dir.path().c_str(), 1);
      remove_temporaries_on_signals();
      auto published = TemporaryFile::beside(dir.path() / "published");
      if (!published || !published->publish()) ::_exit(1);
      new TemporaryFile(*TemporaryFile::beside(dir.path() / "model.gguf"));
      const auto* folder = new TemporaryFolder("scratch");
      fs::create_directory(folder->path() / "inner");
      std::ofstream(folder->path() / "inner" / "entry") << "entry";
    };
    const int status = ended_by(work, signal, [&] { EXPECT_EQ(names(dir.path()).size(), 5u); });
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << status;
    EXPECT_EQ(names(dir.path()), std::vector<std::string>{"published"});
  }
}

TEST(Temporary, GoesWhenTheProgramEndsItselfByASignal) {
  const testing::TempDir dir;
  const auto work = [&] {
    new TemporaryFile(*TemporaryFile::beside(dir.path() / "model.gguf"));
    end_by_signal(SIGINT);
  };
  const int status = ended_by(work, 0, [] {});
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
  EXPECT_TRUE(names(dir.path()).empty());
}

// As in a job that a shell has put into the background, or under nohup.
TEST(Temporary, AnIgnoredSignalStaysIgnored) {
  const auto work = [] {
    std::signal(SIGHUP, SIG_IGN);
    remove_temporaries_on_signals();
    ::raise(SIGHUP);
    ::usleep(50'000);
    ::_exit(7);
  };
  const int status = ended_by(work, 0, [] {});
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
}

}  // namespace
}  // namespace foretoken
