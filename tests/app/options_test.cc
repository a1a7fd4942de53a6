// What options take, and what is said of the rest: sizes, contexts, and places to write.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/memory_options.h"
#include "app/output_paths.h"
#include "support/temp_dir.h"

namespace foretoken::app {
namespace {

namespace fs = std::filesystem;

bool holds(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

// Numbers whose unit was forgotten are no sizes.
TEST(Sizes, AreOffOrSomethingThatHolds) {
  EXPECT_EQ(*parse_size("24G"), uint64_t{24} << 30);
  for (const char* good : {"off", "0", "1M", "2048K", "1048576", "24G", "1T"}) EXPECT_EQ(check_size(good), "") << good;
  for (const char* bad : {"", "much", "24", "5K", "1048575", "1P", "-1"}) EXPECT_NE(check_size(bad), "") << bad;
  EXPECT_EQ(check_size("24"), "24 are 24 bytes, which hold nothing; takes off, or 1M at least");
  for (const char* bad : {"off", "0", "24", "much"}) EXPECT_NE(check_positive_size(bad), "") << bad;
  EXPECT_EQ(check_positive_size("24G"), "");
}

// One command with the options of memory; whether a line is taken, else what is said.
std::string said_of(std::vector<std::string> words, MemoryFlags& flags) {
  CLI::App program;
  CommonOptions common;
  add_common_options(program, common);
  add_memory_options(program, flags);
  std::reverse(words.begin(), words.end());
  try {
    program.parse(words);
  } catch (const CLI::ParseError& e) {
    return e.what();
  }
  return "";
}

TEST(MemoryFlags, SenselessValuesAreRefused) {
  for (const auto& [words, fault] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{{{"--max-context", "5"}, "takes 64 to"},
                                                                     {{"--max-context", "-1"}, "takes 64 to"},
                                                                     {{"--max-context", "63"}, "takes 64 to"},
                                                                     {{"--max-context", "x"}, "takes 64 to"},
                                                                     {{"--max-context", "99999999999"}, "takes 64 to"},
                                                                     {{"--lanes", "-1"}, "range"},
                                                                     {{"--lanes", "65"}, "range"},
                                                                     {{"--max-memory", "off"}, "takes bytes"},
                                                                     {{"--max-memory", "24"}, "24 are 24 bytes"},
                                                                     {{"--cache-ram", "7"}, "7 are 7 bytes"},
                                                                     {{"--packed-cache", "7"}, "7 are 7 bytes"}}) {
    MemoryFlags flags;
    const std::string said = said_of(words, flags);
    EXPECT_TRUE(holds(said, fault) && holds(said, words[0])) << words[0] << " " << words[1] << ": " << said;
  }
  MemoryFlags flags;
  EXPECT_EQ(said_of({"--max-context", "64", "--lanes", "2", "--max-memory", "24G", "--cache-ram", "off",
                     "--prefill-chunk", "512"},
                    flags),
            "");
}

TEST(MemoryFlags, AContextBeyondTheModelBecomesTheModels) {
  ModelConfig config;
  config.max_positions = 1000;
  CommonOptions common;
  common.log_level = "quiet";
  MemoryFlags flags;
  ASSERT_EQ(said_of({"--max-context", "4096", "--lanes", "2"}, flags), "");
  flags.prefill_chunk = nullptr;  // its command is gone
  const EngineMemoryOptions demands = flags.demands(common, config);
  EXPECT_EQ(*demands.context, 1000);
  EXPECT_EQ(*demands.lanes, 2);
  EXPECT_FALSE(demands.max_memory.has_value());
  flags.max_context = 500;
  EXPECT_EQ(*flags.demands(common, config).context, 500);
  flags.max_context = 0;
  EXPECT_FALSE(flags.demands(common, config).context.has_value());
}

// Working memory, sampling and the program are the host's, or counted apart.
TEST(DeviceBytes, AreWeightsStateAndPages) {
  EXPECT_EQ(device_bytes({{"program", 1},
                          {"weights", 10},
                          {"mapped weights", 100},
                          {"working memory of a pass", 2},
                          {"recurrent state", 1000},
                          {"K/V pages", 10000},
                          {"sampling", 4},
                          {"prefix cache", 100000}}),
            111110u);
}

TEST(OutputPaths, AreTriedBeforeAnythingIsDone) {
  const testing::TempDir dir;
  const fs::path file = dir.write("file", "x"), folder = dir.path();
  EXPECT_EQ(check_output_file((folder / "new").string()), "");
  EXPECT_EQ(check_output_file(file.string()), "");
  EXPECT_TRUE(holds(check_output_file(""), "takes the name"));
  EXPECT_TRUE(holds(check_output_file(folder.string()), "is a folder"));
  EXPECT_TRUE(holds(check_output_file((folder / "absent" / "new").string()), "No such file"));
  EXPECT_TRUE(holds(check_output_file((file / "new").string()), "Not a directory"));
  EXPECT_TRUE(holds(check_output_file("/dev/null"), "no regular file"));

  EXPECT_EQ(check_output_folder(folder.string()), "");
  EXPECT_EQ(check_output_folder((folder / "a" / "b" / "").string()), "");
  EXPECT_TRUE(holds(check_output_folder((file / "a").string()), "is no folder"));
  EXPECT_TRUE(holds(check_output_folder("/proc/a"), "cannot be written"));
  EXPECT_TRUE(holds(check_output_folder(""), "takes the name"));
  EXPECT_EQ(std::distance(fs::recursive_directory_iterator(folder), {}), 1) << "trying leaves nothing";

  // Who has no right to write hears it; root has every right.
  if (::geteuid() != 0) {
    fs::permissions(folder, fs::perms::owner_read | fs::perms::owner_exec);
    EXPECT_TRUE(holds(check_output_file((folder / "new").string()), "Permission denied"));
    EXPECT_TRUE(holds(check_output_folder((folder / "a").string()), "Permission denied"));
    fs::permissions(folder, fs::perms::owner_all);
  }
}

// A cache that is there can be read where it cannot be written.
TEST(OutputPaths, AFilledCacheMayBeReadOnly) {
  const testing::TempDir dir;
  EXPECT_EQ(check_cache_folder((dir.path() / "new").string()), "");
  EXPECT_TRUE(holds(check_cache_folder("/proc/self"), "cannot be written"));
  const fs::path file = dir.write("cache/packed/a.packed", "x");
  EXPECT_EQ(check_cache_folder((dir.path() / "cache").string()), "");
}

}  // namespace
}  // namespace foretoken::app
