// What is read of a machine, from trees of files written by hand: every layout of control groups that kernels and containers show, and
// files that are missing, empty or nonsense. The facts of the machine that runs the test are compared with what the system says.
#include "base/machine.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fmt/format.h>

#include "base/threads.h"
#include "support/temp_dir.h"

namespace foretoken {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr const char* kUnified = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
constexpr const char* kVersion1 =
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";

// A machine of 8 GiB, 6 GiB of them available, and four processors.
class Tree {
 public:
  Tree() {
    write("proc/meminfo", "MemTotal:        8388608 kB\nMemFree:         1048576 kB\nMemAvailable:    6291456 kB\nCached:  4194304 kB\n");
    write("proc/thread-self/status", "Name:\tforetoken\nCpus_allowed:\tf\nCpus_allowed_list:\t0-2,5\n");
  }
  void write(const std::string& name, const std::string& text) { dir_.write(name, text); }
  void groups(const std::string& mountinfo, const std::string& own) {
    write("proc/self/mountinfo", "23 1 8:1 / / rw - ext4 /dev/sda1 rw\n" + mountinfo);
    write("proc/self/cgroup", own);
  }
  void unified(const std::string& folder, const std::string& max, const std::string& current, const std::string& stat = "") {
    write("sys/fs/cgroup" + folder + "/memory.max", max + "\n");
    write("sys/fs/cgroup" + folder + "/memory.current", current + "\n");
    if (!stat.empty()) write("sys/fs/cgroup" + folder + "/memory.stat", stat);
  }
  MachineFacts read() const { return read_machine(dir_.path()); }
  const std::filesystem::path& path() const { return dir_.path(); }

 private:
  testing::TempDir dir_;
};

std::string bytes(uint64_t mib) { return std::to_string(mib * kMiB); }

TEST(Machine, AMachineWithoutGroupsIsBoundedByItsAvailableMemory) {
  const Tree tree;
  const MachineFacts facts = tree.read();
  EXPECT_EQ(facts.total_bytes, 8192 * kMiB);
  EXPECT_EQ(facts.available_bytes, 6144 * kMiB);
  EXPECT_EQ(facts.free_bytes(), 6144 * kMiB);
  EXPECT_EQ(facts.ceiling_bytes(), 8192 * kMiB);
  EXPECT_EQ(facts.bounded_by(), "the machine's available memory");
  EXPECT_EQ(facts.processors, 4);
  EXPECT_TRUE(facts.limits.empty());
  EXPECT_EQ(facts.notes.size(), 1u);  // mountinfo and cgroup are absent
}

TEST(Machine, OldKernelsThatEstimateNothingHaveTheirFreeMemoryAndHalfOfTheirFilePages) {
  Tree tree;
  tree.write("proc/meminfo", "MemTotal:        8388608 kB\nMemFree:         1048576 kB\nCached:  4194304 kB\nSwapCached: 99 kB\n");
  EXPECT_EQ(tree.read().available_bytes, (1024 + 2048) * kMiB);
}

// Every ancestor bounds: here the middle one has the least left, though the innermost has the smaller limit.
TEST(Machine, NestedGroupsOfVersion2AllBound) {
  Tree tree;
  tree.groups(kUnified, "0::/user.slice/app.scope/job\n");
  tree.unified("/user.slice/app.scope/job", bytes(2000), bytes(100));
  tree.unified("/user.slice/app.scope", bytes(4000), bytes(3000));
  tree.unified("/user.slice", "max", bytes(5000));
  const MachineFacts facts = tree.read();
  ASSERT_EQ(facts.limits.size(), 2u);
  EXPECT_EQ(facts.limits[0].where, "/sys/fs/cgroup/user.slice/app.scope/job");
  EXPECT_EQ(facts.limits[0].free_bytes(), 1900 * kMiB);
  EXPECT_EQ(facts.limits[1].where, "/sys/fs/cgroup/user.slice/app.scope");
  EXPECT_EQ(facts.free_bytes(), 1000 * kMiB);
  EXPECT_EQ(facts.bounded_by(), "the memory limit of /sys/fs/cgroup/user.slice/app.scope");
  EXPECT_EQ(facts.ceiling_bytes(), 2000 * kMiB);
  EXPECT_TRUE(facts.notes.empty());
}

TEST(Machine, FilePagesThatCanBeDroppedDoNotCountAsUsed) {
  Tree tree;
  tree.groups(kUnified, "0::/job\n");
  tree.unified("/job", bytes(2000), bytes(1500),
               "anon 524288000\nfile 1048576000\ninactive_file " + bytes(600) + "\nactive_file " + bytes(300) + "\nactive_file_x 9\n");
  EXPECT_EQ(tree.read().limits.at(0).used_bytes, 600 * kMiB);
}

TEST(Machine, TheHighMarkBoundsLikeALimit) {
  Tree tree;
  tree.groups(kUnified, "0::/job\n");
  tree.unified("/job", "max", bytes(100));
  tree.write("sys/fs/cgroup/job/memory.high", bytes(700) + "\n");
  ASSERT_EQ(tree.read().limits.size(), 1u);
  EXPECT_EQ(tree.read().free_bytes(), 600 * kMiB);
}

TEST(Machine, AGroupThatUsesMoreThanItsLimitLeavesNothing) {
  Tree tree;
  tree.groups(kUnified, "0::/job\n");
  tree.unified("/job", bytes(100), bytes(130));
  EXPECT_EQ(tree.read().free_bytes(), 0u);
}

TEST(Machine, GroupsOfVersion1BoundAndTheirUnlimitedIsNoLimit) {
  Tree tree;
  tree.groups(kVersion1, "4:memory:/docker/one\n1:cpu,cpuacct:/docker/one\n0::/\n");
  const std::string memory = "sys/fs/cgroup/memory/docker/one/";
  tree.write(memory + "memory.limit_in_bytes", bytes(3000) + "\n");
  tree.write(memory + "memory.usage_in_bytes", bytes(2500) + "\n");
  tree.write(memory + "memory.stat", "inactive_file 5\ntotal_inactive_file " + bytes(1000) + "\ntotal_active_file " + bytes(200) + "\n");
  tree.write("sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "9223372036854771712\n");
  tree.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  tree.write("sys/fs/cgroup/cpu,cpuacct/docker/one/cpu.cfs_quota_us", "250000\n");
  tree.write("sys/fs/cgroup/cpu,cpuacct/docker/one/cpu.cfs_period_us", "100000\n");
  tree.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  tree.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  const MachineFacts facts = tree.read();
  ASSERT_EQ(facts.limits.size(), 1u);
  EXPECT_EQ(facts.limits[0].where, "/sys/fs/cgroup/memory/docker/one");
  EXPECT_EQ(facts.limits[0].used_bytes, 1300 * kMiB);
  EXPECT_EQ(facts.free_bytes(), 1700 * kMiB);
  EXPECT_EQ(facts.processors, 3);  // two and a half
}

// Some systems mount version 1 for memory beside version 2 for the rest; both are asked.
TEST(Machine, BothVersionsAtOnce) {
  Tree tree;
  tree.groups(std::string(kVersion1) + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n", "4:memory:/job\n0::/job\n");
  tree.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", bytes(3000));
  tree.write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", bytes(0));
  tree.write("sys/fs/cgroup/unified/job/cpu.max", "150000 100000\n");
  const MachineFacts facts = tree.read();
  ASSERT_EQ(facts.limits.size(), 1u);
  EXPECT_EQ(facts.free_bytes(), 3000 * kMiB);
  EXPECT_EQ(facts.processors, 2);
}

// In a container without a namespace of its own, the mounted folder is the container's group and proc names it from the host's root.
TEST(Machine, AContainersGroupIsTheMountedFolder) {
  Tree tree;
  tree.groups("30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n", "0::/docker/abc/inner\n");
  tree.unified("", bytes(1000), bytes(0));
  tree.unified("/inner", bytes(500), bytes(0));
  EXPECT_EQ(tree.read().limits.size(), 2u);
  EXPECT_EQ(tree.read().free_bytes(), 500 * kMiB);
  tree.groups("30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n", "0::/elsewhere\n");
  EXPECT_EQ(tree.read().free_bytes(), 1000 * kMiB);
  tree.groups(kUnified, "0::/../../host.slice\n");
  EXPECT_EQ(tree.read().free_bytes(), 1000 * kMiB);
}

TEST(Machine, FoldersWithSpacesAreFound) {
  Tree tree;
  tree.groups("30 23 0:26 / /sys/fs/my\\040groups rw - cgroup2 cgroup2 rw\n", "0::/a b\n");
  tree.write("sys/fs/my groups/a b/memory.max", bytes(400));
  tree.write("sys/fs/my groups/a b/memory.current", "0");
  EXPECT_EQ(tree.read().free_bytes(), 400 * kMiB);
}

TEST(Machine, WhatCannotBeReadIsANoteAndBoundsNothing) {
  Tree tree;
  tree.groups(kUnified, "0::/job\n");
  tree.write("sys/fs/cgroup/job/memory.max", "not a number\n");
  EXPECT_EQ(tree.read().free_bytes(), 6144 * kMiB);
  tree.write("sys/fs/cgroup/job/memory.max", "99999999999999999999999999\n");
  EXPECT_EQ(tree.read().free_bytes(), 6144 * kMiB);
  tree.write("sys/fs/cgroup/job/memory.max", bytes(900));  // and no memory.current
  const MachineFacts facts = tree.read();
  EXPECT_EQ(facts.free_bytes(), 900 * kMiB);
  ASSERT_EQ(facts.notes.size(), 1u);
  EXPECT_NE(facts.notes[0].find("/sys/fs/cgroup/job"), std::string::npos);
  std::filesystem::create_directories(tree.path() / "sys/fs/cgroup/job/memory.current");  // a folder where a file belongs
  EXPECT_EQ(tree.read().free_bytes(), 900 * kMiB);
}

TEST(Machine, AnEmptyRootHasNoMemoryAndOneProcessor) {
  const testing::TempDir empty;
  const MachineFacts facts = read_machine(empty.path());
  EXPECT_EQ(facts.total_bytes, 0u);
  EXPECT_EQ(facts.free_bytes(), 0u);
  EXPECT_EQ(facts.processors, 1);
  EXPECT_EQ(facts.notes.size(), 3u);
}

TEST(Machine, HostileTextsAreNoFacts) {
  Tree tree;
  for (const char* own : {"", ":", "0:", "::::", "0::", "\n\n", "memory:/x", "0::/a/../../../../etc\n"}) {
    tree.groups("30\n- - -\n30 23 0:26 / / - cgroup2\n1 2 3 4 5 - cgroup2", own);
    EXPECT_LE(tree.read().free_bytes(), 6144 * kMiB) << own;
  }
  for (const char* list : {"", "-", "3-1", "0-99999999999", "a", "1,,2", "1-"}) {
    tree.write("proc/thread-self/status", std::string("Cpus_allowed_list:\t") + list + "\n");
    EXPECT_GE(tree.read().processors, 1) << list;
    EXPECT_LE(tree.read().processors, 1 << 21) << list;
  }
}

// The running machine: within what the system itself reports.
TEST(Machine, ThisMachine) {
  const MachineFacts facts = read_machine();
  const auto pages = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)), page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  EXPECT_EQ(facts.page_bytes, page);
  EXPECT_GT(facts.total_bytes, pages * page / 2);
  EXPECT_LE(facts.total_bytes, pages * page * 2);
  EXPECT_LE(facts.free_bytes(), facts.ceiling_bytes());
  EXPECT_GT(facts.free_bytes(), 0u);
  EXPECT_LE(facts.processors, ::sysconf(_SC_NPROCESSORS_ONLN));
  EXPECT_EQ(facts.processors, usable_processors());
}

}  // namespace
}  // namespace foretoken
